"""A float model in variants of one lossy rewrite, each compared with the float outputs on the CPU provider."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ort_metainfer.errors import RewriteError
from ort_metainfer.rewrites.base import Context, Rewrite
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.observing import plain_session
from ort_metainfer.strategy import Transform
from ort_metainfer.trials.accuracy import Comparison, compare_outputs

__all__ = ["Variants", "macs_of"]

Feed = Mapping[str, Any]


class Variants:
    """One float model, one lossy rewrite, some feeds: quantising it in variants and comparing with the float outputs.

    Args:
        model_file: the float model.
        rewrite: what quantises it; with parameters ``exclude`` and ``only``.
        parameters: its other parameters.
        calibrated: feeds it may look at.
        judged: feeds it is compared on.
        folder: for files; what is calibrated is kept there.
        deadline: a time.monotonic() value.

    Attributes:
        float_file: the float model as the rewrite prepares it, whose node names count.
        reference: outputs of the original on the judged feeds.

    Raises:
        RewriteError: the model does not run.
    """

    def __init__(
        self,
        model_file: Path,
        rewrite: Rewrite,
        parameters: Mapping[str, Any],
        calibrated: Sequence[Feed],
        judged: Sequence[Feed],
        folder: Path,
        deadline: float | None = None,
    ) -> None:
        from ort_metainfer.model.graph import describe

        self.rewrite, self.parameters, self.judged = rewrite, dict(parameters), list(judged)
        self.context = Context(folder, describe(model_file), tuple(calibrated), feeds_are_real=True, deadline=deadline)
        self.deadline = deadline
        self._model_file = model_file
        session = plain_session(model_file)
        self.names = [output.name for output in session.get_outputs()]
        self.reference = self._outputs(session, self.judged)
        prepare: Callable[..., Path] | None = getattr(rewrite, "prepared", None)
        self.float_file = model_file if prepare is None else prepare(model_file, folder, self.parameters)

    def left_s(self) -> float:
        """Seconds left; infinite without a deadline."""
        return self.context.left_s()

    def until(self, share: float) -> float:
        """The time.monotonic() value at which so much of the time that is left will be used."""
        return time.monotonic() + share * self.left_s()

    def transform(self, **given: Any) -> Transform:
        """The rewrite as a strategy's entry."""
        return self.rewrite.transform(**{**self.parameters, **given})

    def quantise(self, **given: Any) -> Path | None:
        """A file with the model quantised, valid until the next one; None where that left nothing quantised."""
        draft = Draft(self._model_file, self.context.folder)
        outcome = self.rewrite.rewrite(draft, self.context, self.rewrite.complete(self.transform(**given)))
        return draft.file() if outcome.changed else None

    def compare(self, file: Path, feeds: int | None = None) -> Comparison:
        """Its outputs against the float model's, on the first ``feeds`` judged feeds or all."""
        some = self.judged[:feeds]
        outputs = self._outputs(plain_session(file), some)
        return compare_outputs(self.names, self.reference[: len(some)], outputs, scores=self.context.graph.scores)

    def error(self, feeds: int | None = None, **given: Any) -> float:
        """Worst relative L2 error of an output, everything quantised that ``given`` says; 0 where nothing is."""
        file = self.quantise(**given)
        if file is None:
            return 0.0
        comparison = self.compare(file, feeds)
        return math.inf if comparison.mismatch else comparison.error

    def _outputs(self, session: Any, feeds: Iterable[Feed]) -> list[Any]:
        try:
            return [session.run(None, dict(feed)) for feed in feeds]
        except Exception as error:  # onnxruntime's many classes
            raise RewriteError(f"{self._model_file}: does not run: {error}") from error


def macs_of(file: Path, feed: Feed) -> dict[str, int]:
    """Value -> multiply-accumulates of the node that makes it, for the shapes of a feed."""
    from ort_metainfer.model.inference import infer, skeleton
    from ort_metainfer.model.macs import node_macs
    from ort_metainfer.model.parsing import parse
    from ort_metainfer.model.shapes import Scope

    shapes = {name: tuple(np.shape(value)) for name, value in feed.items()}
    inferred, _ = infer(skeleton(parse(file)), shapes)
    scope = Scope.of(inferred.graph)
    counts = ((node.output[0], node_macs(node, scope)) for node in inferred.graph.node if node.output)
    return {name: count for name, count in counts if count}
