"""What is to be decided: which model, on which devices, with which shapes, under which policy. Data only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ort_metainfer.spec import NEUTRAL_PROPERTIES, SessionSpec

if TYPE_CHECKING:
    from ort_metainfer.hardware.profile import Profile
    from ort_metainfer.model.work import NodeWork, OperatorTime

__all__ = [
    "NEUTRAL_PROPERTIES",
    "AcceleratorState",
    "CacheKey",
    "Device",
    "Graph",
    "HardwareState",
    "Model",
    "Policy",
    "Problem",
    "SessionSpec",
    "TensorSpec",
    "providers_in",
]

KEY_SCHEMA = 1
"""Salt of every cache key: raised when what a key says changes meaning."""

Dim = int | str | None
"""A fixed size, a symbolic name, or nothing declared."""


@dataclass(frozen=True)
class TensorSpec:
    """A model input or output as declared.

    ``dtype`` is a numpy name, ``string``, or onnxruntime's own text for what is no tensor. ``shape`` holds ints
    (fixed), names (symbolic) and None (neither); it is None where the rank itself is not declared.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ",".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name}:{self.dtype}[{dims}]"


@dataclass(frozen=True)
class Graph:
    """Features of a model's graph (subgraphs included in every count).

    Attributes:
        inputs: declared inputs without initialisers, in order.
        outputs: declared outputs, in order.
        ir_version: ONNX IR version of the file.
        opsets: domain -> version; the ONNX domain is ``ai.onnx``.
        operators: operator -> count; operators outside ONNX are ``domain.Name``.
        node_count: number of nodes.
        parameter_count: elements over all initialisers and constant nodes.
        weight_bytes: bytes of the same.
        macs: multiply-accumulates of one run at the declared or given shapes; None where shapes do not say.
        quantisation: ``none``, ``qdq``, ``qoperator``, ``dynamic``, or ``weight-only`` (weights are stored in few bits
            and computed with in float: MatMulNBits, DequantizeLinear alone).
        random_operators: operators whose output differs from run to run.
        blockers: why the graph must not be rewritten (``EPContext``, ``sparse initializers``, ``training``,
            ``model-local functions``, ``custom domain x``).
        index_bounds: integer input -> exclusive upper bound of its values, where a Gather's table says so.
        external_files: external data files, relative to the model.
        index_inputs: integer input -> (input, axis) whose size is the exclusive upper bound of its values, where the
            table is itself made of an input.
        overridable: inputs with an initialiser, which a feed may leave out.
        structure: hash of what is computed (``learning/structure.py``), equal for a re-export or another batch size;
            empty where it was described by an earlier release.
        scores: outputs whose last operator makes scores of classes (``model/scores.py``).
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ir_version: int
    opsets: Mapping[str, int]
    operators: Mapping[str, int]
    node_count: int
    parameter_count: int
    weight_bytes: int
    macs: int | None = None
    quantisation: str = "none"
    random_operators: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    index_bounds: Mapping[str, int] = field(default_factory=dict)
    external_files: tuple[str, ...] = ()
    index_inputs: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    overridable: tuple[TensorSpec, ...] = ()
    structure: str = ""
    scores: tuple[str, ...] = ()

    def count(self, *operators: str) -> int:
        """How many nodes are one of ``operators``."""
        return sum(self.operators.get(name, 0) for name in operators)

    @property
    def has_control_flow(self) -> bool:
        """Whether it holds If, Loop or Scan."""
        return self.count("If", "Loop", "Scan") > 0

    @property
    def symbolic_dims(self) -> tuple[str, ...]:
        """Names of the symbolic dimensions of the inputs, in order of appearance."""
        names = [dim for spec in self.inputs for dim in spec.shape or () if isinstance(dim, str)]
        return tuple(dict.fromkeys(names))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Graph:
        """The inverse of :meth:`as_dict`, also after a trip through JSON."""
        values = dict(plain)
        for name in ("inputs", "outputs", "overridable"):
            values[name] = tuple(
                TensorSpec(spec["name"], spec["dtype"], None if spec["shape"] is None else tuple(spec["shape"]))
                for spec in plain.get(name, ())
            )
        for name in ("random_operators", "blockers", "external_files", "scores"):
            values[name] = tuple(plain[name])
        tables = plain.get("index_inputs", {})
        values["index_inputs"] = {name: (table, axis) for name, (table, axis) in tables.items()}
        return cls(**values)


@dataclass(frozen=True)
class Model:
    """Which model: ``hash`` is ``sha256:`` and 64 hex digits over the file and its external data.

    Exactly one of ``path`` (what the caller gave, made absolute) and ``content`` is set.
    """

    hash: str
    size_bytes: int
    path: str | None = None
    content: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return self.path or f"model of {self.size_bytes} bytes ({self.hash[:15]})"


@dataclass(frozen=True)
class Device:
    """One device of one provider, as far as this process may use it.

    Attributes:
        provider: execution provider's name.
        kind: ``cpu``, ``gpu``, ``npu``, ``dsp`` or ``fpga``.
        name: hardware name (``AMD EPYC``).
        vendor: hardware vendor.
        provider_device: the provider's own name for it (OpenVINO: ``CPU``, ``AUTO``), if it has several.
        features: what matters of its instruction set (``avx512_vnni``, ``amx_bf16``), sorted.
        cores: cores this process may use, affinity and cgroup quota counted: may be a fraction; None where unknown.
        driver: driver or runtime version.
        lasting_limit: whether ``cores`` is below the machine's by quota or affinity.
        memory_mb: memory of the device itself (MB of 2**20 bytes); None where it shares the machine's or does not say.
        emulated: whether it is a simulator or a software rasteriser of such hardware, whose timing says nothing.
        simulated: whether there is no such device here at all, only its description (see ``providers.simulated``).
    """

    provider: str
    kind: str
    name: str
    vendor: str = ""
    provider_device: str | None = None
    features: tuple[str, ...] = ()
    cores: float | None = None
    driver: str | None = None
    lasting_limit: bool = False
    memory_mb: float | None = None
    emulated: bool = False
    simulated: bool = False

    def __str__(self) -> str:
        from ort_metainfer.hardware.devices import device_text

        text = device_text(self.kind, self.name, self.features, self.cores)
        return f"simulated:{text}" if self.simulated else text


@dataclass(frozen=True)
class AcceleratorState:
    """What a GPU or NPU was doing; None for what its driver does not tell.

    Attributes:
        name: its name with its place (``NVIDIA H200 #0``, ``amdgpu card1``): unique on this machine.
        clock_mhz: clock of its compute cores, when it was read.
        memory_used_mb: its own memory in use, by anybody.
        memory_total_mb: how much it has.
        temperature_c: its hottest sensor.
        utilisation: share of time in which it was busy, for anybody, 0 to 1.
        throttled: why it runs below its clock, joined; empty where it says that it does not. Its power limit does not
            count: to run at it is the ordinary state of a card under load, and a change shows in the clock.
        power_w: power drawn.
    """

    name: str
    clock_mhz: float | None = None
    memory_used_mb: float | None = None
    memory_total_mb: float | None = None
    temperature_c: float | None = None
    utilisation: float | None = None
    throttled: str | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class HardwareState:
    """What else the machine was doing, over a window that ended at ``when`` (seconds since the epoch).

    Attributes:
        others_cpu: CPU used by other processes, in cores (1.0 = one core kept busy); None where it cannot be read.
        steal: share of time the hypervisor took away, 0 to 1.
        runnable: tasks running or waiting to run, this one not counted.
        window_s: length of the window.
        clock_mhz: core clock, if readable.
        temperature_c: hottest CPU sensor, if readable.
        memory_available_mb: memory an application could still get.
        top_clock_mhz: clock of the fastest core: the one that works while the others idle.
        throttled: why the processor was slowed down within the window, joined; empty where it says that it was not,
            None where it does not say.
        governor: how the clock is chosen (``performance``); several, joined, where cores differ.
        boost: whether the clock may rise above the nominal one.
        devices: accelerators that can be read.
    """

    when: float
    window_s: float
    others_cpu: float | None = None
    steal: float | None = None
    runnable: int | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    memory_available_mb: float | None = None
    top_clock_mhz: float | None = None
    throttled: str | None = None
    governor: str | None = None
    boost: bool | None = None
    devices: tuple[AcceleratorState, ...] = ()

    @property
    def is_load_known(self) -> bool:
        """Whether the system told what other processes did."""
        return self.others_cpu is not None

    @property
    def busy_reason(self) -> str | None:
        """Why scheduling must not be judged now, or None where nothing speaks against it.

        None means quiet only where :attr:`is_load_known`. Others may use a tenth of a core: CPU time is accounted by
        the tick, and less cannot be told apart in a window of 0.1 s. That steal of 2% is too much is a choice, not a
        measurement.
        """
        if self.others_cpu is not None and self.others_cpu > 0.10:
            return f"other processes use {self.others_cpu:.2f} cores"
        if self.steal is not None and self.steal > 0.02:
            return f"the hypervisor takes {self.steal:.0%} of the time"
        if self.throttled:
            return f"the processor is slowed down: {self.throttled}"
        slow = next((device for device in self.devices if device.throttled), None)
        return None if slow is None else f"{slow.name} is slowed down: {slow.throttled}"

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> HardwareState:
        """From plain values, also after a trip through JSON; what another version wrote besides is left out.

        Raises:
            KeyError: ``when`` or ``window_s`` is missing.
        """
        known = {name: plain[name] for name in cls.__dataclass_fields__ if name in plain}
        fields = AcceleratorState.__dataclass_fields__
        devices = [
            {name: value for name, value in device.items() if name in fields} for device in plain.get("devices") or ()
        ]
        known |= {"when": plain["when"], "window_s": plain["window_s"]}
        return cls(**known | {"devices": tuple(AcceleratorState(**device) for device in devices)})


@dataclass(frozen=True)
class Policy:
    """What is allowed and wanted. Entries of the cache are kept per policy.

    Attributes:
        accuracy: ``strict``, ``balanced`` or ``fast``.
        objective: what a strategy must be better at (see ``Settings.objective``).
        providers: providers allowed, by name.
        pinned: options the caller set, which stay: name -> value as text.
        callers: threads that call the session at once, for ``throughput``; 1 for every other objective.
        max_slowdown: how many times the default's median latency is allowed, for ``memory``; None for every other.
        rules_off: names of rules that the caller switched off.
    """

    accuracy: Literal["strict", "balanced", "fast"] = "strict"
    objective: Literal["latency", "tail", "throughput", "memory", "pipeline"] = "latency"
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    pinned: Mapping[str, str] = field(default_factory=dict)
    callers: int = 1
    max_slowdown: float | None = None
    rules_off: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Its parts, divided by ``|``; what the parts are made of is escaped, so that no two policies read alike."""
        names = "+".join(_escaped(name.removesuffix("ExecutionProvider"), "+") for name in self.providers)
        pinned = ",".join(f"{_escaped(key, ',=')}={_escaped(value, ',')}" for key, value in sorted(self.pinned.items()))
        off = ",".join(_escaped(name, ",") for name in sorted(set(self.rules_off)))
        told = [pinned] if pinned else []
        return "|".join([self.accuracy, self._aim(), names, *told, *([f"rules off: {off}"] if off else [])])

    def _aim(self) -> str:
        """The objective with what it depends on: ``throughput:4``, ``memory:1.1``."""
        bound = self.callers if self.callers > 1 else self.max_slowdown
        return self.objective if bound is None else f"{self.objective}:{bound:g}"


def providers_in(policy: str) -> tuple[str, ...]:
    """The providers that a printed policy allows, their names without ``ExecutionProvider``."""
    names = policy.split("|")[2].split("+")
    return tuple(_unescaped(name) for name in names)


def _escaped(text: str, dividers: str) -> str:
    for character in f"%|{dividers}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def _unescaped(text: str) -> str:
    for character in "+|%":
        text = text.replace(f"%{ord(character):02X}", character)
    return text


@dataclass(frozen=True)
class CacheKey:
    """Model hash, device model, input shapes, and the policy below them; ``explain`` prints one field a line."""

    model: str
    device: str
    shapes: str
    policy: str

    def __str__(self) -> str:
        return json.dumps([KEY_SCHEMA, self.model, self.device, self.shapes, self.policy])

    @classmethod
    def parse(cls, text: str) -> CacheKey | None:
        """The key that ``str`` printed, or None where ``text`` is none of this schema."""
        try:
            schema, *parts = json.loads(text)
        except (ValueError, TypeError):
            return None
        return cls(*parts) if schema == KEY_SCHEMA and len(parts) == 4 else None


@dataclass(frozen=True)
class Problem:
    """Everything a decider may look at.

    Attributes:
        shapes: input name -> shape the session will be run with; empty where the caller did not say.
        devices: usable devices of the allowed providers; the CPU provider's comes first.
        state: what else the machine was doing when asked.
        inputs_are_real: whether inputs came from the caller; lossy strategies need that.
        profiles: provider -> profile of its first device, where that device was probed.
        work: what one run does, node by node, at the shapes given or declared; empty where it was not looked at.
        operators: what onnxruntime's profiler says of the caller's own session; empty where it was not asked.
    """

    model: Model
    graph: Graph
    devices: tuple[Device, ...]
    policy: Policy
    baseline: SessionSpec
    state: HardwareState
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs_are_real: bool = False
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    work: tuple[NodeWork, ...] = ()
    operators: tuple[OperatorTime, ...] = ()

    @property
    def cpu(self) -> Device:
        """The CPU provider's device."""
        return next(device for device in self.devices if device.provider == "CPUExecutionProvider")

    def device(self, provider: str) -> Device | None:
        """The first device of ``provider``, or None."""
        return next((device for device in self.devices if device.provider == provider), None)

    def is_pinned(self, option: str) -> bool:
        """Whether the caller set ``option`` (a SessionOptions property or config key)."""
        return option in self.policy.pinned
