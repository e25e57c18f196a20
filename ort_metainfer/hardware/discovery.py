"""Every provider's devices, asked for in a process that a vendor's library may take down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ort_metainfer.errors import MetainferError, TrialTimeout
from ort_metainfer.hardware.devices import CPU_PROVIDER, cpu_device
from ort_metainfer.problem import Device
from ort_metainfer.trials.errand import run_errand

__all__ = ["offered_devices"]

Errand = Callable[[str, Mapping[str, Any], float, Callable[[dict[str, Any]], None]], dict[str, Any]]


def offered_devices(
    providers: Sequence[str], deadline: float, errand: Errand = run_errand
) -> tuple[list[Device], list[tuple[str, str]]]:
    """Devices of providers in their order, and (provider, reason) for each that offers none.

    One child asks them all; where one takes it down, another child asks the others.

    Args:
        providers: names of usable ones; the CPU's is answered here.
        deadline: a time.monotonic() value.
        errand: carries out an errand in a child process.

    Raises:
        TrialError: no child process can be started.
    """
    found, refused = [cpu_device()] if CPU_PROVIDER in providers else [], []
    waiting = [name for name in providers if name != CPU_PROVIDER]
    while waiting:
        asked: list[str] = []

        def note(message: dict[str, Any], asked: list[str] = asked) -> None:
            if message.get("event") == "discovering":
                asked.append(str(message["session"]))

        try:
            answer = errand("devices", {"providers": waiting}, deadline, note)
        except MetainferError as error:
            if not asked and not isinstance(error, TrialTimeout):
                raise
            guilty = asked[-1:] or waiting
            refused += [(name, str(error)) for name in guilty]
            waiting = [name for name in waiting if name not in guilty]
            if time.monotonic() >= deadline:
                refused += [(name, "there was no time left to ask it for its devices") for name in waiting]
                break
            continue
        found += [Device(**{**device, "features": tuple(device["features"])}) for device in answer["devices"]]
        refused += [(name, reason) for name, reason in answer["refused"]]
        break
    return found, refused
