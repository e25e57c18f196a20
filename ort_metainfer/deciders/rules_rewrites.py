"""Which rewrites of the model are worth a trial: quantisation where the processor has the units for it, fixed shapes.

Own measurements: onnxruntime 1.32 on AMD EPYC (avx512_vnni), two cores; see each rewrite's ``evidence``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ort_metainfer.deciders.rule import Rule
from ort_metainfer.deciders.rules_providers import accelerators_pay, openvino_takes
from ort_metainfer.deciders.traits import (
    OPENVINO,
    capabilities_of,
    computes_bf16,
    exact_options,
    has_convolutions,
    is_tiny,
    named_device,
    other_devices,
    runs_on_cpu,
    static_sizes,
)
from ort_metainfer.problem import Problem
from ort_metainfer.strategy import Strategy, Transform

__all__ = ["REWRITE_RULES", "has_int8_units"]

MIN_SHAPES = 2
"""Fewer shapes than that are nothing to save."""

MIN_PRODUCTS = 6
"""Fewer matrix products than that are hardly where a model's time goes."""

CHANNEL_SCALES_OPSET = 13
"""First version of ONNX's operators whose QuantizeLinear takes a scale for each channel."""

INT8_UNITS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "dotprod", "i8mm"})
"""Instruction sets that multiply 8-bit integers and add them up in one step (Intel and Arm architecture manuals)."""


def has_int8_units(problem: Problem) -> bool:
    """Whether the CPU multiplies 8-bit integers faster than floats."""
    return not INT8_UNITS.isdisjoint(problem.cpu.features)


def _is_float(problem: Problem) -> bool:
    return problem.graph.quantisation == "none" and not is_tiny(problem) and "EPContext" not in problem.graph.blockers


def _may_quantise(problem: Problem) -> bool:
    return _is_float(problem) and problem.policy.accuracy != "strict" and problem.inputs_are_real


def _made(name: str, **parameters: object) -> Transform:
    from ort_metainfer.rewrites.registry import get_rewrite

    return get_rewrite(name).transform(**parameters)


def _reduced(problem: Problem) -> dict[str, object]:
    """Weights in 7 bits where the products of 8 would saturate: x86 without VNNI."""
    is_x86 = not {"avx2", "avx512f"}.isdisjoint(problem.cpu.features)
    return {"reduce_range": True} if is_x86 and not has_int8_units(problem) else {}


def _raised(problem: Problem) -> tuple[Transform, ...]:
    """A later opset first, where the model's has no quantised operators with a scale for each channel (ONNX, 13)."""
    opset = problem.graph.opsets.get("ai.onnx", CHANNEL_SCALES_OPSET)
    return (_made("convert-opset", target=CHANNEL_SCALES_OPSET),) if opset < CHANNEL_SCALES_OPSET else ()


def _convolutions(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(transforms=(*_raised(problem), _made("int8-static", **_reduced(problem))))
    yield Strategy(transforms=(*_raised(problem), _made("int8-static", calibration="percentile", **_reduced(problem))))


def _products(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(transforms=(_made("int8-dynamic", smooth=0.65, **_reduced(problem)),))
    yield Strategy(transforms=(_made("int8-dynamic", **_reduced(problem)),))


def _float_precisions(problem: Problem) -> tuple[str, ...]:
    """What OpenVINO computes the rest of a quantised network in, fastest first."""
    return ("bf16", "f32") if computes_bf16(problem) else ("f32",)


def _on_openvino(problem: Problem) -> Iterator[Strategy]:
    named = static_sizes(problem)
    fixed = (_made("fixed-shapes"),) if _nameless_sizes(problem) else ()
    transforms = (*_raised(problem), *fixed, _made("int8-static"))
    for precision in _float_precisions(problem):
        options = {"INFERENCE_PRECISION_HINT": precision}
        yield Strategy(provider=OPENVINO, provider_options=options, static_shapes=named, transforms=transforms)


def _takes(problem: Problem, precision: str) -> Iterator[Strategy]:
    """On each device beside the CPU that is made for a precision, the model in that precision.

    What the rewrite leaves in float32 the device computes as it likes: demanding float32 would shut some of them out.
    """
    rewrites = {"float16": ("float16", {}), "int8": ("int8-static", {}), "a16w8": ("int8-static", {"scheme": "a16w8"})}
    name, parameters = rewrites[precision]
    for device in other_devices(problem):
        stated = capabilities_of(device.provider)
        if device.kind != "cpu" and precision in stated.preferences.precisions:
            yield Strategy(
                provider=device.provider,
                device=named_device(problem, device),
                static_shapes=static_sizes(problem) if stated.constraints.static_shapes else {},
                transforms=(_made(name, **parameters),),
            )


def _nameless_sizes(problem: Problem) -> bool:
    """Whether shapes are given that no override by a dimension's name can express."""
    open_inputs = [
        spec for spec in problem.graph.inputs if not all(isinstance(dim, int) for dim in spec.shape or ("?",))
    ]
    return bool(open_inputs) and all(spec.name in problem.shapes for spec in open_inputs) and not static_sizes(problem)


def _fixed(problem: Problem) -> Iterator[Strategy]:
    yield Strategy(transforms=(_made("fixed-shapes"),))


def _fixed_on_openvino(problem: Problem) -> Iterator[Strategy]:
    """OpenVINO in float32 with the shapes given: by name where dimensions have usable ones, by input otherwise."""
    named = static_sizes(problem)
    rewrites = () if named else (_made("fixed-shapes"),)
    options = exact_options(OPENVINO)
    yield Strategy(provider=OPENVINO, provider_options=options, static_shapes=named, transforms=rewrites)


def _knows_open_shapes(problem: Problem) -> bool:
    return bool(static_sizes(problem)) or _nameless_sizes(problem)


def _default(problem: Problem, name: str) -> Iterator[Strategy]:
    """A rewrite that is on by default, where it may have something to do."""
    from ort_metainfer.rewrites.registry import get_rewrite

    rewrite = get_rewrite(name)
    if rewrite.on_by_default and rewrite.objection(problem.graph) is None:
        yield Strategy(transforms=(_made(name),))


REWRITE_RULES = (
    Rule(
        "int8_convolutions",
        78,
        "convolutions in 8 bits, a scale for each channel, run on the processor's integer units at twice the rate",
        "own measurement: int8-static U8S8 on a ResNet-50; microsoft/onnxruntime#20052: slower where they are lacking",
        applies=lambda p: _may_quantise(p) and has_convolutions(p) and has_int8_units(p) and runs_on_cpu(p, Strategy()),
        proposes=_convolutions,
    ),
    Rule(
        "int8_products",
        77,
        "matrix products in 8 bits, their inputs' scales taken anew at each run, run on the processor's integer units",
        "own measurement: int8-dynamic on MiniLM; per tensor its cosine similarity is 0.94, per channel 0.996",
        applies=lambda p: (
            _may_quantise(p)
            and p.graph.count("MatMul", "Gemm") >= MIN_PRODUCTS
            and has_int8_units(p)
            and runs_on_cpu(p, Strategy())
        ),
        proposes=_products,
    ),
    Rule(
        "openvino_int8_convolutions",
        76,
        "OpenVINO runs a quantised convolutional network in 8 bits from end to end",
        "own measurement: a ResNet-18 in QDQ form 6.6-8.4x of plain onnxruntime on Intel with AMX, under load",
        applies=lambda p: _may_quantise(p) and has_convolutions(p) and openvino_takes(p),
        proposes=_on_openvino,
    ),
    Rule(
        "float16_on_accelerators",
        73,
        "this device computes float16 at least twice as fast as float32, on half the memory",
        "NVIDIA, AMD and Apple architecture documents: tensor and matrix cores; not run on hardware",
        applies=lambda p: _may_quantise(p) and accelerators_pay(p) and any(_takes(p, "float16")),
        proposes=lambda p: _takes(p, "float16"),
    ),
    Rule(
        "int8_on_accelerators",
        72,
        "this device is made for 8-bit networks",
        "Qualcomm, AMD (Vitis AI) and Intel NPU documents: QDQ models; run on QNN's simulator only",
        applies=lambda p: _may_quantise(p) and accelerators_pay(p) and any(_takes(p, "int8")),
        proposes=lambda p: _takes(p, "int8"),
    ),
    Rule(
        "a16w8_on_accelerators",
        71,
        "16-bit activations with 8-bit weights keep more of the results where 8 bits lose them",
        "own measurement: a page classifier on QNN's simulator, error 0.4 in 8 bits, 0.014 with 16-bit activations",
        applies=lambda p: _may_quantise(p) and accelerators_pay(p) and any(_takes(p, "a16w8")),
        proposes=lambda p: _takes(p, "a16w8"),
    ),
    Rule(
        "openvino_fixed_shapes",
        67,
        "OpenVINO runs convolutional networks of fixed shapes well in float32, also small ones",
        "own measurement (onnxruntime-openvino 1.24.1, AMD EPYC), float32: fixed 1.80x, 1.35x and 1.12x on a page "
        "classifier of 154 million MACs, a 1-D U-Net and a ResNet-50; open 2.53x, 1.31x and 1.06x",
        applies=lambda p: openvino_takes(p) and _is_float(p) and has_convolutions(p) and _knows_open_shapes(p),
        proposes=_fixed_on_openvino,
    ),
    Rule(
        "gelu_as_one_operator",
        49,
        "a GELU spelled in a way that onnxruntime does not know runs as one operator",
        "own measurement: 1.12x [1.10, 1.12] on magika, 1.00x where onnxruntime fuses it itself",
        applies=lambda p: p.graph.count("Erf", "Tanh") > 0 and runs_on_cpu(p, Strategy()),
        proposes=lambda p: _default(p, "gelu-to-contributed"),
    ),
    Rule(
        "shapes_as_constants",
        48,
        "what computes shapes from inputs of known sizes need not run",
        "own measurement: 1.08x [1.06, 1.08] on Silero VAD, 1.00x on MiniLM and magika",
        applies=lambda p: p.graph.count("Shape", "ConstantOfShape") >= MIN_SHAPES and runs_on_cpu(p, Strategy()),
        proposes=lambda p: _default(p, "fold-shapes"),
    ),
    Rule(
        "fixed_shapes_by_input",
        51,
        "the shapes are given, the model's dimensions have no names to fix them by: they are fixed by input and axis",
        "own measurement: Paddle's exporter calls height and width '?'",
        applies=_nameless_sizes,
        proposes=_fixed,
    ),
)
