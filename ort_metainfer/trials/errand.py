"""One errand of another kind than a trial, in a child process of its own: probing, fingerprinting, compiling.

What may crash, hang or leave a library registered is done there, under a deadline, and only plain values come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ort_metainfer.trials.child import Child
from ort_metainfer.trials.dialogue import Dialogue

__all__ = ["run_errand"]


def run_errand(
    do: str,
    request: Mapping[str, Any],
    deadline: float,
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Carry out one errand in a fresh child and return the fields of its last event.

    Args:
        do: its name, a key of :data:`ort_metainfer.trials.worker.ERRANDS`.
        request: plain values for it.
        deadline: a time.monotonic() value; the child is killed at it.
        on_event: told every event as it comes: should the child die later, what came before is not lost.

    Raises:
        TrialTimeout: the deadline passed.
        TrialCrashed: the child died.
        MetainferError: what the errand raised.
    """
    child = Child()
    try:
        last: dict[str, Any] = {}
        for message in Dialogue(child, deadline).events({**request, "do": do}):
            last = message
            if on_event is not None:
                on_event(message)
        return last
    finally:
        child.kill()
