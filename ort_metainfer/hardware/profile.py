"""A device described by named features: static facts, probe figures, what each strategy does on reference networks.

Data only; made by :mod:`~ort_metainfer.hardware.probe` and :mod:`~ort_metainfer.hardware.fingerprint`, kept in the
cache's table ``profiles``. A feature that is not known is not there: never a zero, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ort_metainfer.problem import Device, HardwareState

__all__ = ["SCHEMA", "Feature", "Measurement", "Profile", "ReferenceTiming"]

SCHEMA = 1
"""Raised when a feature's name, unit or way of measuring changes; profiles of other schemas are not compared."""


@dataclass(frozen=True)
class Feature:
    """One named figure of a device.

    Attributes:
        name: for instance ``peak_macs_per_s/float32`` or ``transfer_to_device_bytes_per_s``.
        value: in ``unit``.
        unit: ``MAC/s``, ``B/s``, ``ms``, ``B``, ``MHz``, ``1`` (a count, a share, a flag), ``ln`` (a log ratio).
        origin: ``static`` (told by the system), ``probe``, ``fingerprint``, ``derived`` (from several of these) or
            ``simulated``.
        spread: relative interquartile range over repetitions; None where it was not measured.
        flag: why it should not be trusted (unsteady, disturbed, a toolchain effect); None where nothing speaks against.
    """

    name: str
    value: float
    unit: str
    origin: Literal["static", "probe", "fingerprint", "derived", "simulated"]
    spread: float | None = None
    flag: str | None = None


@dataclass(frozen=True)
class Measurement:
    """One micro-benchmark at one size: a point of a curve.

    Attributes:
        name: ``kind/dtype/size``, for instance ``matmul/float32/1024`` or ``conv3x3/float32/64x56``.
        work: what one run does, in ``work_unit``.
        work_unit: ``MAC`` or ``B`` (bytes moved), empty where a run does no such work (the empty graph).
        p50_ms: median wall time of one run; None where the provider refused it.
        p90_ms: its 90th percentile.
        spread: relative interquartile range, (q75 - q25) / median.
        runs: timed runs.
        taken: whether the provider itself ran it; False where it fell back to the CPU.
        flag: why it should not be trusted; None where nothing speaks against it.
        refusal: onnxruntime's words where it could not be created or run.
    """

    name: str
    work: float
    work_unit: str
    p50_ms: float | None = None
    p90_ms: float | None = None
    spread: float | None = None
    runs: int = 0
    taken: bool = True
    flag: str | None = None
    refusal: str | None = None

    @property
    def rate(self) -> float | None:
        """Work per second; None where there is no work or it was not timed."""
        return self.work / (self.p50_ms / 1000) if self.p50_ms and self.work_unit else None


@dataclass(frozen=True)
class ReferenceTiming:
    """One reference network under one strategy of the fixed list.

    Attributes:
        network: its name.
        strategy: the strategy's name in the fixed list.
        p50_ms: median wall time of one run; None where the strategy failed on this network.
        spread: relative interquartile range.
        log_ratio: ln(p50 / geometric mean of p50 over the strategies that ran this network, emulated ones left out);
            negative is fast.
        creation_ms: time to create the session.
        error: worst relative L2 against the CPU provider.
        taken: share of nodes that the strategy's provider took; None where onnxruntime does not say.
        refusal: why there are no figures; None where there are.
        flag: why they should not be trusted.
    """

    network: str
    strategy: str
    p50_ms: float | None = None
    spread: float | None = None
    log_ratio: float | None = None
    creation_ms: float | None = None
    error: float | None = None
    taken: float | None = None
    refusal: str | None = None
    flag: str | None = None


@dataclass(frozen=True)
class Profile:
    """All that is known of one device under one set of versions.

    Attributes:
        device: which.
        versions: onnxruntime's, the provider's and the driver's: figures of other versions are another profile.
        features: the feature vector.
        measurements: the probe's curves.
        references: the fingerprint.
        operators: operator -> whether the provider took it when it was tried; operators not tried are not there.
        before: what else the machine did before the probe.
        after: and after.
        measured_at: ISO 8601 date of the probe; empty where nothing was measured.
        seconds: how long measuring took.
        simulated: whether the figures come from a description and an analytic model, not from hardware.
        schema: see :data:`SCHEMA`.
    """

    device: Device
    versions: Mapping[str, str]
    features: tuple[Feature, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    references: tuple[ReferenceTiming, ...] = ()
    operators: Mapping[str, bool] = field(default_factory=dict)
    before: HardwareState | None = None
    after: HardwareState | None = None
    measured_at: str = ""
    seconds: float = 0.0
    simulated: bool = False
    schema: int = SCHEMA

    @property
    def key(self) -> str:
        """Where it is kept: provider, its own name for the device, the device, and every version."""
        versions = ",".join(f"{name}={version}" for name, version in sorted(self.versions.items()))
        return "|".join([self.device.provider, self.device.provider_device or "", str(self.device), versions])

    def __getitem__(self, name: str) -> Feature:
        """The feature of that name.

        Raises:
            KeyError: it is not known of this device.
        """
        for feature in self.features:
            if feature.name == name:
                return feature
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(feature.name == name for feature in self.features)

    def values(self) -> Iterator[tuple[str, float]]:
        """Name and value of every feature that nothing speaks against: what learners take."""
        return ((feature.name, feature.value) for feature in self.features if feature.flag is None)

    def with_features(self, *features: Feature) -> Profile:
        """This profile with more features; one of the same name is replaced."""
        new = {feature.name for feature in features}
        return replace(self, features=(*(f for f in self.features if f.name not in new), *features))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Profile:
        """The inverse of :meth:`as_dict`, also after a trip through JSON.

        Raises:
            KeyError, TypeError: something is missing, or there is something that a profile does not have.
        """
        device = plain["device"]
        states = {name: plain.get(name) for name in ("before", "after")}
        return cls(
            **{
                **plain,
                "device": Device(**{**device, "features": tuple(device["features"])}),
                "features": tuple(Feature(**feature) for feature in plain["features"]),
                "measurements": tuple(Measurement(**point) for point in plain["measurements"]),
                "references": tuple(ReferenceTiming(**timing) for timing in plain["references"]),
                **{name: None if state is None else HardwareState.from_dict(state) for name, state in states.items()},
            }
        )
