"""What the cost model rests on beside a model's features: its work, its operators' times, the devices' profiles.

Profiles are read from the cache and never measured here. Work and times are asked of a child once for each model and
shapes, within a small share of the budget, and kept in the cache; where they cannot be had, a decision does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from ort_metainfer.errors import MetainferError, ProviderError
from ort_metainfer.model.work import NodeWork, OperatorTime
from ort_metainfer.problem import Device, SessionSpec
from ort_metainfer.trials.task import Setup

if TYPE_CHECKING:
    from ort_metainfer.hardware.profile import Profile
    from ort_metainfer.strategy_cache.store import StrategyCache

__all__ = ["Groundwork"]

WORKLOADS, OPERATORS = "workloads", "operators"
SCHEMA = 1
"""Raised when a field of what is kept changes meaning."""

MOST_NODES = 20_000
"""Larger models' work is not kept: a row of some ten megabytes costs more than working it out again."""

WORK_SHARE = 0.15
OPERATORS_SHARE = 0.1
"""Shares of the time left that asking a child may take. What is cut off is lost, and asked again next time: 3,600 nodes
take some 1.3 s."""

OPERATORS_MIN_S = 5.0
"""Below this much time left, onnxruntime's profiler is not asked: its session takes a trial's time."""

NEUTRAL_WORK = NodeWork("", "", "", None).as_dict()

T = TypeVar("T")


class Groundwork:
    """Looks up or asks for what a problem holds beside its graph. Nothing of it raises for what a child may do.

    Args:
        cache: where it is kept.
        host: a trial host; one without ``inquire`` (that reckons, or a test's) is asked nothing.
        until: a share of the time left -> the deadline for it.
        left_s: seconds left.
        session_s: what a session of the model took that was created and run, in seconds: where that is more than the
            profiler's share, the profiler would be asked in vain.
    """

    def __init__(
        self,
        cache: StrategyCache,
        host: object,
        until: Callable[[float], float],
        left_s: Callable[[], float],
        session_s: float = 0.0,
    ) -> None:
        self._cache, self._until, self._left_s, self._session_s = cache, until, left_s, session_s
        self._inquire: Callable[..., dict[str, Any]] | None = getattr(host, "inquire", None)

    def profiles(self, devices: Sequence[Device]) -> dict[str, Profile]:
        """Provider -> the kept profile of its first device, under the versions that are here now."""
        from ort_metainfer.hardware.profiles import PROFILES, known_profile, versions_of

        first = {device.provider: device for device in reversed(devices) if not device.simulated}
        if not first or not self._cache.keys(PROFILES):  # most machines were never probed
            return {}
        found: dict[str, Profile] = {}
        for provider, device in first.items():
            try:
                profile = known_profile(self._cache, device, versions_of(device))
            except ProviderError:  # a device without an adapter has no versions
                continue
            if profile is not None:
                found[provider] = profile
        return found

    def work(self, model: str, setup: Setup, shapes: Mapping[str, tuple[int, ...]]) -> tuple[NodeWork, ...]:
        """What one run does at ``shapes``; empty where it cannot be had."""

        def ask() -> list[dict[str, Any]]:
            sizes = {name: list(shape) for name, shape in shapes.items()}
            return self._asked("workload", setup, WORK_SHARE, shapes=sizes)["work"]  # type: ignore[no-any-return]

        return self._known(WORKLOADS, _key(model, shapes), ask, _work_from, _work_plain)

    def operators(
        self, model: str, setup: Setup, shapes: Mapping[str, tuple[int, ...]], devices: Sequence[Device]
    ) -> tuple[OperatorTime, ...]:
        """What each node of the caller's session takes; empty where it cannot be had, or there is little time."""
        import onnxruntime

        def ask() -> list[dict[str, Any]]:
            left_s = self._left_s()
            if left_s < OPERATORS_MIN_S or self._session_s > left_s * OPERATORS_SHARE:
                return []
            return self._asked("profile_operators", setup, OPERATORS_SHARE)["operators"]  # type: ignore[no-any-return]

        here = [str(device) for device in devices[:1]]
        key = _key(model, shapes, onnxruntime.__version__, *here, _session_text(setup.baseline))
        return self._known(OPERATORS, key, ask, lambda plain: OperatorTime(**plain), asdict)

    def _asked(self, do: str, setup: Setup, share: float, **more: Any) -> dict[str, Any]:
        assert self._inquire is not None  # asked about by _known
        return self._inquire(do, setup, self._until(share), **more)

    def _known(
        self,
        table: str,
        key: str,
        ask: Callable[[], list[dict[str, Any]]],
        read: Callable[[Mapping[str, Any]], T],
        plain: Callable[[Any], dict[str, Any]],
    ) -> tuple[T, ...]:
        """What is kept, else what a child says, which is then kept."""
        kept = self._cache.get(table, key)
        if kept is not None and kept.get("schema") == SCHEMA:
            try:
                return tuple(read(entry) for entry in kept["entries"])
            except (KeyError, TypeError, ValueError):  # written by another release, or damaged
                pass
        if self._inquire is None:
            return ()
        try:
            found = tuple(read(entry) for entry in ask())
        except MetainferError:  # the child had no time, or died over it: the decision goes on without
            return ()
        if 0 < len(found) <= MOST_NODES:
            self._cache.put(table, key, {"schema": SCHEMA, "entries": [plain(entry) for entry in found]})
        return found


def _key(model: str, shapes: Mapping[str, tuple[int, ...]], *more: str) -> str:
    sizes: Iterable[str] = (f"{name}[{','.join(map(str, shape))}]" for name, shape in sorted(shapes.items()))
    return "|".join([model, " ".join(sizes), *more])


def _session_text(spec: SessionSpec) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(spec.pinned().items()))


def _work_plain(node: NodeWork) -> dict[str, Any]:
    """A node's fields that are not as they mostly are."""
    return {name: value for name, value in node.as_dict().items() if value != NEUTRAL_WORK[name]}


def _work_from(plain: Mapping[str, Any]) -> NodeWork:
    return NodeWork.from_dict({**NEUTRAL_WORK, **plain})
