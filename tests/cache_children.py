"""Forked children for the tests of the cache: they wait for a sign, report line by line, and can be killed."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Say = Callable[[object], None]
Body = Callable[[Say], None]

TIME_LIMIT_S = 60
"""After which a child that hangs is ended by the system, so that its test fails instead of hanging."""


class Child:
    """A forked process that runs ``body(say)`` once :meth:`go` was called; ``say`` sends a line to the parent."""

    def __init__(self, body: Body) -> None:
        lines, says = os.pipe()
        waits, self._gate = os.pipe()
        with warnings.catch_warnings():
            # From 3.12 on Python warns where onnxruntime's threads are about; no child runs onnxruntime.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            self._run(body, waits, says)
        os.close(says)
        os.close(waits)
        self.lines: TextIO = os.fdopen(lines, encoding="utf-8")
        self._status: int | None = None

    @staticmethod
    def _run(body: Body, waits: int, says: int) -> None:
        status = 1
        try:
            signal.alarm(TIME_LIMIT_S)
            os.read(waits, 1)
            body(lambda word: (os.write(says, f"{word}\n".encode()), None)[1])
            status = 0
        except BaseException:  # noqa: BLE001  # reported here: nothing may run on into the parent's test
            traceback.print_exc()
        finally:
            os._exit(status)

    def go(self) -> Child:
        """Let it run."""
        os.write(self._gate, b"!")
        return self

    def hear(self) -> str:
        """The next line; empty where it has ended."""
        return self.lines.readline().strip()

    def kill(self) -> None:
        """End it as no process can prevent."""
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Wait for its end; the exit status, negative for the signal that ended it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def close(self) -> None:
        """Whatever it does, it is gone afterwards."""
        if self._status is None:
            self.kill()
            self.end()
        self.lines.close()
        os.close(self._gate)


@contextmanager
def children(*bodies: Body) -> Iterator[list[Child]]:
    """Children for the time of the block, all waiting for their sign."""
    born: list[Child] = []
    try:
        born += [Child(body) for body in bodies]
        yield born
    finally:
        for child in born:
            child.close()


@contextmanager
def child(body: Body) -> Iterator[Child]:
    """One child, already let go."""
    with children(body) as born:
        yield born[0].go()
