"""A point made ready on one device: with which options it is opened, and whether the provider does the work itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ort_metainfer.hardware.copying import CopyError, copy_runner
from ort_metainfer.hardware.micro_benchmarks import COPY_KINDS, ONE_THREAD, MicroBenchmark, named
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.bench import Refused, complaint
from ort_metainfer.trials.placement import RECORD_ASSIGNMENT, placement_of

__all__ = ["Opener", "is_taken", "strategy_for"]

EMPTY = "empty/float32/1"

FALLBACK = frozenset({"Cast", "DequantizeLinear", "MemcpyFromHost", "MemcpyToHost", "QuantizeLinear"})
"""Operators at a graph's border: that the CPU converts what comes in and goes out does not make the work the CPU's."""


def is_taken(session: Any, provider: str) -> bool | None:
    """Whether the provider runs the work of ``session`` itself; None where onnxruntime does not say."""
    placement = placement_of(session, provider)
    if placement is None or not placement.total:
        return None
    return placement.taken > 0 and all(operator in FALLBACK for operator in placement.left)


def strategy_for(provider: Any, device: str | None, point: MicroBenchmark) -> Strategy:
    """What a point's session is opened with: on a provider that computes in less unless told, float32 means float32.

    Args:
        provider: the adapter.
        device: the provider's own name for the device.
        point: whose type and configuration count.
    """
    wants_exact = point.dtype == "float32" and not point.configuration and provider.default_is_lossy
    exact = provider.exact if wants_exact else {}
    threads = {"intra_op_num_threads": 1} if point.configuration == ONE_THREAD else {}
    return Strategy(provider=provider.name, device=device, provider_options=exact, session_options=threads)


class Opener:
    """Makes points ready to run on one device: the effect, apart from who takes turns when.

    Args:
        provider: the adapter's name.
        device: the provider's own name for the device.
    """

    def __init__(self, provider: str, device: str | None) -> None:
        from ort_metainfer.providers import get_provider

        self.provider, self.device = get_provider(provider), device

    def warm_up(self) -> None:
        """Create the emptiest session: the provider's library is loaded and its device woken before steps are limited.

        Raises:
            ProviderError: the provider cannot be used here.
        """
        with contextlib.suppress(Refused):
            self.open(named(EMPTY))

    def open(self, point: MicroBenchmark) -> tuple[Callable[[], object], bool | None]:
        """A function that runs the point once, and whether the provider itself does the work.

        Raises:
            Refused: it cannot be created.
            ProviderError: the provider cannot be used here.
        """
        if point.kind in COPY_KINDS:
            return self._copy(point), True
        assert point.build is not None
        micro = point.build()
        session = self._session(micro.model, strategy_for(self.provider, self.device, point))
        run, feeds = session.run, dict(micro.feeds)
        return lambda: run(None, feeds), is_taken(session, self.provider.name)

    def _copy(self, point: MicroBenchmark) -> Callable[[], object]:
        empty = named(EMPTY)
        assert empty.build is not None
        session = self._session(empty.build().model, strategy_for(self.provider, self.device, empty))
        if not is_taken(session, self.provider.name):
            raise Refused("the provider left the session that names its memory to the CPU")
        try:
            return copy_runner(session, int(point.work), to_device=point.kind == "to_device")
        except CopyError as error:
            raise Refused(str(error)) from error

    def _session(self, model: bytes, strategy: Strategy) -> Any:
        from ort_metainfer.errors import MetainferError
        from ort_metainfer.options import open_session

        try:
            return open_session(model, SessionSpec(), strategy, {RECORD_ASSIGNMENT: "1"})
        except MetainferError:
            raise
        except Exception as error:
            raise Refused(complaint(error)) from error
