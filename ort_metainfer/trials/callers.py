"""Several callers of one session at once, as a server's threads call it: so many runs shared among so many threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Called", "call_at_once"]


class Called(NamedTuple):
    """How long each run took, in the order of their ends, and all of them from the first start to the last end."""

    runs_ms: tuple[float, ...]
    wall_s: float


def call_at_once(
    run: Callable[[], object],
    callers: int,
    runs: int,
    lead_s: float,
    now_s: Callable[[], float],
    begin: Callable[[], None] = lambda: None,
) -> Called:
    """Run ``runs`` times from ``callers`` threads, each taking the next run when it has ended one.

    Args:
        run: runs the session once; called from several threads.
        callers: threads; a single one is the caller's own.
        runs: timed runs of all callers together.
        lead_s: untimed runs come before, by all callers, for at least so long and at least one each.
        now_s: wall time.
        begin: called once, between the untimed runs and the timed ones.

    Raises:
        Exception: what ``run`` raised first; the others stop after their run.
    """
    calls = _Calls(run, callers, runs, lead_s, now_s, begin)
    others = [threading.Thread(target=calls.work, name="caller", daemon=True) for _ in range(callers - 1)]
    for thread in others:
        thread.start()
    calls.work()
    for thread in others:
        thread.join()
    if calls.errors:
        raise calls.errors[0]
    return Called(tuple(calls.runs_ms), max(calls.ended_s) - calls.began_s)


class _Calls:
    """What the callers share. ``next`` on a counter and ``append`` on a list are atomic in CPython, with or without a
    global lock: no lock of ours is between two runs."""

    def __init__(
        self,
        run: Callable[[], object],
        callers: int,
        runs: int,
        lead_s: float,
        now_s: Callable[[], float],
        begin: Callable[[], None],
    ) -> None:
        self._run, self._runs, self._lead_s, self._now_s, self._begin = run, runs, lead_s, now_s, begin
        self._tickets = itertools.count()
        self._barrier = threading.Barrier(callers, self._start)
        self.runs_ms: list[float] = []
        self.ended_s: list[float] = []
        self.errors: list[BaseException] = []
        self.began_s = 0.0

    def _start(self) -> None:
        self._begin()
        self.began_s = self._now_s()

    def work(self) -> None:
        """One caller's share."""
        try:
            began_s = self._now_s()
            self._run()
            while self._now_s() - began_s < self._lead_s and not self.errors:
                self._run()
            self._barrier.wait()
            while next(self._tickets) < self._runs and not self.errors:
                started_s = self._now_s()
                self._run()
                self.runs_ms.append((self._now_s() - started_s) * 1000)
            self.ended_s.append(self._now_s())
        except threading.BrokenBarrierError:
            return  # another caller's error is told
        except BaseException as error:  # noqa: BLE001 (raised where the runs were asked for)
            self.errors.append(error)
            self._barrier.abort()
