"""The parent's hold on one child process: start it, talk to it, watch its memory, end it."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import PurePath
from typing import Any

from ort_metainfer.errors import TrialCrashed, TrialError
from ort_metainfer.trials import memory
from ort_metainfer.trials.channel import decode, encode

__all__ = ["Child", "child_environment", "interpreter"]

SAMPLE_S = 0.1
"""Memory is looked at this often."""

KILL_S = 0.3
"""How long to wait for a killed child; callers are promised their deadline."""

TAIL_BYTES = 2000
SYSTEM_SHARE = 0.10
"""A child is killed when less than this share of the machine's memory is available (or half of what was at first)."""

CHILD_SHARE = 0.5
"""Share of the memory available at first that a child may take."""


def interpreter() -> str:
    """The Python that runs this process.

    Raises:
        TrialError: there is none that could run a child (an application with Python built in, a frozen one).
    """
    path = sys.executable
    if getattr(sys, "frozen", False) or not re.match(r"(python|pypy)", PurePath(path or "").name, re.IGNORECASE):
        raise TrialError(
            f"trials need a Python interpreter to run in a process of their own, and sys.executable is {path!r}; "
            "set it, or decide elsewhere and ship the strategy file"
        )
    return path


def child_environment() -> dict[str, str]:
    """The parent's, with the package switched off and the same modules in reach."""
    paths = os.pathsep.join(_search_path())
    return os.environ | {"ORT_METAINFER_MODE": "off", "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}


def _search_path() -> list[str]:
    """Where the parent looks for modules, with the folder of its script last.

    A child imports modules that the parent never asked for. Found beside the script first, a program named ``onnx.py``
    would run once more, in the child.
    """
    paths = [os.getcwd() if entry == "" else entry for entry in sys.path if isinstance(entry, str)]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    own = os.path.dirname(os.path.realpath(script)) if script else None
    is_own = sys.path[:1] == [""] or (bool(paths) and os.path.realpath(paths[0]) == own)
    if is_own and not _holds_ours(paths[0]):
        paths.append(paths.pop(0))
    return paths


def _holds_ours(folder: str) -> bool:
    """Whether the parent has onnxruntime, numpy or this package from ``folder``: then the child must have so too."""
    found = [getattr(sys.modules.get(name), "__file__", None) for name in ("onnxruntime", "numpy", "ort_metainfer")]
    homes = [os.path.dirname(os.path.dirname(os.path.realpath(file))) for file in found if file]
    return os.path.realpath(folder) in homes


class Child:
    """One child process.

    Args:
        memory_limit_mb: resident memory past which it is killed; default half of what is available now.

    Raises:
        TrialError: it cannot be started.
    """

    def __init__(self, memory_limit_mb: float | None = None) -> None:
        available, total = memory.available_mb() or 0.0, memory.total_mb() or 0.0
        self.memory_limit_mb = memory_limit_mb or (CHILD_SHARE * available or float("inf"))
        self._floor_mb = min(SYSTEM_SHARE * total, available / 2)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._sampled_at = 0.0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        # -P: a file of the working directory must not stand in for a module that the parent has
        command = [interpreter(), "-P", "-m", "ort_metainfer.trials.worker"]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=child_environment(),
                encoding="utf-8",
                errors="replace",
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # on Windows, no console pops up
            )
        except OSError as error:
            self._errors.close()
            raise TrialError(f"cannot start a process for trials ({command[0]}): {error}") from error
        threading.Thread(target=self._read, name="ort_metainfer-trial", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def send(self, message: dict[str, Any]) -> None:
        """Send one request.

        Raises:
            TrialCrashed: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise TrialCrashed(self._last_words()) from error

    def receive(self, until: float) -> dict[str, Any] | None:
        """The next event; None when ``until`` (a time.monotonic() value) has passed.

        Raises:
            TrialCrashed: it ended, or had to be killed because of the memory it took.
        """
        while (left := until - (now := time.monotonic())) > 0:
            if now - self._sampled_at >= SAMPLE_S:  # by the clock: a child that talks all the time is looked at too
                self._sampled_at = now
                self._guard_memory()
            try:
                line = self._lines.get(timeout=min(SAMPLE_S, left))
            except queue.Empty:
                continue
            if line is None:
                raise TrialCrashed(self._last_words())
            message = decode(line)
            if message is not None:
                return message
        return None

    def _guard_memory(self) -> None:
        resident, available = memory.resident_mb(self.pid), memory.available_mb()
        if resident is not None and resident > self.memory_limit_mb:
            self.kill()
            raise TrialCrashed(f"its process took {resident:.0f} MB, {self.memory_limit_mb:.0f} MB are allowed; killed")
        if resident is not None and available is not None and available < self._floor_mb:
            self.kill()
            raise TrialCrashed(f"its process took {resident:.0f} MB and left {available:.0f} MB to the machine; killed")

    def _last_words(self) -> str:
        """How it ended, and the end of what it printed."""
        try:
            status = self._process.wait(timeout=0.3)
        except subprocess.TimeoutExpired:
            return "its process closed its output"
        how = f"exit status {status}"
        if status < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-status).name
        printed = self._printed()
        return f"its process died ({how})" + (f"; its last words: {printed}" if printed else "")

    def _printed(self) -> str:
        """The last lines of its standard error, in one."""
        if self._errors.closed:
            return ""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - TAIL_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        return " | ".join(line.strip() for line in lines if line.strip())[-500:]

    def kill(self) -> None:
        """End it now; may be called again. The reading thread closes its end of the pipe itself."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel's hands: it ends when that lets go
            self._process.wait(timeout=KILL_S)
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._errors.close()
