"""Small models written as ONNX text, and a rewrite carried out on one and compared with the original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser

from ort_metainfer.rewrites.base import Outcome, Rewrite
from tests.rewrite_run import LEVELS, apply_to_bytes, difference, outputs


def model_of(text: str, opset: int = 17, ir_version: int = 10, **weights: Any) -> onnx.ModelProto:
    """``g (float[...] x) => (float[...] y) { ... }`` as a model; ``weights`` are initialisers."""
    header = f'<ir_version: {ir_version}, opset_import: ["": {opset}, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{header}\n{text}")
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rewritten(
    rewrite: Rewrite, model: onnx.ModelProto, feeds: Mapping[str, Any], **parameters: Any
) -> tuple[onnx.ModelProto, Outcome]:
    """The model it makes, which gives the same results, with onnxruntime's optimisers off and on."""
    before = model.SerializeToString()
    after, outcome = apply_to_bytes(rewrite, before, [feeds], parameters)
    for level in LEVELS:
        off = difference(outputs(after, [feeds], level), outputs(before, [feeds], level), rewrite.promise)
        assert off is None, f"level {level}: {off}\n{onnx.printer.to_text(onnx.load_from_string(after))}"
    return onnx.load_from_string(after), outcome


def operators(model: onnx.ModelProto) -> Counter[str]:
    """Operator -> count, of the main graph."""
    return Counter(node.op_type for node in model.graph.node)


def node_of(model: onnx.ModelProto, operator: str) -> Any:
    """The only node of that operator."""
    (node,) = [node for node in model.graph.node if node.op_type == operator]
    return node


def attribute_of(node: Any, name: str) -> Any:
    """An attribute's value."""
    return next(onnx.helper.get_attribute_value(given) for given in node.attribute if given.name == name)
