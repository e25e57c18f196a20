"""Weights in 8 or 4 bits, in blocks that have a scale each; onnxruntime's MatMulNBits computes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Outcome, Parameter, Rewrite, Site
from ort_metainfer.rewrites.building import Builder, Names, replace
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.patterns import all_graphs, learn_types, rank
from ort_metainfer.rewrites.precision_dynamic import added
from ort_metainfer.rewrites.products import CHOICE, Product, check_names, label_of, products

__all__ = ["REWRITES", "Int4Weights", "Int8Weights"]

MOST_SITES = 100
BLOCKS = (16, 32, 64, 128, 256)
LEVELS = (0, 1, 4)
"""MatMulNBits' accuracy_level: 0 leaves it to the provider, 1 computes in float32, 4 rounds activations to int8, each
row in blocks."""


class _NBits(Rewrite):
    """MatMul and Gemm by a constant as com.microsoft.MatMulNBits."""

    dimension = "precision"
    promise = "lossy"
    providers = ("CPUExecutionProvider", "CUDAExecutionProvider", "DmlExecutionProvider", "WebGpuExecutionProvider")
    bits: ClassVar[int]

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        """No product, or quantised already."""
        if not graph.count("MatMul", "Gemm"):
            return "the model has no MatMul or Gemm"
        if graph.quantisation != "none":
            return f"the model is quantised already ({graph.quantisation})"
        return None

    def rewrite(self, draft: Draft, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        """Replace every product that can be, subgraphs included; weights are read one at a time."""
        reason = self.objection(context.graph)
        if reason is not None:
            return Outcome(0, notes=(reason,))
        model = draft.ir
        learn_types(model)
        graphs, names = all_graphs(model), Names(model)
        check_names(self.name, model, parameters)
        notes: list[str] = []
        opset = int(model.graph.opset_imports.get("", 0))
        sites: list[Site] = []
        for graph in graphs:
            for item in products(graph, parameters):
                reason = self._unfit(item, parameters) if isinstance(item, Product) else item.reason
                node = item.node
                if isinstance(item, Product):
                    node = label_of(item.node)
                    if reason is None:
                        self._replace(item, Builder(item.node, names, "bits", opset, model.ir_version), parameters)
                sites.append(Site(node, reason or ""))
        changed = sum(not site.reason for site in sites)
        if changed:
            model.graph.opset_imports.setdefault("com.microsoft", 1)
        else:
            notes += list(dict.fromkeys(site.reason for site in sites))[:3] or ["no product with a constant"]
        return Outcome(changed, tuple(sites[:MOST_SITES]), tuple(notes))

    def _unfit(self, product: Product, parameters: Mapping[str, Any]) -> str | None:
        axes = rank(product.data)
        if axes is None or axes < 2:
            return "the rank of its first operand is not known" if axes is None else "its first operand is a vector"
        if product.matrix().shape[0] < parameters["block_size"]:
            return f"its weight has {product.matrix().shape[0]} rows only, less than a block"
        return None

    def _replace(self, product: Product, builder: Builder, parameters: Mapping[str, Any]) -> None:
        matrix, block = np.ascontiguousarray(product.matrix(), np.float32), parameters["block_size"]
        packed, scales, zeros = _in_blocks(matrix, self.bits, block, parameters["symmetric"])
        value = builder(
            "MatMulNBits",
            product.data,
            packed,
            scales,
            *([] if parameters["symmetric"] else [zeros]),
            domain="com.microsoft",
            K=matrix.shape[0],
            N=matrix.shape[1],
            bits=self.bits,
            block_size=block,
            accuracy_level=int(parameters["accuracy_level"]) or None,
        )
        replace(product.node, [added(value, product, builder)], builder)


def _in_blocks(matrix: np.ndarray, bits: int, block: int, symmetric: bool) -> Any:
    """Packed values, scales and zero points as MatMulNBits wants them: the operator's layout is the quantiser's own."""
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, DefaultWeightOnlyQuantizer

    config = DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=symmetric, bits=bits)
    return DefaultWeightOnlyQuantizer(config).qbits_block_quant(matrix)


def _parameters(block_size: int) -> Mapping[str, Parameter]:
    """What both take, with the block size that one starts from."""
    return {
        "block_size": Parameter(int, block_size, "weights that share a scale", values=BLOCKS),
        "symmetric": Parameter(bool, True, "no zero points"),
        "accuracy_level": Parameter(int, 4, "what is computed in: 4 int8, 1 float32, 0 what it likes", values=LEVELS),
        **CHOICE,
    }


class Int8Weights(_NBits):
    """Weights in 8 bits with a scale for each block of a column; with accuracy_level 4 the product is one of integers.

    Nearer to float32 than ``int8-dynamic``, as every row of an activation has scales of its own.
    """

    name = "int8-weights"
    bits = 8
    parameters = _parameters(block_size=128)
    evidence = (
        "never measured to pay on a quiet machine; MiniLM's error is 0.02, and only accuracy_level 4 was not slower "
        "than float32 on a processor with AVX-512"
    )


class Int4Weights(_NBits):
    """Weights in 4 bits with a scale for each block of a column: an eighth of the memory, for large models."""

    name = "int4-weights"
    bits = 4
    parameters = _parameters(block_size=32)
    evidence = (
        "never measured to pay here: MiniLM's error is 0.2; it is for products that wait for memory, one row at a time"
    )


REWRITES = (Int8Weights(), Int4Weights())
