"""Every fusion on every real model: results and surface stay, and the fusions that have new work find it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.model.graph import describe
from ort_metainfer.model.inputs import synthetic
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.registry import all_rewrites, get_rewrite
from ort_metainfer.rewrites.rewriting import blocker
from tests.rewrite_run import LEVELS, apply, broken_surface, difference, outputs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ZOO = [
    *("ppocr_v6_det", "ppocr_v6_rec", "ppocr_cls", "doc_orientation", "opennsfw_resnet50", "minilm_l3_fp32"),
    *("t5_encoder_int8", "t5_decoder_int8", "kokoro_int8", "silero_vad", "silero_vad_ifless", "magika_v3"),
    *("spindle_unet1d", "painn_gnn", "sk_mlp_tiny", "sk_tree_tiny"),
]

FOUND = {
    ("doc_orientation", "batch-norm-into-linear"): 27,
    ("minilm_l3_fp32", "fold-shapes"): 15,
    ("minilm_l3_fp32", "fuse-skip-layer-norm"): 3,
    ("minilm_l3_fp32", "merge-parallel-products"): 3,
    ("opennsfw_resnet50", "fuse-conv"): 33,
    ("painn_gnn", "fold-shapes"): 14,
    ("ppocr_cls", "batch-norm-into-linear"): 35,
    ("ppocr_cls", "scale-before-linear"): 9,
    ("ppocr_v6_det", "remove-no-ops"): 147,
    ("silero_vad", "fold-constants"): 16,
    ("spindle_unet1d", "batch-norm-before-linear"): 8,
    ("t5_encoder_int8", "merge-duplicate-nodes"): 285,
}
"""Places that a fusion rewrites in a model; a change of the rewrite that loses them is to be noticed."""


def feeds_of(zoo: Path, name: str, graph: Graph) -> tuple[dict[str, Any], ...]:
    """Real inputs where the zoo's folder has them (``inputs/NAME/*.npz``), synthetic ones otherwise."""
    files = sorted((zoo / "inputs" / name).glob("*.npz"))
    if files:
        return tuple(dict(np.load(file)) for file in files[:2])
    return (synthetic(graph, {}, seed=0),)


def applicable(graph: Graph) -> list[Rewrite]:
    """The fusions that have something to do for a model.

    Where a model quantises as it runs, a rounding error becomes a step of the quantiser: exact ones only.
    """
    steps = graph.quantisation in ("dynamic", "qdq")
    return [
        rewrite
        for rewrite in all_rewrites()
        if rewrite.dimension == "fusion"
        and rewrite.objection(graph) is None
        and (rewrite.promise == "exact" or not steps)
    ]


@pytest.mark.parametrize("name", ZOO)
def test_a_real_model_gives_the_same_after_every_fusion(
    zoo: Path, zoo_model: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    path = zoo_model(name)
    graph = describe(path)
    assert blocker(graph) is None or pytest.skip(str(blocker(graph)))
    feeds, before = feeds_of(zoo, name, graph), onnx.load(str(path), load_external_data=False)
    expected = {level: outputs(path, feeds, level) for level in LEVELS}
    broken = []
    for rewrite in applicable(graph):
        applied = apply(rewrite, path, tmp_path / rewrite.name, graph, feeds)
        wanted = FOUND.get((name, rewrite.name))
        if wanted is not None and applied.outcome.changed != wanted:
            broken.append(f"{rewrite.name}: {applied.outcome.changed} places instead of {wanted}")
        if applied.outcome.changed:
            broken += [f"{rewrite.name}: {fault}" for fault in faults(rewrite, applied.file, before, feeds, expected)]
        for file in sorted((tmp_path / rewrite.name).rglob("*.onnx*")):
            file.unlink()
    assert not broken, "\n".join(broken)


def faults(rewrite: Rewrite, file: Path, before: Any, feeds: Any, expected: Any) -> list[str]:
    """What is wrong with a rewritten model. onnxruntime may take another kernel for a weight that is a constant now:
    exact ones are held to rounding."""
    found = broken_surface(before, onnx.load(str(file), load_external_data=False), rewrite)
    off = [difference(outputs(file, feeds, level), expected[level], "float32-equivalent") for level in LEVELS]
    return found + [fault for fault in off if fault]


def test_a_transformers_shapes_attention_and_norms_fuse_behind_one_another(
    zoo: Path, zoo_model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = zoo_model("minilm_l3_fp32")
    original = describe(path)
    feeds, file = feeds_of(zoo, "minilm_l3_fp32", original), path
    for name, parameters, wanted in (
        ("fold-shapes", {}, 15),
        ("fuse-skip-layer-norm", {}, 3),
        ("merge-parallel-products", {}, 3),
        ("fuse-attention", {"trust_masks": True}, 3),
    ):
        applied = apply(get_rewrite(name), file, tmp_path / name, describe(file), feeds, parameters)
        assert applied.outcome.changed == wanted, applied.outcome
        file = applied.file
    assert describe(file).count("com.microsoft.MultiHeadAttention", "com.microsoft.SkipLayerNormalization") == 6
    assert difference(outputs(file, feeds), outputs(path, feeds), "float32-equivalent") is None
