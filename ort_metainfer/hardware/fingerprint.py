"""The parent's side of the fingerprint: each strategy of the fixed list on each reference network, in child processes.

The most useful description of a device is what it does: the log ratio of this very strategy on a few small networks on
this machine. A network is timed in a process of its own; a strategy that takes the process down costs itself only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ort_metainfer.errors import MetainferError, TrialTimeout
from ort_metainfer.hardware.profile import ReferenceTiming
from ort_metainfer.hardware.reference_figures import TimedStrategy, reference_timings
from ort_metainfer.hardware.reference_networks import NETWORKS
from ort_metainfer.hardware.reference_strategies import BASELINE, available_strategies, emulated_strategies
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.errand import run_errand
from ort_metainfer.trials.timing import MIN_ROUNDS, Turn

__all__ = ["Errand", "fingerprint_strategies"]

Errand = Callable[[str, Mapping[str, Any], float, Callable[[dict[str, Any]], None]], dict[str, Any]]
"""What carries out the errands: :func:`~ort_metainfer.trials.errand.run_errand`, or a fake."""

START_S = 1.0
"""Below this no process is started: it would not get to anything."""

LEAST_S = 3.0
"""What a network gets at least: with little time, the first ones properly rather than all of them hardly."""

PATIENCE_S = 1.0
"""A strategy whose step was ended after this is not tried on another network: it would cost the others their time."""

ANNOUNCEMENTS = ("opening", "checking", "timing")


def fingerprint_strategies(
    providers: Sequence[str] | None,
    deadline: float,
    say: Callable[[str], None] | None = None,
    *,
    networks: Sequence[str] = tuple(NETWORKS),
    errand: Errand = run_errand,
) -> tuple[ReferenceTiming, ...]:
    """Time the reference networks under every strategy that can be used here.

    Args:
        providers: those allowed, by name, the CPU's besides; None: all but opt-in and emulated ones.
        deadline: a time.monotonic() value; what is not reached by then is not in the answer.
        say: told in a few words what is being done.
        networks: which of them.
        errand: carries out an errand in a child process.

    Raises:
        TrialError: no child process can be started.
    """
    strategies = available_strategies(providers)
    emulated = emulated_strategies(strategies)
    hopeless: set[str] = set()
    rows: list[ReferenceTiming] = []
    for position, network in enumerate(networks):
        left_s = deadline - time.monotonic()
        if left_s < START_S:
            break
        wanted = {name: strategy for name, strategy in strategies.items() if name not in hopeless}
        until = time.monotonic() + max(left_s / (len(networks) - position), min(left_s, LEAST_S))
        sitting = Sitting(network, wanted, emulated, until, say or (lambda text: None), errand)
        rows += sitting.hold()
        hopeless |= sitting.hopeless
    return tuple(rows)


class Sitting:
    """One network, in one child, and in another one for the rest whenever a strategy took it down.

    Args:
        network: its name.
        strategies: name -> strategy, the baseline among them.
        emulated: names of those whose device is emulated.
        until: a time.monotonic() value.
        say: told what is being done.
        errand: carries out an errand.

    Attributes:
        seen: what the children said of each strategy.
        hopeless: strategies that need not be tried on another network: they cannot be used here, or did not end.
    """

    def __init__(
        self,
        network: str,
        strategies: Mapping[str, Strategy],
        emulated: frozenset[str],
        until: float,
        say: Callable[[str], None],
        errand: Errand,
    ) -> None:
        self.network, self.strategies, self.emulated, self.until = network, strategies, emulated, until
        self.seen = {name: TimedStrategy() for name in strategies}
        self.hopeless: set[str] = set()
        self._say, self._errand = say, errand
        self._names = tuple(strategies)
        self._busy_with: str | None = None
        self._began = 0.0

    def hold(self) -> tuple[ReferenceTiming, ...]:
        """Ask children until every strategy has its turns or is out, or the time is up."""
        while (missing := self._missing()) and self.until - time.monotonic() >= START_S:
            if not self._ask(missing):
                break
        return reference_timings(self.network, self.seen, self.emulated)

    def _missing(self) -> list[str]:
        if self.seen[BASELINE].refusal is not None:
            return []  # nothing to hold outputs against
        return [name for name, timed in self.seen.items() if timed.refusal is None and len(timed.turns) < MIN_ROUNDS]

    def _ask(self, missing: Sequence[str]) -> bool:
        """One child; whether another one may get further."""
        self._busy_with = None
        request = {"network": self.network, "seed": len(self.network), "strategies": self._entries(missing)}
        try:
            self._errand("fingerprint", request, self.until, self.note)
        except MetainferError as error:
            return self._blame(error)
        return False

    def _entries(self, missing: Sequence[str]) -> list[dict[str, Any]]:
        names = [BASELINE, *(name for name in missing if name != BASELINE)]
        return [
            {
                "index": self._names.index(name),
                "name": name,
                "strategy": self.strategies[name].as_dict(),
                "emulated": name in self.emulated,
                "timed": name in missing,
            }
            for name in names
        ]

    def note(self, message: Mapping[str, Any]) -> None:
        """Take in one event of a child."""
        event = message.get("event")
        if event in ANNOUNCEMENTS:
            self._began, self._busy_with = time.monotonic(), self._names[int(message["session"])]
            if event == "opening":
                self._say(f"{self.network}: {self._busy_with}")
        elif event == "opened":
            timed = self.seen[message["strategy"]]
            for name in ("creation_ms", "error", "mismatch", "taken"):
                setattr(timed, name, message[name])
        elif event == "refused":
            self.seen[message["strategy"]].refusal = message["reason"]
            if message["everywhere"]:
                self.hopeless.add(message["strategy"])
        elif event == "round":
            for name, turn in message["turns"].items():
                self.seen[name].turns.append(Turn.from_dict(turn))
        elif event == "disturbance":
            for name in message["strategies"]:
                self.seen[name].disturbance = message["reason"]

    def _blame(self, error: MetainferError) -> bool:
        """Charge the child's end to the strategy it was busy with; whether the others may go on.

        Raises:
            MetainferError: nobody is to blame: the child did not get to any.
        """
        if self._busy_with is None:
            if isinstance(error, TrialTimeout):
                return False
            raise error
        timed = self.seen[self._busy_with]
        is_time_up = isinstance(error, TrialTimeout) and time.monotonic() >= self.until
        if is_time_up and timed.turns:
            return False  # it was just its turn
        timed.refusal = f"no time left: {error}; a larger budget allows more" if is_time_up else str(error)
        timed.turns.clear()
        if isinstance(error, TrialTimeout) and time.monotonic() - self._began >= PATIENCE_S:
            self.hopeless.add(self._busy_with)
        return True
