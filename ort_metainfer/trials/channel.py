"""What parent and child say to each other: JSON, one message a line.

The parent asks once (``{"do": "race", ...}``) and the child answers with events until ``done`` or ``failed``. Each step
is announced before it is taken, so that the parent knows what a child was doing when it died::

    {"event": "ready"}
    {"event": "opening" | "checking" | "timing", "session": "baseline" | "0" | ..., "limit_s": 2.5}   limit_s: seldom
    {"event": "prepared", "feeds": {...}}                   inputs that will do, before better ones are tried
    {"event": "baseline", "creation_ms": ..., "latency_ms": ...}
    {"event": "trial", "candidate": 0, "trial": {...}}      what is known of a candidate before it is timed
    {"event": "untried", "candidate": 3, "reason": ...}
    {"event": "round", "turns": {session: {"runs_ms": [...], "cpu_ms": ..., "switches": ...}}}
    {"event": "aside", "turns": ..., "reasons": [...]}      a round during which the machine changed
    {"event": "restart", "reasons": [...]}                  the change stays: what follows is another series
    {"event": "warmed", "session": ..., "runs": ..., "seconds": ..., "is_settled": true | false | null}
    {"event": "cooled", "seconds": ...}                     a pause because of heat
    {"event": "refuted", "gate": {...}}                     a duel's outputs are not the baseline's: it ends
    {"event": "state", "before": ..., "after": ...}         what else the machine does, at each look
    {"event": "apart", "before": ..., "after": ...}         the duel is over; copies are told apart
    {"event": "done", ...}
    {"event": "failed", "error": "InputsError", "message": ...}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ort_metainfer.problem import Graph, SessionSpec
from ort_metainfer.trials.task import Setup, Thresholds

__all__ = ["Channel", "decode", "encode", "setup_from", "setup_plain", "thresholds_from", "thresholds_plain"]


def encode(message: dict[str, Any]) -> str:
    """One line."""
    return json.dumps(message, default=_plain) + "\n"


def decode(line: str) -> dict[str, Any] | None:
    """The message of a line, None where it is none (something printed past us)."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot send {type(value).__name__}")


class Channel:
    """The child's way to its parent: a private duplicate of its standard output.

    From construction on, whatever anything in this process prints goes to standard error instead: onnxruntime and
    vendors' libraries print to standard output, which would garble the messages.
    """

    def __init__(self) -> None:
        private = os.dup(1)
        os.dup2(2, 1)
        self._pipe: TextIO = open(private, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (open until the end)
        sys.stdout = sys.stderr

    def say(self, event: str, **fields: Any) -> None:
        """Send one event."""
        self._pipe.write(encode({"event": event, **fields}))
        self._pipe.flush()


def setup_plain(setup: Setup) -> dict[str, Any]:
    """A setup as it is sent."""
    return {
        "model_file": str(setup.model_file),
        "baseline": setup.baseline.as_dict(),
        "feeds": str(setup.feeds),
        "as_bytes": setup.as_bytes,
        "objective": setup.objective,
        "graph": None if setup.graph is None else setup.graph.as_dict(),
        "shapes": {name: list(shape) for name, shape in setup.shapes.items()},
        "label": setup.label,
        "inputs_are_real": setup.inputs_are_real,
        "callers": setup.callers,
    }


def setup_from(plain: dict[str, Any]) -> Setup:
    """The inverse of :func:`setup_plain`."""
    return Setup(
        model_file=Path(plain["model_file"]),
        baseline=SessionSpec.from_dict(plain["baseline"]),
        feeds=Path(plain["feeds"]),
        as_bytes=plain["as_bytes"],
        objective=plain["objective"],
        graph=None if plain["graph"] is None else Graph.from_dict(plain["graph"]),
        shapes={name: tuple(shape) for name, shape in plain["shapes"].items()},
        label=plain["label"],
        inputs_are_real=bool(plain.get("inputs_are_real")),
        callers=int(plain.get("callers", 1)),
    )


def thresholds_plain(thresholds: Thresholds) -> dict[str, Any]:
    """Thresholds as they are sent."""
    return {name: getattr(thresholds, name) for name in thresholds.__dataclass_fields__}


def thresholds_from(plain: dict[str, Any]) -> Thresholds:
    """The inverse of :func:`thresholds_plain`."""
    return Thresholds(**plain)
