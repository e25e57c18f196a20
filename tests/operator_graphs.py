"""Small graphs written as text, and what a rewrite makes of them, held to its promise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from ort_metainfer.model.graph import describe
from ort_metainfer.rewrites.base import Outcome, Rewrite
from tests.oldest_onnxruntime import failing_of_oldest
from tests.rewrite_run import apply_to_bytes, broken_surface, difference, outputs

ABSENT = "absent"
"""Stands for an input or output that is left out: the parser of onnx 1.17 forgets those without a name."""

SIZES = {"N": 3, "S": 5}
"""What symbolic dimensions are, unless a feed is given."""


def graph(signature: str, body: str, opset: int = 17, ir_version: int = 8, **arrays: Any) -> bytes:
    """A model: ``signature`` as ``(float[N,8] x) => (float[N,8] y)``, ``body`` its nodes, ``arrays`` its weights."""
    imports = f'["" : {opset}, "com.microsoft" : 1]' if "com.microsoft" in body else f'["" : {opset}]'
    named = re.sub(r"(^|[(,])\s*(?=,)", rf"\1 {ABSENT}", body)
    text = f"<ir_version: {ir_version}, opset_import: {imports}> made {signature} {{ {named} }}"
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["" if name == ABSENT else name for name in names]
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    return model.SerializeToString()  # type: ignore[no-any-return]


def overridable(model: bytes, *names: str) -> bytes:
    """The model with these initialisers as inputs too."""
    proto = onnx.load_from_string(model)
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return proto.SerializeToString()  # type: ignore[no-any-return]


def feeds_of(model: bytes, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    """Random inputs at :data:`SIZES`; only those without a default."""
    rng = np.random.default_rng(seed)
    made = {}
    for spec in describe(model).inputs:
        shape = [dim if isinstance(dim, int) else (SIZES | sizes)[str(dim)] for dim in spec.shape or ()]
        if spec.dtype == "bool":
            made[spec.name] = np.asarray(rng.random(shape) < 0.5)
        elif spec.dtype.startswith("int"):
            made[spec.name] = rng.integers(-9, 9, shape).astype(spec.dtype)
        else:
            made[spec.name] = np.asarray(rng.standard_normal(shape) * 2).astype(spec.dtype)
    return made


def rewritten(
    rewrite: Rewrite, model: bytes, feed: Mapping[str, Any] | None = None, **parameters: Any
) -> tuple[Any, Outcome]:
    """The model it makes, and what it says; asserts that surface and results stay as it promises."""
    feeds = [dict(feed)] if feed is not None else [feeds_of(model, seed) for seed in (0, 1)]
    made, outcome = apply_to_bytes(rewrite, model, feeds, parameters)
    before, after = onnx.load_from_string(model), onnx.load_from_string(made)
    assert broken_surface(before, after, rewrite) == []
    objection = rewrite.objection(describe(model))
    assert not (objection and outcome.changed), f"it changes what it objects to: {objection}"
    assert outcome.changed or outcome.notes, "no reason"
    for level in ("off", "default"):
        try:
            off = difference(outputs(made, feeds, level), outputs(model, feeds, level), rewrite.promise)
        except Exception as error:  # onnxruntime's many classes
            if (why := failing_of_oldest(error)) is not None:
                pytest.skip(why)
            raise
        assert off is None, f"level {level}: {off}\n{onnx.printer.to_text(after)}"
    return after, outcome


def operators(model: Any) -> Counter[str]:
    """Operator -> how often, subgraphs left out."""
    return Counter(f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in model.graph.node)


def assert_rewritten(rewrite: Rewrite, model: bytes, times: int = 1, **parameters: Any) -> Counter[str]:
    """It changes so many places; the operators afterwards."""
    after, outcome = rewritten(rewrite, model, **parameters)
    assert outcome.changed == times, outcome
    return operators(after)


def assert_left_alone(rewrite: Rewrite, model: bytes, reason: str, **parameters: Any) -> None:
    """It changes nothing, and says why in these words."""
    before = operators(onnx.load_from_string(model))
    after, outcome = rewritten(rewrite, model, **parameters)
    told = [*(site.reason for site in outcome.sites), *outcome.notes, rewrite.objection(describe(model)) or ""]
    assert not outcome.changed and operators(after) == before, outcome
    assert any(reason in text for text in told), told
