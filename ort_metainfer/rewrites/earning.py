"""Mixed precision that is earned: nodes go back to float, most sensitive first, until the outputs are near enough."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ort_metainfer.errors import InputsError
from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.sampling import held_back
from ort_metainfer.rewrites.sensitivity import Sensitivity, sensitivity_of
from ort_metainfer.rewrites.variants import Variants, macs_of
from ort_metainfer.strategy import Transform
from ort_metainfer.trials.accuracy import Comparison

__all__ = ["LEAST_SHARE", "Earned", "Step", "earn"]

LEAST_SHARE = 0.25
"""Share of the multiply-accumulates that must stay quantised: below it nothing worth while is left."""

Feed = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One trial on the way.

    Attributes:
        excluded: nodes left in float.
        comparison: outputs against the float model's, on the judged feeds.
        share: of the multiply-accumulates that is quantised; None where not known.
        passed: whether that was near enough.
    """

    excluded: tuple[str, ...]
    comparison: Comparison
    share: float | None
    passed: bool

    def describe(self) -> str:
        """One line for people."""
        words = [f"{len(self.excluded)} nodes in float: error {self.comparison.error:.1e}"]
        words += [] if self.comparison.top1 is None else [f"top-1 {self.comparison.top1:.1%}"]
        words += [] if self.share is None else [f"{self.share:.0%} of the work quantised"]
        words += [self.comparison.mismatch] if self.comparison.mismatch else []
        return ", ".join([*words, "passed" if self.passed else "not near enough"])


@dataclass(frozen=True)
class Earned:
    """What came of it.

    Attributes:
        passed: whether the transform keeps to the tolerance.
        detail: why, in one sentence.
        steps: trials in the order they were made.
        sensitivity: what each node does; None where nothing had to be left out, or time ran out.
        calibrated: feeds it was calibrated on.
        judged: feeds it was judged on; the same ones where there were too few to hold some back.
    """

    passed: bool
    detail: str
    steps: tuple[Step, ...]
    sensitivity: Sensitivity | None
    calibrated: int
    judged: int

    @property
    def final(self) -> Step | None:
        """The trial of the transform that is returned."""
        return next((step for step in reversed(self.steps) if step.passed == self.passed), None)

    def table(self, count: int = 10) -> str:
        """The steps, and the worst nodes."""
        lines = [step.describe() for step in self.steps]
        if self.sensitivity is not None:
            lines += ["most sensitive:", self.sensitivity.table(count), *self.sensitivity.notes]
        return "\n".join([self.detail, *lines])


def earn(
    model_file: Path,
    rewrite: Rewrite,
    parameters: Mapping[str, Any],
    feeds: Sequence[Feed],
    tolerance: float,
    top1: float = 0.99,
    deadline: float | None = None,
    folder: Path | None = None,
) -> tuple[Transform, Earned]:
    """Find what must stay in float for a lossy rewrite to keep to a tolerance, judged on the CPU provider.

    Everything is tried first; then 1, 2, 4, ... of the most sensitive nodes are left out, then between the last two.

    Args:
        model_file: the float model.
        rewrite: one with parameters ``exclude`` and ``only``.
        parameters: its other parameters; nodes in ``exclude`` stay excluded.
        feeds: real inputs; of four or more, one in four is not calibrated on and judged by alone.
        tolerance: largest relative L2 error of an output.
        top1: least share of rows whose largest element stays, where an output looks like scores.
        deadline: a time.monotonic() value; what was found by then is returned.
        folder: for temporary files; None makes one and removes it.

    Returns:
        The transform to use (the last tried where none passed), and how it came about.

    Raises:
        InputsError: no feeds.
        RewriteError: the model or the rewrite fails.
    """
    if not feeds:
        raise InputsError(f"{model_file}: lossy precision is judged on real inputs, and there are none: give some")
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return earn(model_file, rewrite, parameters, feeds, tolerance, top1, deadline, Path(made))
    calibrated, judged = held_back(feeds)
    variants = Variants(Path(model_file), rewrite, parameters, calibrated, judged, folder, deadline)
    return _Search(variants, tolerance, top1, len(calibrated)).run()


class _Search:
    """The trials of one call of :func:`earn`."""

    def __init__(self, variants: Variants, tolerance: float, top1: float, calibrated: int) -> None:
        self._variants, self._tolerance, self._top1, self._calibrated = variants, tolerance, top1, calibrated
        self._given = list(variants.parameters.get("exclude", ()))
        self._steps: list[Step] = []
        self._macs = macs_of(variants.float_file, variants.judged[0])
        self._sensitivity: Sensitivity | None = None

    def run(self) -> tuple[Transform, Earned]:
        """All of it."""
        if self._try(0).passed:
            return self._answer("everything that can be is quantised and near enough")
        if self._variants.left_s() <= 0:
            return self._answer("time was up after the first trial")
        self._sensitivity = sensitivity_of(self._variants)
        most = len(self._sensitivity.nodes) - 1  # with all of them in float there is nothing to try
        low, high = 0, None
        count = 1
        while high is None and low < most and self._variants.left_s() > 0:
            count = min(count, most)
            if self._try(count).passed:
                high = count
            else:
                low, count = count, 2 * count
                if self._worthless(self._steps[-1]):
                    break
        while high is not None and high - low > 1 and self._variants.left_s() > 0:
            middle = (low + high) // 2
            low, high = (low, middle) if self._try(middle).passed else (middle, high)
        return self._verdict(high)

    def _verdict(self, high: int | None) -> tuple[Transform, Earned]:
        if high is None:
            late = self._variants.left_s() <= 0
            return self._answer("time was up before one was near enough" if late else self._hopeless())
        best = min((step for step in self._steps if step.passed), key=lambda step: len(step.excluded))
        if self._worthless(best):
            return self._answer(f"near enough, but only with {best.share or 0:.0%} of the work quantised", best, False)
        return self._answer(f"near enough with {len(best.excluded) - len(self._given)} nodes left in float", best)

    def _hopeless(self) -> str:
        words = f"with {len(self._steps[-1].excluded) - len(self._given)} nodes in float it is not near enough"
        return f"nothing worth quantising is left: {words}"

    def _worthless(self, step: Step) -> bool:
        return step.share is not None and step.share < LEAST_SHARE

    def _try(self, count: int) -> Step:
        """Quantise with the ``count`` most sensitive nodes left out, and compare."""
        order = [] if self._sensitivity is None else [node.node for node in self._sensitivity.worst(count)]
        excluded = [*self._given, *order]
        file = self._variants.quantise(exclude=excluded)
        if file is None:
            step = Step(tuple(excluded), Comparison(), 0.0, False)
        else:
            comparison = self._variants.compare(file)
            step = Step(tuple(excluded), comparison, self._share(order), self._near(comparison))
        self._steps.append(step)
        return step

    def _near(self, comparison: Comparison) -> bool:
        if comparison.mismatch is not None or not comparison.error <= self._tolerance:
            return False
        return comparison.top1 is None or comparison.top1 >= self._top1

    def _share(self, order: Sequence[str]) -> float | None:
        """Share of all multiply-accumulates that is quantised."""
        total = sum(self._macs.values())
        if self._sensitivity is None or not total:
            return None
        return sum(node.macs for node in self._sensitivity.nodes if node.node not in order) / total

    def _answer(self, detail: str, step: Step | None = None, passed: bool | None = None) -> tuple[Transform, Earned]:
        step = step or self._steps[-1]
        good = step.passed if passed is None else passed
        excluded = list(step.excluded)
        transform = self._variants.transform(exclude=excluded) if excluded else self._variants.transform()
        judged = len(self._variants.judged)
        return transform, Earned(good, detail, tuple(self._steps), self._sensitivity, self._calibrated, judged)
