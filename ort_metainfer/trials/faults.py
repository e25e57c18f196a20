"""Faults on purpose, for tests of what the parent does about them. Not for users.

``ORT_METAINFER_TRIAL_FAULT=opening:1:hang`` (step : session : kind) makes the child misbehave when it announces that
step for that session. Kinds: ``hang`` (never returns), ``crash`` (aborts), ``eat`` (takes memory until killed),
``chatter`` (prints rubbish to standard output, then goes on).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping

__all__ = ["VARIABLE", "strike"]

VARIABLE = "ORT_METAINFER_TRIAL_FAULT"


def _hang() -> None:
    while True:
        time.sleep(1)


def _crash() -> None:
    print("vendor library: assertion failed", file=sys.stderr, flush=True)
    os.abort()


def _eat() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(b"x") * (16 << 20))
        time.sleep(0.01)


def _chatter() -> None:
    os.write(1, b'{"event": "done"}\nrubbish \xff\xfe without an end')
    print("more rubbish", flush=True)


KINDS: Mapping[str, Callable[[], None]] = {"hang": _hang, "crash": _crash, "eat": _eat, "chatter": _chatter}


def strike(step: str, session: str) -> None:
    """Misbehave if the environment asks for it at this step of this session."""
    wanted = os.environ.get(VARIABLE, "").split(":")
    if len(wanted) == 3 and (step, session) == (wanted[0], wanted[1]) and wanted[2] in KINDS:
        KINDS[wanted[2]]()
