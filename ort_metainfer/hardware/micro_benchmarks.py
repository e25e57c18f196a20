"""The probe's list: what is timed at which sizes, how much work one run does, and what comes first when time is short.

Names are ``kind/dtype/size``, with ``@configuration`` where it is not the default one: ``matmul/float32/512@1-thread``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

from ort_metainfer.hardware import micro_models
from ort_metainfer.hardware.micro_models import MicroModel

__all__ = ["BENCHMARKS", "ONE_THREAD", "UNCONSTRAINED", "MicroBenchmark", "benchmarks_for", "named"]

ONE_THREAD = "1-thread"
UNCONSTRAINED = "default"
"""Without the options that hold a provider to float32, where it would compute in less unless told."""

COPY_KINDS = ("to_device", "from_device")
"""Not a model: a tensor copied by onnxruntime between the host's memory and the device's."""

MIB = 1 << 20


@dataclass(frozen=True)
class MicroBenchmark:
    """One point of a curve.

    Attributes:
        kind: ``conv3x3``, ``matmul``, ``to_device``, ...
        dtype: type that the work is asked for in.
        size: in words, as it stands in the name.
        work: what one run does, in ``work_unit``.
        work_unit: ``MAC``, ``B`` (bytes moved), or empty.
        build: makes the model; None for a copy, whose tensor has ``work`` bytes.
        configuration: empty, ``ONE_THREAD`` or ``UNCONSTRAINED``.
        grows_from: name of the smaller point; at the rate of that one, this one must not take too long. None where the
            smaller one's time is overhead, from which no rate follows: 4 KiB copied in 20 us say nothing of 4 MiB.
    """

    kind: str
    dtype: str
    size: str
    work: float
    work_unit: Literal["MAC", "B", ""]
    build: Callable[[], MicroModel] | None = None
    configuration: str = ""
    grows_from: str | None = None

    @property
    def name(self) -> str:
        """``kind/dtype/size`` or ``kind/dtype/size@configuration``."""
        return "/".join([self.kind, self.dtype, self.size]) + (f"@{self.configuration}" if self.configuration else "")

    def configured(self, configuration: str) -> MicroBenchmark:
        """The same work under another configuration."""
        grows_from = None if self.grows_from is None else f"{self.grows_from}@{configuration}"
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return MicroBenchmark(**(fields | {"configuration": configuration, "grows_from": grows_from}))


def _matmul(size: int, dtype: str = "float32", after: int | None = None) -> MicroBenchmark:
    work, build = 2 * size**3 + 2 * size**2, partial(micro_models.matmuls, size, dtype)
    grows_from = None if after is None else f"matmul/{dtype}/{after}"
    return MicroBenchmark("matmul", dtype, str(size), work, "MAC", build, grows_from=grows_from)


def _conv(
    kind: str, channels: int, side: int, dtype: str = "float32", after: str | None = None, layers: int = 4
) -> MicroBenchmark:
    depthwise, kernel = kind.startswith("depthwise"), 1 if kind == "conv1x1" else 3
    work = channels * side**2 * (2 + layers * (1 if depthwise else channels) * kernel**2)
    build = partial(micro_models.convolutions, channels, side, kernel, dtype, depthwise, layers)
    grows_from = None if after is None else f"{kind}/{dtype}/{after}"
    return MicroBenchmark(kind, dtype, f"{channels}x{side}", work, "MAC", build, grows_from=grows_from)


def _attention(steps: int, width: int, heads: int, dtype: str = "float32", after: str | None = None) -> MicroBenchmark:
    work = 4 * steps * width**2 + 2 * steps**2 * width + 2 * steps * width
    build = partial(micro_models.attention, steps, width, heads, dtype)
    grows_from = None if after is None else f"attention/{dtype}/{after}"
    return MicroBenchmark("attention", dtype, f"{steps}x{width}", work, "MAC", build, grows_from=grows_from)


def _moving(kind: str, matrices: int, rows: int, width: int, make: Callable[[int, int], MicroModel]) -> MicroBenchmark:
    """Work that moves so many matrices of rows x width float32."""
    work = matrices * rows * width * 4
    return MicroBenchmark(kind, "float32", f"{rows}x{width}", work, "B", partial(make, rows, width))


def _element_wise(rows: int) -> MicroBenchmark:
    return _moving("element_wise", 12, rows, 1024, micro_models.element_wise)


def _gather(rows: int, width: int, picks: int) -> MicroBenchmark:
    work, build = picks * (8 + 3 * width * 4), partial(micro_models.gather, rows, width, picks)
    return MicroBenchmark("gather", "float32", f"{rows}x{width}x{picks}", work, "B", build)


def _lstm(steps: int, hidden: int, after: str | None = None) -> MicroBenchmark:
    work, build = 8 * steps * hidden**2, partial(micro_models.lstm, steps, hidden)
    grows_from = None if after is None else f"lstm/float32/{after}"
    return MicroBenchmark("lstm", "float32", f"{steps}x{hidden}", work, "MAC", build, grows_from=grows_from)


def _copies(size_bytes: int, after_bytes: int | None = None) -> Iterator[MicroBenchmark]:
    for kind in COPY_KINDS:
        grows_from = None if after_bytes is None else f"{kind}/float32/{after_bytes}"
        yield MicroBenchmark(kind, "float32", str(size_bytes), size_bytes, "B", grows_from=grows_from)


def _relay(size_bytes: int, after_bytes: int | None = None) -> MicroBenchmark:
    grows_from = None if after_bytes is None else f"round_trip/float32/{after_bytes}"
    build = partial(micro_models.relay, size_bytes // 4)
    return MicroBenchmark("round_trip", "float32", str(size_bytes), 2 * size_bytes, "B", build, grows_from=grows_from)


BENCHMARKS: tuple[MicroBenchmark, ...] = (
    MicroBenchmark("empty", "float32", "1", 0, "", micro_models.empty),
    _matmul(512),
    _conv("conv3x3", 64, 56),
    _element_wise(256),
    _conv("depthwise3x3", 256, 56, layers=8),
    _conv("conv1x1", 256, 28),
    _matmul(512, "float16"),
    _matmul(512, "bfloat16"),
    _matmul(512, "int8"),
    *_copies(4096),
    *_copies(4 * MIB),
    _relay(4096),
    _relay(4 * MIB),
    _conv("conv3x3", 64, 56, "int8"),
    _conv("conv3x3", 64, 56, "float16"),
    _attention(128, 256, 4),
    _moving("layer_norm", 10, 512, 1024, micro_models.layer_normalisation),
    _moving("softmax", 10, 512, 1024, micro_models.softmax),
    _gather(16384, 256, 4096),
    _lstm(32, 256),
    _element_wise(8192),
    _matmul(512).configured(ONE_THREAD),
    _conv("conv3x3", 64, 56).configured(ONE_THREAD),
    _element_wise(8192).configured(ONE_THREAD),
    _matmul(512).configured(UNCONSTRAINED),
    _conv("conv3x3", 64, 56).configured(UNCONSTRAINED),
    _matmul(64),
    _element_wise(16),
    _matmul(1024, after=512),
    _conv("conv3x3", 256, 14),
    _attention(128, 256, 4, "float16"),
    _attention(512, 512, 8, after="128x256"),
    _matmul(512, "int8").configured(ONE_THREAD),
    _lstm(32, 256).configured(ONE_THREAD),
    _conv("depthwise3x3", 256, 56, "int8", layers=8),
    _matmul(2048, after=1024),
    _matmul(2048, "float16", 512),
    _matmul(2048, "bfloat16", 512),
    _matmul(2048, "int8", 512),
    _conv("conv3x3", 256, 56, after="64x56"),
    _conv("conv3x3", 256, 56, "float16", "64x56"),
    _conv("conv3x3", 256, 56, "int8", "64x56"),
    *_copies(64 * MIB, 4 * MIB),
    _attention(512, 512, 8, "float16", "128x256"),
    _matmul(4096, after=2048),
    _matmul(4096, "float16", 2048),
    _matmul(4096, "bfloat16", 2048),
    _matmul(4096, "int8", 2048),
    _lstm(32, 1024, "32x256"),
)
"""Most telling first."""

NAMED: Mapping[str, MicroBenchmark] = MappingProxyType({point.name: point for point in BENCHMARKS})


def named(name: str) -> MicroBenchmark:
    """The point of that name.

    Raises:
        KeyError: there is none.
    """
    return NAMED[name]


def benchmarks_for(
    provider: str, kind: str, lossy_default: bool, points: Iterable[MicroBenchmark] = BENCHMARKS
) -> list[MicroBenchmark]:
    """The points that mean something for a device, in their order.

    Threads are onnxruntime's own affair: other providers have theirs. Nothing is copied to a CPU. Only a provider that
    computes in less unless told has an unconstrained configuration.

    Args:
        provider: its name.
        kind: class of its device.
        lossy_default: whether, left alone, it may compute float32 models in less.
        points: to choose from.
    """
    skipped = set()
    if provider != "CPUExecutionProvider":
        skipped.add(ONE_THREAD)
    if not lossy_default:
        skipped.add(UNCONSTRAINED)
    moving = {*COPY_KINDS, "round_trip"} if kind == "cpu" else set()
    return [point for point in points if point.configuration not in skipped and point.kind not in moving]
