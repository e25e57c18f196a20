"""Layout: which order of axes and which multiples of channels a device's units are made for."""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.deciders.conditions import (
    accelerators_pay,
    is_float,
    is_legal,
    made,
    may_quantise,
    on_device,
    on_provider,
)
from ort_metainfer.deciders.rule import VETO_PRIORITY, Rule
from ort_metainfer.deciders.traits import CUDA, has_convolutions, named_device, other_devices, runs_on_cpu
from ort_metainfer.deciders.traits_devices import alignment_of, capabilities_of, is_memory_bound
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy

__all__ = ["LAYOUT_RULES"]

LEVELS_WITHOUT_LAYOUT = ("disable", "basic", "extended")

MIN_TRANSPOSES = 4
"""Fewer moves of data than that are nothing to save."""

MISALIGNED_SHARE = 0.1
"""Share of the multiply-accumulates in nodes of other channels from which padding them is worth a trial; a choice."""

MOST_CHANNELS = 3
"""Channels of an image: padding the first layer's input is the provider's own business."""


def _loses_layout(problem: Problem, strategy: Strategy) -> bool:
    level = strategy.session_options.get("graph_optimization_level")
    return level in LEVELS_WITHOUT_LAYOUT and runs_on_cpu(problem, strategy)


def _rewrites_with(strategy: Strategy, name: str) -> bool:
    return any(transform.name == name for transform in strategy.transforms)


def _repeats_channels_last(problem: Problem, strategy: Strategy) -> bool:
    level = strategy.session_options.get("graph_optimization_level")
    return _rewrites_with(strategy, "quantised-channels-last") and level not in LEVELS_WITHOUT_LAYOUT


def _wants_channels_last(device: Device) -> bool:
    return device.kind != "cpu" and capabilities_of(device.provider).preferences.layouts[:1] == ("NHWC",)


def _moves_data(problem: Problem) -> bool:
    return problem.graph.count("Transpose") >= MIN_TRANSPOSES


def _channels_last_is_wanted(problem: Problem) -> bool:
    return any(_wants_channels_last(device) for device in other_devices(problem))


def _transposes_placed(problem: Problem) -> Iterator[Strategy]:
    for device in filter(_wants_channels_last, other_devices(problem)):
        yield on_device(problem, device, transforms=(made("transposes-placed"),))


def _has_cuda(problem: Problem) -> bool:
    return on_provider(problem, CUDA) is not None


def _cuda_channels_last(problem: Problem) -> Iterator[Strategy]:
    device = on_provider(problem, CUDA)
    if device is not None:
        options = {"prefer_nhwc": "1"}
        yield on_device(problem, device, exact=False, provider_options=options, transforms=(made("float16"),))


def misaligned_share(problem: Problem, multiple: int) -> float:
    """Share of the multiply-accumulates in nodes whose channels are no multiple; 0 where the work is not known."""
    nodes = [node for node in problem.work if node.channels is not None and node.macs]
    total = sum(node.runs * (node.macs or 0) for node in nodes)
    odd = (n for n in nodes if n.channels and any(c > MOST_CHANNELS and c % multiple for c in n.channels))
    return sum(node.runs * (node.macs or 0) for node in odd) / total if total else 0.0


def _to_pad(problem: Problem) -> Iterator[tuple[Device, int]]:
    for device in other_devices(problem):
        multiple = alignment_of(device)
        if device.kind != "cpu" and multiple and misaligned_share(problem, multiple) >= MISALIGNED_SHARE:
            yield device, multiple


def _padded(problem: Problem) -> Iterator[Strategy]:
    """In the type that the aligned units compute; padded alone where float16 is not for this device."""
    for device, multiple in _to_pad(problem):
        fits = "float16" in capabilities_of(device.provider).preferences.precisions
        reduced = (made("float16"),) if fits and is_legal("float16", device.provider) else ()
        yield Strategy(
            provider=device.provider,
            device=named_device(problem, device),
            transforms=(made("channels-padded", multiple=multiple), *reduced),
        )


LAYOUT_RULES = (
    Rule(
        "cuda_channels_last",
        57,
        "layout",
        "tensor cores read channels last; in float16 they are what convolutions run on",
        "onnxruntime documentation: CUDA execution provider, prefer_nhwc; not run on hardware",
        when=(may_quantise, has_convolutions, accelerators_pay, _has_cuda),
        devices=("gpu",),
        proposes=_cuda_channels_last,
    ),
    Rule(
        "channels_padded_for_matrix_units",
        46,
        "layout",
        "this device's matrix units take channels in fixed multiples, and much of the work is in layers of others",
        "NVIDIA, Tensor Core DL performance guide (GTC 2019, S9926); for described chips providers/chips.toml; not run "
        "on hardware",
        when=(may_quantise, accelerators_pay, lambda p: any(_to_pad(p))),
        devices=("gpu", "npu", "dsp", "fpga"),
        proposes=_padded,
    ),
    Rule(
        "transposes_placed_for_channels_last",
        44,
        "layout",
        "this device computes channels last and takes the graph before onnxruntime's transpose optimizer has seen it",
        "onnxruntime documentation: QNN and CUDA execution providers (NHWC); own measurement on the CPU provider: no "
        "gain; not run on hardware",
        when=(is_float, accelerators_pay, _moves_data, _channels_last_is_wanted),
        devices=("gpu", "npu"),
        proposes=_transposes_placed,
    ),
    Rule(
        "layout_level_for_convolutions",
        VETO_PRIORITY,
        "layout",
        "a lower level loses the blocked layout that makes onnxruntime's convolutions fast",
        "own measurement: level extended 0.64x on a ResNet-50, 0.36x on a PP-LCNet, 0.62x on a MobileNetV3",
        when=(has_convolutions, lambda p: p.policy.objective != "memory"),
        devices=("cpu",),
        forbids=_loses_layout,
    ),
    Rule(
        "no_channels_last_twice",
        VETO_PRIORITY,
        "layout",
        "onnxruntime moves quantised convolutions to channels last by itself at its default graph level",
        "own observation: onnxruntime 1.32's optimiser makes the same nodes from level layout on",
        devices=("cpu",),
        forbids=_repeats_channels_last,
    ),
    Rule(
        "no_padding_where_memory_is_the_limit",
        VETO_PRIORITY,
        "layout",
        "padded channels are more bytes to move, and this model waits for memory, not for arithmetic",
        "Williams, Waterman and Patterson, Roofline (2009), from this machine's measured peak and bandwidth",
        when=(is_memory_bound,),
        devices=("cpu",),
        forbids=lambda problem, strategy: _rewrites_with(strategy, "channels-padded"),
    ),
)
