"""Which rounds of a contest count: those taken in one state of the machine. Child and parent each keep a course. Pure.

A round during which the machine drifted is set aside and taken again. Where the change stays, the series is begun anew,
once: rounds of the state before and of the one after are never averaged. What was set aside is told, with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ort_metainfer.hardware.drift import drift
from ort_metainfer.problem import HardwareState
from ort_metainfer.trials.timing import LOOKS, MAX_ROUNDS, MIN_ROUNDS, Turn

__all__ = ["MAX_ASIDE", "Basis", "Course", "Sieve", "Sifted", "turns_of"]

MAX_ASIDE = 12
"""Rounds set aside after which a contest ends: a machine that changes all the time is not waited for. A choice."""

ENOUGH_ROUNDS = MAX_ROUNDS // 2
"""A series so long is not begun anew: it tells more than what time is left for would. A choice."""

Round = Mapping[str, Turn]


def turns_of(message: Mapping[str, Any]) -> dict[str, Turn]:
    """The turns of a ``round`` or ``aside`` event."""
    return {name: Turn.from_dict(plain) for name, plain in message["turns"].items()}


class Sifted(NamedTuple):
    """What becomes of a round: whether it counts, whether a new series begins with it, and what had changed."""

    keeps: bool
    restarts: bool = False
    reasons: tuple[str, ...] = ()


class Sieve:
    """Compares the state of each round with that of the series it belongs to.

    Args:
        before: the state before the first round; its clocks, read while nothing ran, are not compared.
    """

    def __init__(self, before: HardwareState | None) -> None:
        self.reference = None if before is None else _without_clocks(before)
        self._drifted: HardwareState | None = None
        self._kept = 0
        self._may_restart = True

    def sift(self, state: HardwareState, has_time: bool) -> Sifted:
        """Judge a round by the state of the machine over it.

        Args:
            state: over the round.
            has_time: whether there is time for a new series.
        """
        reasons = drift(self.reference, state)
        if not reasons:
            self._keep(state)
            return Sifted(True)
        stays = self._drifted is not None and not drift(self._drifted, state)
        if stays and (self._kept == 0 or (has_time and self._may_restart and self._kept < ENOUGH_ROUNDS)):
            self._may_restart = self._may_restart and self._kept == 0
            self._kept = 0
            self._keep(state)
            return Sifted(True, True, reasons)
        self._drifted = state
        return Sifted(False, False, reasons)

    def _keep(self, state: HardwareState) -> None:
        if self._kept == 0:
            self.reference = state
        self._kept += 1
        self._drifted = None


def _without_clocks(state: HardwareState) -> HardwareState:
    devices = tuple(replace(device, clock_mhz=None) for device in state.devices)
    return replace(state, clock_mhz=None, top_clock_mhz=None, devices=devices)


class Basis(NamedTuple):
    """Rounds to judge by, the confidence that their looks may still spend, and whether each of them was disturbed."""

    rounds: Sequence[Round]
    confidence: float
    is_disturbed: bool = False


@dataclass
class Course:
    """The rounds of a contest as they came.

    Attributes:
        series: undisturbed rounds, a list for each state of the machine; the last is under way.
        aside: rounds taken while the machine changed.
        reasons: why the first of ``aside`` was set aside, why a new series was begun; in order.
        notes: sessions that did not settle, pauses: session (empty where it concerns all) and what to say.
    """

    series: list[list[Round]] = field(default_factory=lambda: [[]])
    aside: list[Round] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def rounds(self) -> list[Round]:
        """The series under way."""
        return self.series[-1]

    def keep(self, turns: Round) -> None:
        """A round that counts."""
        self.rounds.append(turns)

    def set_aside(self, turns: Round, reasons: Sequence[str]) -> None:
        """A round that does not."""
        self.aside.append(turns)
        self.reasons += [] if len(self.aside) > 1 else reasons[:1]

    def restart(self, reasons: Sequence[str]) -> None:
        """What follows belongs to another state of the machine."""
        if self.rounds:
            self.notes.append(("", f"timed again after {len(self.rounds)} rounds, since {reasons[0]}"))
            self.series.append([])

    def note(self, message: Mapping[str, Any]) -> None:
        """Take in an event of the child; those that are not about rounds change nothing."""
        event = message.get("event")
        if event == "round":
            self.keep(turns_of(message))
        elif event == "aside":
            self.set_aside(turns_of(message), message["reasons"])
        elif event == "restart":
            self.restart(message["reasons"])
        elif event == "warmed" and message["is_settled"] is False:
            text = f"had not settled after {message['runs']} runs in {message['seconds']:.2f} s of warm-up"
            self.notes.append((str(message["session"]), text))
        elif event == "cooled":
            self.notes.append(("", f"paused for {message['seconds']:.1f} s because of heat"))

    def basis(self, confidence: float, steady_only: bool = False) -> Basis:
        """What to judge by: the series under way; else the longest one; else, unless forbidden, what was set aside.

        Looks that an earlier series took have spent their part of the error allowed: the series after it has the rest.

        Args:
            confidence: asked of the contest as a whole.
            steady_only: whether disturbed rounds may not count in any case.
        """
        if len(self.rounds) >= MIN_ROUNDS or not (self.aside or len(self.series) > 1):
            return Basis(self.rounds, self.confidence(confidence))
        longest = max(self.series, key=len)
        if len(longest) >= MIN_ROUNDS or steady_only or len(self.aside) < MIN_ROUNDS:
            return Basis(longest, confidence)
        return Basis(self.aside, confidence, True)

    def confidence(self, asked: float) -> float:
        """What the intervals of the series under way must have, so that all looks together have what is asked."""
        taken = sum(look <= len(rounds) for rounds in self.series[:-1] for look in LOOKS)
        return 1 - (1 - asked) * max(1, len(LOOKS) - taken) / len(LOOKS)

    def all_rounds(self) -> list[Sequence[Round]]:
        """Every list of rounds, what :meth:`basis` gives first."""
        basis = self.basis(0.95).rounds
        return [basis, *(rounds for rounds in (*reversed(self.series), self.aside) if rounds is not basis)]

    def flags(self, steady_only: bool = False, sessions: Sequence[str] = ()) -> tuple[str, ...]:
        """What to say beside the figures.

        Args:
            steady_only: as for :meth:`basis`.
            sessions: whose notes to tell, besides those that concern all.
        """
        flags = [f"{_words(name)} {text}".strip() for name, text in self.notes if name in ("", *sessions)]
        if self.aside:
            total = len(self.aside) + sum(map(len, self.series))
            flags.append(f"{len(self.aside)} of {total} rounds set aside, since {self.reasons[0]}")
        if self.basis(0.95, steady_only).is_disturbed:
            flags.append(f"judged by disturbed rounds: the machine was not steady for {MIN_ROUNDS} rounds")
        return tuple(flags)


def _words(session: str) -> str:
    """A session as a person calls it; a race's candidates are numbers."""
    candidate = session.removesuffix("_twin")
    if candidate.isdecimal():
        return "its session" if candidate == session else "the twin of its session"
    return session.replace("_", " ")
