"""``mode=background``: decisions made beside the program, by one child of low priority at a time, for sessions to come.

The session is plain at once; the child (:mod:`ort_metainfer.background_child`) waits until the machine is quiet,
decides as any process would, and writes the cache. It ends with this process, or at its deadline. Nothing here is
waited for: the thread that holds the child's hand is a daemon, and at exit the child is told to end.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ort_metainfer.background_job import Job
from ort_metainfer.errors import TrialError

__all__ = ["MAX_QUEUED", "Workshop", "start_child", "workshop"]

log = logging.getLogger("ort_metainfer")

MAX_QUEUED = 16
"""Models that wait for their turn; with minutes for each, more would wait for hours."""

TIDY_S = 0.3
"""How long a child that was told to end is waited for at exit."""

TAIL_BYTES = 500

IDLE_S = 5.0
"""The thread ends when nothing was asked of it for so long."""


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


class Workshop:
    """Jobs one after the other, each in a child of its own, from a thread that is nobody's business.

    Args:
        start: starts the child, its errors going to the file given; it will be told its job on standard input.
    """

    def __init__(self, start: Callable[[IO[bytes]], subprocess.Popen[str]] | None = None) -> None:
        self._start = start or (lambda errors: start_child(errors))
        self._process: subprocess.Popen[str] | None = None
        self._inherited: subprocess.Popen[str] | None = None
        self._reset()

    def after_fork(self) -> None:
        """Forget everything and end nothing: child and folders are the parent's. Its pipes are let go of, or the child
        would live as long as this process does."""
        process, self._process = self._process, None
        if process is not None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for pipe in (process.stdin, process.stdout):  # not closed: another thread may have held their locks
                if pipe is not None and not pipe.closed:
                    os.dup2(nowhere, pipe.fileno(), inheritable=False)
            os.close(nowhere)
        self._inherited = process  # never collected: that would wait for somebody else's child
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: deque[Job] = deque()
        self._current: Job | None = None
        self._thread: threading.Thread | None = None
        self._failed: dict[str, str] = {}
        self._closed = False

    def submit(self, key: str, make: Callable[[], Job]) -> str:
        """Have a job done, once; how it stands with it, in words.

        Args:
            key: names it.
            make: called where it is neither under way nor waiting.

        Raises:
            InputsError: what ``make`` raises.
        """
        with self._lock:
            standing = self._standing(key)
            if standing is not None:
                return standing
            if len(self._waiting) >= MAX_QUEUED:
                return f"not begun: {MAX_QUEUED} other models wait for theirs in this process"
        job = make()  # without the lock: it runs the caller's code
        with self._lock:
            standing = self._standing(key)
            if standing is not None or self._closed:
                _remove(job.folder)
                return standing or "not begun: this process ends"
            self._waiting.append(job)
            self._wake.set()
            if self._thread is None:
                # not the session's own thread: Linux ends a child with the thread that started it
                self._thread = threading.Thread(target=self._work, name="ort_metainfer-background", daemon=True)
                self._thread.start()
        return "under way"

    def _standing(self, key: str) -> str | None:
        if key in self._failed:
            return f"not begun again in this process: {self._failed[key]}"
        if self._current is not None and self._current.key == key:
            return "under way"
        return "waiting for its turn" if any(job.key == key for job in self._waiting) else None

    def _work(self) -> None:
        while True:
            self._wake.wait(IDLE_S)
            with self._lock:
                self._wake.clear()
                if self._closed or not self._waiting:
                    self._thread = None
                    return
                job = self._current = self._waiting.popleft()
            try:
                self._say(job, *self._carry_out(job))
            finally:
                _remove(job.folder)
                with self._lock:
                    self._current = self._process = None
                    self._wake.set()

    def _carry_out(self, job: Job) -> tuple[str, str]:
        """How it ended, as :func:`ort_metainfer.background_child.carry_out` says it, and what the child said."""
        with tempfile.TemporaryFile() as errors:
            try:
                process = self._start(errors)
            except (OSError, TrialError) as error:
                return "failed", str(error)
            with self._lock:
                self._process = process
                if self._closed:
                    process.kill()
            alarm = threading.Timer(job.seconds, process.kill)
            alarm.daemon = True
            try:
                alarm.start()
                return _conversation(process, job, errors)
            finally:
                alarm.cancel()
                process.kill()
                process.wait()

    def _say(self, job: Job, how: str, what: str) -> None:
        if self._closed:
            return
        if how in ("done", "left"):
            log.info("decision in the background for %s, from its next session on: %s", job.label, what)
            return
        if how == "failed":
            with self._lock:
                self._failed[job.key] = what
        from ort_metainfer.session import warn_once

        warn_once(f"no decision was made in the background for {job.label}, which runs on plain onnxruntime: {what}")

    def close(self) -> None:
        """End the child and take no more jobs; does not wait for the thread."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
            folders = [job.folder for job in (self._current, *self._waiting) if job is not None]
            self._waiting.clear()
            self._wake.set()
        if process is not None:
            process.terminate()
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # it tidies up, and ends by its own alarm at the latest
                process.wait(TIDY_S)
        for folder in folders:
            _remove(folder)


def _conversation(process: subprocess.Popen[str], job: Job, errors: IO[bytes]) -> tuple[str, str]:
    """Tell the child its job, and hear how it ended. Its standard input stays open: at its end the child ends."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(job.request) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            try:
                said = json.loads(line)
                return str(said["how"]), str(said["what"])
            except (ValueError, TypeError, KeyError):
                continue  # something printed past us
    except (OSError, ValueError) as error:
        return "failed", f"its process ended before it was told what to do: {error}"
    errors.seek(0)
    words = errors.read()[-TAIL_BYTES:].decode("utf-8", "replace").split("\n")
    told = " | ".join(line.strip() for line in words if line.strip())
    return "failed", f"its process died (exit status {process.wait()}){'; its last words: ' if told else ''}{told}"


def start_child(errors: IO[bytes]) -> subprocess.Popen[str]:
    """A child of low priority; its own children inherit that.

    Args:
        errors: where its standard error goes.

    Raises:
        TrialError: there is no Python that could run it.
        OSError: it cannot be started.
    """
    from ort_metainfer.trials.child import child_environment, interpreter

    flags = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0)
    return subprocess.Popen(
        [interpreter(), "-P", "-m", "ort_metainfer.background_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=child_environment(),
        encoding="utf-8",
        errors="replace",
        creationflags=flags,
    )


_workshop: Workshop | None = None


def workshop() -> Workshop:
    """This process's."""
    global _workshop
    if _workshop is None:
        _workshop = Workshop()
        atexit.register(_workshop.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_workshop.after_fork)
    return _workshop
