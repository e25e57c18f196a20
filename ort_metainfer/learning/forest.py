"""A forest of regression trees as plain arrays, as ONNX and back: what is shipped, and needs no scikit-learn to run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

__all__ = ["INPUT", "OUTPUT", "Forest", "Tree", "to_onnx"]

INPUT, OUTPUT = "features", "trees"

OPSET, ML_OPSET = 17, 3
"""TreeEnsembleRegressor with ``nodes_missing_value_tracks_true`` is in every onnxruntime that this package runs on."""


@dataclass(frozen=True, eq=False)
class Tree:
    """Nodes of one tree, the root first; a leaf has no children (-1).

    At an inner node a row goes left where its feature is at most the threshold, or is NaN and ``missing_left``.
    """

    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    missing_left: NDArray[np.bool_]
    value: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees over the same ``columns`` features."""

    trees: tuple[Tree, ...]
    columns: int

    def predict(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Each tree's answer for each row: rows x trees. The reference for what onnxruntime computes."""
        rows = np.ascontiguousarray(features, dtype=np.float32)
        return np.stack([_descend(tree, rows) for tree in self.trees], axis=1)


def _descend(tree: Tree, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    node, index = np.zeros(len(rows), dtype=np.int32), np.arange(len(rows))
    while True:
        inner = tree.left[node] >= 0
        if not inner.any():
            return tree.value[node]
        found = rows[index, np.maximum(tree.feature[node], 0)]
        to_left = np.where(np.isnan(found), tree.missing_left[node], found <= tree.threshold[node])
        node = np.where(inner, np.where(to_left, tree.left[node], tree.right[node]), node)


def to_onnx(forest: Forest) -> onnx.ModelProto:
    """The forest as one TreeEnsembleRegressor with a target for each tree, so that one run gives every tree's word."""
    from onnx import TensorProto, helper

    attributes: dict[str, list[Any]] = {name: [] for name in (*NODE_ATTRIBUTES, *TARGET_ATTRIBUTES)}
    for number, tree in enumerate(forest.trees):
        for name, values in _attributes(number, tree):
            attributes[name] += values
    node = helper.make_node(
        "TreeEnsembleRegressor",
        [INPUT],
        [OUTPUT],
        domain="ai.onnx.ml",
        n_targets=len(forest.trees),
        aggregate_function="SUM",
        post_transform="NONE",
        **attributes,
    )
    graph = helper.make_graph(
        [node],
        "forest",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["rows", forest.columns])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["rows", len(forest.trees)])],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="ort-metainfer")


NODE_ATTRIBUTES = (
    "nodes_treeids",
    "nodes_nodeids",
    "nodes_featureids",
    "nodes_modes",
    "nodes_values",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "nodes_missing_value_tracks_true",
)

TARGET_ATTRIBUTES = ("target_treeids", "target_nodeids", "target_ids", "target_weights")


def _attributes(number: int, tree: Tree) -> Iterator[tuple[str, list[Any]]]:
    count = len(tree.left)
    is_leaf = tree.left < 0
    leaves = np.flatnonzero(is_leaf)
    yield "nodes_treeids", [number] * count
    yield "nodes_nodeids", list(range(count))
    yield "nodes_featureids", np.where(is_leaf, 0, tree.feature).tolist()
    yield "nodes_modes", ["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf.tolist()]
    yield "nodes_values", np.where(is_leaf, 0.0, tree.threshold).tolist()
    yield "nodes_truenodeids", np.where(is_leaf, 0, tree.left).tolist()
    yield "nodes_falsenodeids", np.where(is_leaf, 0, tree.right).tolist()
    yield "nodes_missing_value_tracks_true", np.where(is_leaf, 0, tree.missing_left).tolist()
    yield "target_treeids", [number] * len(leaves)
    yield "target_nodeids", leaves.tolist()
    yield "target_ids", [number] * len(leaves)
    yield "target_weights", tree.value[leaves].tolist()
