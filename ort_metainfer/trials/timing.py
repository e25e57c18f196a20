"""Statistics of interleaved timing: paired log ratios, their distribution-free intervals, and when to stop. Pure.

A *round* gives every session one turn; a *turn* yields one figure, by default the median of its runs. Sessions are
compared within a round only, so that whatever slows the machine down for a second slows both sides of a ratio.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ort_metainfer.decision import Timing

__all__ = [
    "LOOKS",
    "MAX_ROUNDS",
    "MIN_ROUNDS",
    "Interval",
    "Rounds",
    "Turn",
    "compare",
    "interleave",
    "interval_of_median",
    "is_clear",
    "is_trustworthy",
    "log_ratios",
    "look_allowance",
    "quantile",
    "still_in",
    "still_within",
]

LOOKS = (5, 8, 12, 18, 27, 40)
"""Rounds after which results are looked at. Each look grows by half, so that few looks share the error allowed."""

MIN_ROUNDS = LOOKS[0]
MAX_ROUNDS = LOOKS[-1]

TIE = 0.02
"""Candidates whose paired ratio to the leader is within this are as good as the leader."""


@dataclass(frozen=True)
class Turn:
    """One session's turn.

    Attributes:
        runs_ms: each timed run.
        cpu_ms: process CPU time over them, of one run.
        switches: involuntary context switches meanwhile.
        share: the turn's figure is the latency that this share of the runs does not exceed: the median's 0.5, 0.99.
        pace_ms: wall time over the number of runs, where several callers shared them; then that is the turn's figure.
    """

    runs_ms: tuple[float, ...]
    cpu_ms: float | None = None
    switches: int | None = None
    share: float = 0.5
    pace_ms: float | None = None

    @property
    def median_ms(self) -> float:
        """The middle of its runs."""
        return median(self.runs_ms)

    @property
    def figure_ms(self) -> float:
        """What the turn is judged by: less is better."""
        if self.pace_ms is not None:
            return self.pace_ms
        return self.median_ms if self.share == 0.5 else quantile(self.runs_ms, self.share)

    def as_dict(self) -> dict[str, object]:
        """Plain values, as they stand in JSON."""
        plain: dict[str, object] = {"runs_ms": list(self.runs_ms), "cpu_ms": self.cpu_ms, "switches": self.switches}
        if self.share != 0.5:
            plain["share"] = self.share
        return plain if self.pace_ms is None else plain | {"pace_ms": self.pace_ms}

    @classmethod
    def from_dict(cls, plain: Mapping[str, object]) -> Turn:
        """The inverse of :meth:`as_dict`."""
        runs = plain["runs_ms"]
        assert isinstance(runs, list)
        cpu, switches, pace, share = (plain.get(name) for name in ("cpu_ms", "switches", "pace_ms", "share"))
        return cls(
            tuple(float(run) for run in runs),
            float(cpu) if isinstance(cpu, int | float) else None,
            int(switches) if isinstance(switches, int) else None,
            float(share) if isinstance(share, int | float) else 0.5,
            float(pace) if isinstance(pace, int | float) else None,
        )


Rounds = Sequence[Mapping[str, Turn]]
"""One mapping of session name to turn for each round."""


@dataclass(frozen=True)
class Interval:
    """A median with its interval, in log units; ``coverage`` is the confidence it really has."""

    middle: float
    low: float
    high: float
    coverage: float


def quantile(values: Sequence[float], q: float) -> float:
    """The value that a share ``q`` of ``values`` does not exceed (nearest rank: always one of the values)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def interval_of_median(values: Sequence[float], error: float) -> Interval:
    """The distribution-free interval of the median between two order statistics.

    The number of values below the true median is binomial(n, 1/2) whatever their distribution, so the k-th smallest and
    the k-th largest enclose it but for 2 P(B < k). With too few values for ``error`` the interval is the whole range,
    and ``coverage`` says what that is worth (five values: 0.9375).

    Args:
        values: independent observations; at least one.
        error: two-sided error probability allowed.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank, tail = 1, 0.5**count
    term = tail
    while rank < count / 2:
        term *= (count - rank + 1) / rank
        if 2 * (tail + term) > error:
            break
        tail += term
        rank += 1
    return Interval(median(ordered), ordered[rank - 1], ordered[count - rank], max(0.0, 1 - 2 * tail))


def look_allowance(rounds: int, confidence: float, final: bool = False) -> float:
    """The two-sided error that a look after ``rounds`` rounds may spend of the whole ``1 - confidence``.

    Bonferroni over ``LOOKS``; a final look (the time is up) may spend what later looks now never will.
    """
    share = (1 - confidence) / len(LOOKS)
    taken = sum(look < rounds for look in LOOKS)
    return share * max(1, len(LOOKS) - taken) if final else share


def is_trustworthy(rounds: int, confidence: float) -> bool:
    """Whether an interval over so many rounds can have the confidence asked for."""
    return rounds >= 1 and 2 * 0.5**rounds <= look_allowance(rounds, confidence, final=True)


def is_clear(low: float, high: float, bar: float) -> bool:
    """Whether a range lies so far above ``bar`` that few rounds suffice: further than it is wide, in log units.

    For ranges over at least five rounds. With a true ratio at the bar this happens in 0.07% of cases for normal and
    0.03% for Laplace noise (simulated, 200,000 ranges of five), well under the error of one look at 95%.
    """
    return low > bar and math.log(low / bar) > math.log(high / low)


def log_ratios(rounds: Rounds, above: Sequence[str], below: Sequence[str], cpu: bool = False) -> list[float]:
    """Per round: mean log of the sessions ``above`` minus mean log of those ``below``; rounds that lack one are left
    out. Of CPU time instead of wall time where ``cpu``; rounds without a CPU figure are left out then."""
    ratios = []
    for turns in rounds:
        figures = [_figure(turns.get(name), cpu) for name in (*above, *below)]
        known = [math.log(figure) for figure in figures if figure is not None and figure > 0]
        if len(known) == len(figures):
            split = len(above)
            ratios.append(sum(known[:split]) / split - sum(known[split:]) / len(below))
    return ratios


def _figure(turn: Turn | None, cpu: bool) -> float | None:
    if turn is None:
        return None
    return turn.cpu_ms if cpu else turn.figure_ms


def compare(
    rounds: Rounds, candidate: Sequence[str], baseline: Sequence[str], confidence: float, final: bool = True
) -> Timing | None:
    """Candidate sessions against baseline sessions; None where no round holds them all.

    The A/A band comes from every pair of identical sessions: two baselines, and two candidates where there are two.

    Args:
        rounds: as measured.
        candidate: names of one or two identical candidate sessions.
        baseline: names of one or two identical baseline sessions.
        confidence: of the interval, after correction for repeated looks.
        final: whether no further look will follow.
    """
    ratios = log_ratios(rounds, baseline, candidate)
    if not ratios:
        return None
    error = look_allowance(len(ratios), confidence, final)
    speedup = interval_of_median(ratios, error)
    base, own = _all_turns(rounds, baseline, candidate), _all_turns(rounds, candidate, baseline)
    base_ms, own_ms = ([run for turn in turns for run in turn.runs_ms] for turns in (base, own))
    cpu = log_ratios(rounds, baseline, candidate, cpu=True)
    return Timing(
        rounds=len(ratios),
        baseline_p50_ms=quantile(base_ms, 0.5),
        baseline_p90_ms=quantile(base_ms, 0.9),
        p50_ms=quantile(own_ms, 0.5),
        p90_ms=quantile(own_ms, 0.9),
        speedup=math.exp(speedup.middle),
        speedup_low=math.exp(speedup.low),
        speedup_high=math.exp(speedup.high),
        band=math.exp(max(_apart(rounds, pair, error) for pair in (baseline, candidate))),
        cpu_ratio=math.exp(median(cpu)) if cpu else None,
        **_more_figures(base, own),
    )


def _more_figures(base: Sequence[Turn], own: Sequence[Turn]) -> dict[str, float]:
    """What turns of the objectives ``tail`` and ``throughput`` tell besides: P99 over all runs, the median rate."""
    figures: dict[str, float] = {}
    for prefix, turns in (("baseline_", base), ("", own)):
        if all(turn.share != 0.5 for turn in turns):
            figures[f"{prefix}p99_ms"] = quantile([run for turn in turns for run in turn.runs_ms], 0.99)
        paces = [turn.pace_ms for turn in turns if turn.pace_ms]
        if len(paces) == len(turns):
            figures[f"{prefix}runs_per_s"] = 1000 / median(paces)
    return figures


def _all_turns(rounds: Rounds, names: Sequence[str], others: Sequence[str]) -> list[Turn]:
    whole = [turns for turns in rounds if all(name in turns for name in (*names, *others))]
    return [turns[name] for turns in whole for name in names]


def _apart(rounds: Rounds, pair: Sequence[str], error: float) -> float:
    """How far two identical sessions lie apart: the far end of their interval, in log units; 0 for a single one."""
    if len(pair) < 2:
        return 0.0
    interval = interval_of_median(log_ratios(rounds, pair[:1], pair[1:]), error)
    return max(abs(interval.low), abs(interval.high))


def interleave(names: Iterable[str], generator: random.Random) -> list[str]:
    """The order of one round: every session once, at random."""
    order = list(names)
    generator.shuffle(order)
    return order


def still_in(
    rounds: Rounds, candidates: Sequence[str], baseline: Sequence[str], confidence: float, min_speedup: float
) -> tuple[list[str], bool]:
    """A race's look: which candidates stay, and whether it is over.

    Out is a candidate that is slower than the baseline, or than the leader, by its whole interval. It is over when
    none is left, or when all that are left tie with the leader and are decided (wholly on one side of what is asked).
    Between looks nobody leaves.
    """
    if len(rounds) not in LOOKS or not candidates:
        return list(candidates), not candidates
    timings = {name: compare(rounds, [name], baseline, confidence, final=False) for name in candidates}
    known = {name: timing for name, timing in timings.items() if timing is not None}
    staying = [name for name in known if known[name].speedup_high >= 1]
    if not staying:
        return [], True
    leader = max(staying, key=lambda name: known[name].speedup)
    error = look_allowance(len(rounds), confidence)
    behind = {name: interval_of_median(log_ratios(rounds, [name], [leader]), error) for name in staying}
    staying = [name for name in staying if name == leader or behind[name].low <= 0]
    decided = all(
        _is_decided(known[name], min_speedup, confidence) and (name == leader or behind[name].high <= math.log1p(TIE))
        for name in staying
    )
    return staying, decided or len(rounds) >= MAX_ROUNDS


def still_within(
    rounds: Rounds, candidates: Sequence[str], baseline: Sequence[str], confidence: float, max_slowdown: float
) -> tuple[list[str], bool]:
    """A look at who keeps a bound on latency: who stays, and whether it is over.

    Out is a candidate that takes longer than allowed by its whole interval; it is over when the others' intervals lie
    wholly within.
    """
    if len(rounds) not in LOOKS or not candidates:
        return list(candidates), not candidates
    timings = {name: compare(rounds, [name], baseline, confidence, final=False) for name in candidates}
    staying = {name: timing for name, timing in timings.items() if timing and timing.speedup_high >= 1 / max_slowdown}
    decided = all(timing.speedup_low >= 1 / max_slowdown for timing in staying.values())
    return list(staying), decided or len(rounds) >= MAX_ROUNDS


def _is_decided(timing: Timing, min_speedup: float, confidence: float) -> bool:
    """Whether the interval lies wholly on one side of what is asked, the A/A band included."""
    bar = max(timing.band, min_speedup)
    if timing.speedup_high < min_speedup:
        return True
    if timing.speedup_low <= bar:
        return False
    trusted = 2 * 0.5**timing.rounds <= look_allowance(timing.rounds, confidence)
    return trusted or is_clear(timing.speedup_low, timing.speedup_high, bar)
