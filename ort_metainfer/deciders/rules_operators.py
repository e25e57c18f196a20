"""Operators: which form of an operator a device has a kernel for, and which rewrites a model must be spared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ort_metainfer.deciders.conditions import (
    accelerators_pay,
    is_compiled,
    is_legal,
    made,
    on_cpu,
    on_device,
)
from ort_metainfer.deciders.rule import ACCELERATORS, BINDING_PRIORITY, VETO_PRIORITY, Rule
from ort_metainfer.deciders.traits import has_convolutions, other_devices, runs_on_cpu
from ort_metainfer.deciders.traits_devices import device_of, lacks
from ort_metainfer.problem import Device, Problem
from ort_metainfer.strategy import Strategy, Transform

__all__ = ["OPERATOR_RULES"]

VITISAI = "VitisAIExecutionProvider"
TWO_DIMENSIONAL = frozenset({"CANNExecutionProvider", "NnapiExecutionProvider", "XnnpackExecutionProvider"})
"""Providers whose convolutions are two-dimensional only (their documents: see the adapters' notes)."""

ADVISED_OPSET = 17

OTHER_FORMS: Mapping[str, str] = MappingProxyType(
    {
        "LayerNormalization": "layer-norm-to-composed",
        "RMSNormalization": "rms-norm-to-composed",
        "GroupNormalization": "group-norm-to-composed",
        "InstanceNormalization": "instance-norm-to-composed",
        "Gelu": "gelu-to-composed",
        "HardSwish": "hard-swish-to-composed",
        "HardSigmoid": "hard-sigmoid-to-composed",
        "Einsum": "einsum-to-matmul",
        "MatMul": "matmul-to-conv",
        "Gemm": "gemm-to-matmul",
        "ConvTranspose": "conv-transpose-to-conv",
        "DepthToSpace": "depth-to-space-to-reshape",
        "LSTM": "unroll-recurrent",
        "GRU": "unroll-recurrent",
        "RNN": "unroll-recurrent",
        "Expand": "expand-to-resize",
    }
)
"""Operator -> the rewrite into operators that more devices have."""

COMPOSING = frozenset({*OTHER_FORMS.values()} - {"einsum-to-matmul", "unroll-recurrent"})


def _other_forms(problem: Problem, device: Device) -> tuple[Transform, ...]:
    """Rewrites of what the device lacks, as far as each has something to do in this graph."""
    from ort_metainfer.rewrites.registry import get_rewrite

    lacking = [name for name in OTHER_FORMS if problem.graph.count(name) and lacks(problem, device, name)]
    names = dict.fromkeys(OTHER_FORMS[name] for name in lacking)
    fit = [n for n in names if is_legal(n, device.provider) and get_rewrite(n).objection(problem.graph) is None]
    return tuple(made(name) for name in fit)


def _lacking_devices(problem: Problem) -> Iterator[tuple[Device, tuple[Transform, ...]]]:
    for device in other_devices(problem):
        transforms = _other_forms(problem, device) if device.kind != "cpu" else ()
        if transforms:
            yield device, transforms


def _composed(problem: Problem) -> Iterator[Strategy]:
    for device, transforms in _lacking_devices(problem):
        yield on_device(problem, device, transforms=transforms)


def _splits_what_is_native(problem: Problem, strategy: Strategy) -> bool:
    composed = COMPOSING.intersection(transform.name for transform in strategy.transforms)
    device = device_of(problem, strategy) if composed else None
    if device is None:
        return False
    native = {OTHER_FORMS[name] for name in OTHER_FORMS if not lacks(problem, device, name)}
    known = runs_on_cpu(problem, strategy) or device.provider in problem.profiles or device.simulated
    return known and not native.isdisjoint(composed)


def _is_one_dimensional(problem: Problem) -> bool:
    """Whether it convolves along one axis: its inputs are batch, channels, length."""
    ranks = {len(spec.shape) for spec in problem.graph.inputs if spec.shape}
    return has_convolutions(problem) and 3 in ranks and not ranks - {0, 1, 2, 3}


def _two_dimensional_only(problem: Problem) -> Iterator[Device]:
    return (device for device in other_devices(problem) if device.provider in TWO_DIMENSIONAL)


def _in_two_dimensions(problem: Problem) -> Iterator[Strategy]:
    for device in _two_dimensional_only(problem):
        yield on_device(problem, device, transforms=(made("one-dimension-to-two"),))


def _vitisai(problem: Problem) -> Iterator[Device]:
    return (device for device in other_devices(problem) if device.provider == VITISAI)


def _has_old_opset(problem: Problem) -> bool:
    return problem.graph.opsets.get("ai.onnx", ADVISED_OPSET) < ADVISED_OPSET


def _raised(problem: Problem) -> Iterator[Strategy]:
    for device in _vitisai(problem):
        yield on_device(problem, device, transforms=(made("convert-opset", target=ADVISED_OPSET),))


def contributed_rewrites(problem: Problem) -> Iterator[Transform]:
    """Third parties' rewrites that were measured to pay, in the form their defaults give, for the CPU provider."""
    from ort_metainfer.deciders.conditions import by_default
    from ort_metainfer.rewrites.registry import all_rewrites
    from ort_metainfer.session import warn_once

    for rewrite in all_rewrites():
        if type(rewrite).__module__.startswith("ort_metainfer.") or not is_legal(rewrite.name, "CPUExecutionProvider"):
            continue
        try:
            found = tuple(by_default(problem, rewrite.name))
        except Exception as error:  # noqa: BLE001 (a third party's code may raise anything)
            warn_once(f"rewrite {rewrite.name} is not proposed: {type(error).__name__}: {error}")
            continue
        yield from found


def _contributed(problem: Problem) -> Iterator[Strategy]:
    return (Strategy(transforms=(transform,)) for transform in contributed_rewrites(problem))


def _is_blocked(problem: Problem) -> bool:
    from ort_metainfer.rewrites.rewriting import blocker

    return blocker(problem.graph) is not None


def _changes_what_runs(problem: Problem, strategy: Strategy) -> bool:
    return strategy.provider is not None or bool(strategy.static_shapes)


OPERATOR_RULES = (
    Rule(
        "composed_where_lacking",
        59,
        "operators",
        "this device lacks operators of the graph that others of its operators express: nothing falls back for them",
        "onnxruntime documentation: troubleshooting performance (operators without support fall back to the CPU); AMD "
        "PG338 and coral.ai/docs/edgetpu, supported operators; not run on hardware",
        when=(accelerators_pay, lambda p: not _is_blocked(p), lambda p: any(_lacking_devices(p))),
        devices=ACCELERATORS,
        proposes=_composed,
    ),
    Rule(
        "contributed_rewrites",
        47,
        "operators",
        "this rewrite of an installed package was measured to pay by who made it, and has something to do here",
        "its own evidence: see the rewrite; tried like any other strategy",
        when=(on_cpu, lambda p: not _is_blocked(p), lambda p: any(contributed_rewrites(p))),
        proposes=_contributed,
    ),
    Rule(
        "two_dimensions_where_one_is_lacking",
        43,
        "operators",
        "this provider takes two-dimensional convolutions only, and these run along one axis",
        "onnxruntime documentation: XNNPACK, NNAPI and CANN execution providers, supported operators; not run on "
        "hardware",
        when=(_is_one_dimensional, lambda p: not _is_blocked(p), lambda p: any(_two_dimensional_only(p))),
        devices=("cpu", "gpu", "npu", "dsp"),
        proposes=_in_two_dimensions,
    ),
    Rule(
        "vitisai_opset",
        42,
        "operators",
        "opset 17 is what the documentation of this NPU recommends, and the model's operators are older",
        "onnxruntime documentation: Vitis AI execution provider (opset 17 is recommended); not run on hardware",
        when=(accelerators_pay, _has_old_opset, lambda p: not _is_blocked(p), lambda p: any(_vitisai(p))),
        devices=("npu", "fpga"),
        proposes=_raised,
    ),
    Rule(
        "native_operators_stay",
        VETO_PRIORITY,
        "operators",
        "this device runs the operator as one kernel: taken apart, each part is a trip to memory",
        "onnxruntime docs/OperatorKernels.md; where probed, the operators that the device took",
        forbids=_splits_what_is_native,
    ),
    Rule(
        "convolutions_stay_on_cpu",
        VETO_PRIORITY,
        "operators",
        "onnxruntime's convolutions of 1 x 1 are faster than the matrix products they equal",
        "own measurement: conv-to-matmul 0.64-0.98x on seven models on the CPU provider",
        devices=("cpu",),
        forbids=lambda p, strategy: any(transform.name == "conv-to-matmul" for transform in strategy.transforms),
    ),
    Rule(
        "blocked_rewrites",
        BINDING_PRIORITY,
        "operators",
        "the graph holds what a rewrite could break ({problem.graph.blockers}), or maps, which the graph library loses",
        "microsoft/onnxruntime#10905: rewritten graphs that a provider or another tool no longer takes; own "
        "observation: onnx_ir loses sparse initialisers and cannot read maps",
        when=(_is_blocked,),
        forbids=lambda problem, strategy: bool(strategy.transforms),
    ),
    Rule(
        "compiled_model_stays",
        BINDING_PRIORITY,
        "provider",
        "the model was compiled for one provider, and no other provider or shape can run it",
        "onnxruntime documentation: EP context design; microsoft/onnxruntime#26687",
        when=(is_compiled,),
        forbids=_changes_what_runs,
    ),
)
