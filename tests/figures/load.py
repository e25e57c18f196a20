"""A background load for figures: processes that are busy for a share of each 50 ms."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = """
import os, sys, time
share, period, parent = float(sys.argv[1]), 0.05, os.getppid()
while os.getppid() == parent:  # one that outlives a killed script would be a load to the next
    began = time.perf_counter()
    while time.perf_counter() - began < share * period:
        pass
    time.sleep(max(0.0, period - (time.perf_counter() - began)))
"""


@contextmanager
def load(share: float, processes: int = 1) -> Iterator[None]:
    """Keep ``processes`` cores busy for ``share`` (0 to 1) of the time, for the time of the block."""
    command = [sys.executable, "-S", "-c", BUSY, str(share)]
    running = [subprocess.Popen(command) for _ in range(processes if share > 0 else 0)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
