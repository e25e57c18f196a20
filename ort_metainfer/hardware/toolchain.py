"""Two profiles of one device: what another version of the software changed, and what does not repeat. Pure.

A figure that changes with a release of onnxruntime, a provider or a driver says something about the software: it must
not be learnt as a property of the hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ort_metainfer.hardware.profile import Feature, Profile
from ort_metainfer.hardware.reference_figures import STEADY

__all__ = [
    "EFFECT",
    "NOT_REPEATABLE",
    "Change",
    "ToolchainEffect",
    "changes",
    "flag_effects",
    "flag_unrepeatable",
    "is_same_device",
    "toolchain_effects",
]

EFFECT = "toolchain effect"
NOT_REPEATABLE = "not repeatable"

MEASURED = ("probe", "fingerprint", "derived")


@dataclass(frozen=True)
class ToolchainEffect:
    """A figure that another version of the software changed.

    Attributes:
        feature: its name.
        before: under the first versions, in ``unit``.
        after: under the second.
        ratio: after / before; e to their difference where the figure is a logarithm.
        unit: of the figures.
        versions: what differs: name -> (first version, second version); empty text where one does not have it.
    """

    feature: str
    before: float
    after: float
    ratio: float
    unit: str
    versions: Mapping[str, tuple[str, str]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        return asdict(self)

    def describe(self) -> str:
        """``peak_macs_per_s/float32: 1.2e+11 MAC/s became 9e+10 (0.75x) with onnxruntime 1.31.1 -> 1.32.0``."""
        changed = ", ".join(
            f"{name} {then or 'absent'} -> {now or 'absent'}" for name, (then, now) in self.versions.items()
        )
        return (
            f"{self.feature}: {self.before:.3g} {self.unit} became {self.after:.3g} ({self.ratio:.2f}x) with {changed}"
        )


@dataclass(frozen=True)
class Change:
    """One figure of two profiles; ``ratio`` as in :class:`ToolchainEffect`, ``large`` where it is past 15%."""

    feature: str
    before: float
    after: float
    ratio: float
    unit: str
    large: bool


def changes(before: Profile, after: Profile) -> tuple[Change, ...]:
    """Every measured figure that two profiles of one device share, the largest change first."""
    if not is_same_device(before, after):
        return ()
    pairs = sorted(_pairs(before, after), key=lambda pair: -abs(pair[2]))
    return tuple(
        Change(now.name, then.value, now.value, math.exp(change), now.unit, abs(change) > math.log(STEADY))
        for then, now, change in pairs
    )


def is_same_device(first: Profile, second: Profile) -> bool:
    """Whether both are of one device of one provider, whatever the versions, and may be compared."""
    names = [
        (p.device.provider, p.device.provider_device, str(p.device), p.simulated, p.schema) for p in (first, second)
    ]
    return names[0] == names[1]


def toolchain_effects(before: Profile, after: Profile) -> tuple[ToolchainEffect, ...]:
    """Figures that differ by more than 15% between two profiles of one device under different versions.

    Features that something else speaks against already, in either profile, or whose own spread could explain the
    difference, are not charged to the software.
    """
    versions = _changed_versions(before, after)
    if not versions or not is_same_device(before, after):
        return ()
    return tuple(
        ToolchainEffect(then.name, then.value, now.value, ratio, now.unit, versions)
        for then, now, ratio in _apart(before, after)
        if _is_trusted(then, EFFECT) and _is_trusted(now, EFFECT)
    )


def flag_effects(profile: Profile, effects: Sequence[ToolchainEffect]) -> Profile:
    """``profile`` with the features that the software changed flagged, and so kept from learners."""
    told = {effect.feature: f"{EFFECT}: {effect.describe().partition(': ')[2]}" for effect in effects}
    return _flagged(profile, told)


def flag_unrepeatable(before: Profile, after: Profile) -> Profile:
    """``after`` with the features flagged that differ by more than 15% from ``before``; same device, same versions.

    Such a feature is flagged though each measurement of its own looked steady: nobody knows which one is right.
    """
    if _changed_versions(before, after) or not is_same_device(before, after):
        return after
    told = {
        now.name: f"{NOT_REPEATABLE}: {then.value:.3g} {then.unit} when it was measured before, {now.value:.3g} now"
        for then, now, _ in _apart(before, after, heed_spread=False)
    }
    return _flagged(after, told)


def _changed_versions(before: Profile, after: Profile) -> dict[str, tuple[str, str]]:
    names = sorted(set(before.versions) | set(after.versions))
    pairs = {name: (before.versions.get(name, ""), after.versions.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _apart(before: Profile, after: Profile, heed_spread: bool = True) -> Iterator[tuple[Feature, Feature, float]]:
    """Measured features that both have and that differ by more than 15%, with their ratio."""
    for then, now, change in _pairs(before, after):
        blur = (then.spread or 0.0) / 2 + (now.spread or 0.0) / 2 if heed_spread else 0.0
        if abs(change) > max(math.log(STEADY), math.log1p(blur)):
            yield then, now, math.exp(change)


def _pairs(before: Profile, after: Profile) -> Iterator[tuple[Feature, Feature, float]]:
    """Measured features that both have, with the natural logarithm of their ratio."""
    earlier = {feature.name: feature for feature in before.features if feature.origin in MEASURED}
    for now in after.features:
        then = earlier.get(now.name)
        if then is None or now.origin not in MEASURED or then.unit != now.unit:
            continue
        change = _log_change(then, now)
        if change is not None:
            yield then, now, change


def _log_change(then: Feature, now: Feature) -> float | None:
    """Natural logarithm of now / then; None where there is no such ratio, or it is beyond what JSON can hold."""
    if now.unit == "ln":
        change = now.value - then.value
    elif then.value > 0 and now.value > 0:
        change = math.log(now.value / then.value)
    else:
        return None
    return change if abs(change) < 700 else None


def _is_trusted(feature: Feature, but_for: str) -> bool:
    """Whether nothing speaks against it except, perhaps, an earlier flag of the kind that is being looked for."""
    return feature.flag is None or feature.flag.startswith(but_for)


def _flagged(profile: Profile, told: Mapping[str, str]) -> Profile:
    """Flags added, behind what was flagged before."""

    def one(feature: Feature) -> Feature:
        if feature.name not in told:
            return feature
        kept = [] if feature.flag is None or feature.flag.startswith((EFFECT, NOT_REPEATABLE)) else [feature.flag]
        return replace(feature, flag="; ".join([told[feature.name], *kept]))

    return replace(profile, features=tuple(one(feature) for feature in profile.features))
