"""The inputs that trials run on: the caller's, else those captured of earlier runs, else made-up ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ort_metainfer.errors import InputsError
from ort_metainfer.problem import Graph
from ort_metainfer.settings import Settings
from ort_metainfer.trials.task import Feeds, Setup, TrialHost

__all__ = ["CAPTURED", "Feeding"]

CAPTURED = "captured from earlier runs"

INPUTS_SHARE = 0.3
"""Share of the time left after which no further item is taken from the caller's inputs."""

PREPARE_SHARE = 0.5
"""Share of the time left that running the model on its inputs may take."""


@dataclass
class Feeding:
    """Gets the inputs of one decision.

    Attributes:
        settings: the caller's.
        model_hash: what captured inputs lie under.
        host: checks inputs against the model, or makes some up.
        directory: of the cache.
        until: a deadline at a share of the time that is left.
        say: told what is going on.
        has_captured: whether there were captured inputs to try.
    """

    settings: Settings
    model_hash: str
    host: TrialHost
    directory: Path
    until: Callable[[float], float]
    say: Callable[[str], None]
    has_captured: bool = field(default=False, init=False)

    def prepare(self, setup: Setup, graph: Graph) -> Feeds:
        """Lay inputs into the folder of ``setup``, and what the model answers.

        Raises:
            InputsError: the caller's inputs do not fit the model, or none can be made up.
            TrialTimeout: the time was up before.
        """
        from ort_metainfer.model.inputs import caller_feeds, save_feeds

        if self.settings.inputs is not None:
            save_feeds(caller_feeds(self.settings.inputs, graph, until=self.until(INPUTS_SHARE)), setup.feeds)
            return self._checked(setup)
        return self._captured(setup, graph) or self._checked(setup)

    def _checked(self, setup: Setup) -> Feeds:
        """With what lies in the folder, or made-up inputs where nothing does."""
        self.say("checking the inputs")
        return self.host.prepare(setup, self.until(PREPARE_SHARE))

    def _captured(self, setup: Setup, graph: Graph) -> Feeds | None:
        """With inputs kept of earlier runs; None where there are none, or they do not fit the model."""
        from ort_metainfer.model.capture import Reservoir
        from ort_metainfer.model.inputs import save_feeds

        reservoir = Reservoir(self.directory, self.model_hash)
        feeds = reservoir.feeds(graph, self.settings.input_shapes)
        if not feeds:
            return None
        save_feeds(feeds, setup.feeds)
        self.has_captured = True
        try:
            return replace(self._checked(setup), origin=CAPTURED)
        except InputsError:
            save_feeds([], setup.feeds)
        with_others = self._checked(setup)
        with suppress(OSError):  # they are of no use: they would make each start decide anew
            reservoir.delete()
        return with_others
