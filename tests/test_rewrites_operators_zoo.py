"""Every operator rewrite keeps the results of trained models, and finds in them what they are known to hold."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx
import pytest

from ort_metainfer.model.graph import describe
from ort_metainfer.model.inputs import synthetic
from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.registry import FAMILIES, get_rewrite
from tests.rewrite_run import apply, broken_surface, difference, error_of, outputs
from tests.rewrite_trials import NOISE_FACTOR
from tests.rounding_noise import rounding_noise

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHAPES = {
    "ppocr_v6_det": {"x": (1, 3, 64, 96)},
    "ppocr_v6_rec": {"x": (1, 3, 48, 64)},
    "ppocr_cls": {"x": (1, 3, 48, 192)},
    "opennsfw_resnet50": {},
    "doc_orientation": {"x": (1, 3, 224, 224)},
    "minilm_l3_fp32": dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 12)),
    "silero_vad": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    "magika_v3": {},
}

HELD = {
    ("minilm_l3_fp32", "layer-norm-to-composed"): 7,
    ("minilm_l3_fp32", "gelu-to-contributed"): 3,
    ("ppocr_v6_det", "resize-to-expand"): 6,
    ("ppocr_v6_det", "conv-transpose-to-depth-to-space"): 2,
    ("ppocr_v6_det", "conv-to-matmul"): 61,
    ("doc_orientation", "hard-swish-to-composed"): 28,
    ("silero_vad", "one-dimension-to-two"): 10,
    ("magika_v3", "matmul-to-conv"): 2,
}
"""(model, rewrite) -> how many places it is known to change there."""

OPERATORS = [family for family in FAMILIES if family.startswith("operators")]


def shaped(name: str, graph: object) -> dict[str, tuple[int, ...]]:
    given = dict(SHAPES[name])
    for spec in graph.inputs:  # type: ignore[attr-defined]
        given.setdefault(spec.name, tuple(dim if isinstance(dim, int) else 1 for dim in spec.shape or ()))
    return {spec.name: given[spec.name] for spec in graph.inputs}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SHAPES)
def test_a_trained_model_keeps_its_results(name: str, zoo_model: Callable[[str], Path], tmp_path: Path) -> None:
    file = zoo_model(name)
    graph = describe(file)
    feeds = [synthetic(graph, shaped(name, graph), seed) for seed in (0, 1)]
    expected = outputs(file, feeds)
    before = onnx.load(str(file))
    rewrites = [made for family in OPERATORS for made in import_module(f"ort_metainfer.rewrites.{family}").REWRITES]
    faults = []
    for rewrite in (made for made in rewrites if made.objection(graph) is None):
        applied = apply(rewrite, file, tmp_path / rewrite.name, graph, feeds)
        if not applied.outcome.changed:
            continue
        faults += [f"{rewrite.name}: {fault}" for fault in broken_surface(before, applied.model, rewrite)]
        got = outputs(applied.file, feeds)
        off = difference(got, expected, rewrite.promise)
        if off and not explained_by_rounding(file, feeds, got, expected):
            faults.append(f"{rewrite.name}: {off}")
    assert not faults


def explained_by_rounding(file: Path, feeds: Any, got: Any, expected: Any) -> bool:
    """Whether one rounding of every value in the model moves its results about as much (a variance by cancellation)."""
    noise = rounding_noise(file.read_bytes(), feeds)
    errors = [error_of(a, b) for x, y in zip(got, expected, strict=True) for a, b in zip(x, y, strict=True)]
    return max(errors) <= NOISE_FACTOR * noise


@pytest.mark.parametrize(("model", "name"), HELD)
def test_a_trained_model_holds_the_pattern(
    model: str, name: str, zoo_model: Callable[[str], Path], tmp_path: Path
) -> None:
    file, rewrite = zoo_model(model), get_rewrite(name)
    applied = apply(rewrite, file, tmp_path, describe(file))
    assert applied.outcome.changed == HELD[model, name]


def test_norms_of_an_old_model_become_native_once_its_opset_has_them(
    zoo_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Two rewrites, one after the other: the second finds what the first made possible."""
    file = zoo_model("ppocr_v6_rec")
    graph = describe(file)
    feeds = [synthetic(graph, SHAPES["ppocr_v6_rec"], 0)]
    newer = apply(get_rewrite("convert-opset"), file, tmp_path / "opset", graph)
    native: Rewrite = get_rewrite("layer-norm-to-native")
    applied = apply(native, newer.file, tmp_path / "native", describe(newer.file))
    assert newer.outcome.changed and applied.outcome.changed
    assert difference(outputs(applied.file, feeds), outputs(file, feeds), native.promise) is None
