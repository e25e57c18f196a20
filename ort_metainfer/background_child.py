"""The child of ``mode=background``: ``python -m ort_metainfer.background_child``. Waits for a quiet machine, decides.

It is told its job as one line of JSON on standard input and answers with one line on standard output. It ends with its
parent (standard input ends; on Linux the kernel says so too) and at its deadline, and takes its own children along.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ort_metainfer.problem import HardwareState
from ort_metainfer.scratch import sweep

__all__ = ["carry_out", "main", "wait_for_quiet"]

NICENESS = 10
"""Half of the way to the lowest priority: beside a busy program some 10% of a core, on an idle machine all of it."""

WINDOW_S = 1.0
QUIET_WINDOWS = 3
"""A machine is quiet after so many quiet windows in a row: the program that has just made its session is busy next."""

BUSY_PAUSE_S = 4.0
"""Pause after a window that was not quiet."""

GRACE_S = 2.0
"""What this process has to tidy up when its parent is gone."""

PR_SET_PDEATHSIG = 1


def wait_for_quiet(
    limit_s: float,
    observe: Callable[[float], HardwareState],
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Wait until the machine is quiet: None then, and where the system does not tell; else why it was not.

    Args:
        limit_s: how long to wait at most.
        observe: the state over so many seconds.
        now_s: what time it is.
        sleep: waits.
    """
    ends_s, quiet = now_s() + limit_s, 0
    while True:
        state = observe(WINDOW_S)
        if not state.is_load_known:
            return None
        quiet = 0 if state.busy_reason else quiet + 1
        if quiet >= QUIET_WINDOWS:
            return None
        if now_s() >= ends_s:
            return state.busy_reason or "it was quiet for too short a time"
        if state.busy_reason:
            sleep(min(BUSY_PAUSE_S, max(0.0, ends_s - now_s())))


def carry_out(request: Mapping[str, Any]) -> tuple[str, str]:
    """Do the job.

    Returns:
        ``done`` and the decision; ``left``, another process has it; ``gave up`` and why; ``failed`` and why.
    """
    from ort_metainfer.adapt import Request, decide, settings_for
    from ort_metainfer.errors import MetainferError
    from ort_metainfer.hardware.state import observe
    from ort_metainfer.places import cache_directory
    from ort_metainfer.problem import SessionSpec
    from ort_metainfer.settings import Settings
    from ort_metainfer.strategy_cache.lock import deciding

    try:
        settings, _ = settings_for(Settings(**request["settings"]))
        with deciding(cache_directory(settings), f"background {request['key']}", 0.0) as mine:
            if not mine:
                return "left", "another process makes it"
            busy = wait_for_quiet(float(request["quiet_wait_s"]), observe)
            if busy is not None:
                return "gave up", f"the machine was not quiet within {request['quiet_wait_s']:g} s ({busy})"
            source = Path(request["model"]).read_bytes() if request["as_bytes"] else request["model"]
            spec = SessionSpec.from_dict(request["spec"])
            decision = decide(Request(source, spec, settings, is_expected=True))
    except (MetainferError, OSError) as error:
        return "failed", str(error)
    if decision.origin == "pass-through" and decision.key is None:
        return "failed", decision.reason
    return "done", f"{decision.strategy.describe()}; {decision.reason}"


def main() -> None:
    """Take the job from standard input, do it, say how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    signal.signal(signal.SIGTERM, _leave)
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)  # what libraries print is no answer
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(NICENESS)
    request = json.loads(sys.stdin.readline() or "null")
    if request is None:  # the parent was gone before it said anything
        return
    try:
        _end_with_parent(int(request["parent"]))
        _end_in(float(request["seconds"]))
        sweep(Path(tempfile.gettempdir()))
        how, what = carry_out(request)
    finally:
        shutil.rmtree(request["folder"], ignore_errors=True)
    answer.write(json.dumps({"how": how, "what": what}) + "\n")
    answer.flush()


def _leave(*_: object) -> None:
    """Unwind, so that children end and folders go; and end all the same where that takes too long."""
    _end_in(GRACE_S)
    raise SystemExit(1)


def _end_in(seconds: float) -> None:
    """End this process then, whatever it does."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return
    timer = threading.Timer(seconds, os._exit, [1])
    timer.daemon = True
    timer.start()


def _end_with_parent(parent: int) -> None:
    if sys.platform.startswith("linux"):
        import ctypes

        with suppress(OSError, AttributeError):  # a C library without prctl: the end of standard input remains
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before it could be asked for
            raise SystemExit(1)

    def read() -> None:
        sys.stdin.read()
        signal.raise_signal(signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=read, name="parent", daemon=True).start()


if __name__ == "__main__":
    main()
