"""One request to a child and its answer: which step it is at, how long that may take, what its end means."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ort_metainfer import errors
from ort_metainfer.errors import TrialCrashed, TrialError, TrialTimeout
from ort_metainfer.trials.child import Child

__all__ = ["EXTRA", "Dialogue"]

STEP_SHARE = 0.5
"""What one step of one candidate may take of the time that is left when it begins."""

STEP_MIN_S = 1.0
"""But at least this: half of nearly nothing would blame a candidate for the time being up."""

EXTRA = "extra"
EXTRA_SHARE = 0.2
"""What trying one more synthetic input may take of the time that is left."""

STEPS = {
    "starting": "starting the trial process",
    "describing": "reading the model",
    "discovering": "asking a provider for its devices",
    "opening": "creating the session",
    "checking": "running the model",
    "timing": "timing a run",
    "rewriting": "rewriting the model",
    "compiling": "compiling the model",
}


class Dialogue:
    """One request to a child and its answer.

    Attributes:
        step: what the child announced last.
        session: for which session.
    """

    def __init__(self, child: Child, deadline: float) -> None:
        self.child, self.deadline = child, deadline
        self.step, self.session, self._has_rounds = "starting", "", False
        self._step_began, self._step_ends = time.monotonic(), deadline

    def events(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What the child says, the last being ``done``.

        Raises:
            TrialTimeout: a step took longer than it may, or the deadline passed; the child is killed.
            TrialCrashed: the child died.
            MetainferError: what the child raised.
        """
        is_asked = False
        while True:
            message = self._receive()
            event = message.get("event")
            if event == "ready" and not is_asked:
                is_asked = True
                self.child.send(request | {"seconds": self.deadline - time.monotonic()})
            elif event in STEPS:
                self._begin(event, str(message.get("session", "")), message.get("limit_s"))
            elif event in ("round", "aside"):
                self._has_rounds = True
            elif event == "failed":
                raise _error(message)
            yield message
            if event == "done":
                return

    def _begin(self, step: str, session: str, limit_s: float | None = None) -> None:
        """A step begins; a child that knows best how long it may take says so with ``limit_s``."""
        self.step, self.session, self._step_began = step, session, time.monotonic()
        left_s = self.deadline - self._step_began
        self._step_ends = self.deadline
        if limit_s is not None:
            self._step_ends = min(self.deadline, self._step_began + limit_s)
        elif session == EXTRA:
            self._step_ends -= (1 - EXTRA_SHARE) * left_s
        elif self.candidate is not None and not self._has_rounds:  # later, it has shown that it runs
            self._step_ends = self._step_began + max(STEP_SHARE * left_s, min(STEP_MIN_S, left_s))

    @property
    def candidate(self) -> int | None:
        """The candidate the child is busy with, None where it is the baseline, the reference or nothing."""
        number = self.session.removesuffix("_twin")
        return int(number) if number.isdecimal() else 0 if number.startswith("candidate") else None

    def _receive(self) -> dict[str, Any]:
        try:
            message = self.child.receive(min(self._step_ends, self.deadline))
        except TrialCrashed as error:
            raise TrialCrashed(f"{STEPS[self.step]}: {error}") from error
        if message is None:
            self.child.kill()
            took = time.monotonic() - self._step_began
            raise TrialTimeout(f"{STEPS[self.step]} did not end within {took:.1f} s; killed")
        return message


def _error(message: dict[str, Any]) -> Exception:
    """The child's error as one of ours; one that is not in the tree is a TrialError."""
    kind = getattr(errors, str(message.get("error")), TrialError)
    text = str(message.get("message"))
    is_ours = isinstance(kind, type) and issubclass(kind, errors.MetainferError)
    return kind(text) if is_ours else TrialError(text)
