"""Einsum of one or two operands as Transpose, ReduceSum, MatMul and Mul."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.building import Builder
from ort_metainfer.rewrites.node_rewrite import OperatorRewrite, Plan, Surroundings
from ort_metainfer.rewrites.patterns import FLOATS, attribute, dims, dtype

__all__ = ["REWRITES", "EinsumToMatMul"]


class EinsumToMatMul(OperatorRewrite):
    """Einsum by the products and transpositions it stands for.

    Einsum lets a size of one meet a larger one, a matrix product does not: a letter that two operands share must be
    known to have the same size in both.
    """

    name = "einsum-to-matmul"
    operators = ("Einsum",)
    least_opset = 12

    def match(self, node: Any, around: Surroundings) -> Plan | str | None:
        """One or two operands, no ellipsis, no letter twice in one operand."""
        terms = _parse(attribute(node, "equation", ""))
        if terms is None or len(terms[0]) != len(node.inputs) or len(node.inputs) > 2:
            return "it has an ellipsis, or more than two operands"
        if dtype(node.inputs[0]) not in FLOATS:
            return f"a product of {dtype(node.inputs[0]) or 'unknown type'} is left alone"
        operands, output = terms
        if any(len(set(letters)) != len(letters) for letters in (*operands, output)):
            return "a letter stands twice in one operand: a diagonal"
        sizes = _sizes(operands, output, [dims(value) for value in node.inputs])
        if isinstance(sizes, str):
            return sizes
        if len(operands) == 1:
            return Plan(node, lambda make: _moved(make, node.inputs[0], operands[0], output))
        plan = _Product(operands[0], operands[1], output, sizes)
        return plan.objection() or Plan(node, lambda make: plan.make(make, *node.inputs))


def _parse(equation: str | bytes) -> tuple[list[str], str] | None:
    """Letters of the operands and of the result; None where it has an ellipsis."""
    text = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    if "." in text:
        return None
    left, arrow, right = text.partition("->")
    operands = left.split(",")
    if not arrow:  # then: every letter that stands once, in order
        right = "".join(letter for letter in sorted(set(left) - {","}) if left.count(letter) == 1)
    return operands, right


def _sizes(operands: list[str], output: str, shapes: list[Any]) -> dict[str, int | None] | str:
    """Size of each letter, where known; or why one that is summed over may be two sizes."""
    sizes: dict[str, int | None] = {}
    for letters, shape in zip(operands, shapes, strict=True):
        if shape is None or len(shape) != len(letters):
            return "the ranks of its operands are not known"
        for letter, size in zip(letters, shape, strict=True):
            if letter in sizes and letter not in output and (size is None or sizes[letter] != size):
                return f"the sizes of {letter} are not known to be the same in both operands"
            sizes[letter] = size
    return sizes


def _moved(make: Builder, value: Any, letters: str, order: str) -> Any:
    """Letters summed away that ``order`` has not, the others brought into its order."""
    gone = [axis for axis, letter in enumerate(letters) if letter not in order]
    if gone:
        value = make.sum(value, gone, keepdims=0)
        letters = "".join(letter for letter in letters if letter in order)
    if letters == order:
        return value
    return make("Transpose", value, perm=[letters.index(letter) for letter in order])


@dataclass(frozen=True)
class _Product:
    """The einsum of two operands: batch, left, contracted and right letters."""

    first: str
    second: str
    output: str
    sizes: dict[str, int | None]

    def _group(self, in_first: bool, in_second: bool, in_output: bool) -> str:
        letters = self.output if in_output else self.first
        return "".join(
            letter
            for letter in letters
            if (letter in self.first, letter in self.second, letter in self.output) == (in_first, in_second, in_output)
        )

    @property
    def batch(self) -> str:
        """Letters in both operands and the result."""
        return self._group(True, True, True)

    @property
    def left(self) -> str:
        """Letters in the first operand and the result."""
        return self._group(True, False, True)

    @property
    def right(self) -> str:
        """Letters in the second operand and the result."""
        return self._group(False, True, True)

    @property
    def contracted(self) -> str:
        """Letters in both operands, summed over."""
        return self._group(True, True, False)

    @property
    def spreads(self) -> bool:
        """Whether the left letters can stay axes of their own: the second operand is then a single matrix."""
        return not self.batch and len(self.left) > 1

    def objection(self) -> str | None:
        """Several letters become one axis, whose size must then be known."""
        if not self.contracted:
            return None
        groups = [self.contracted, self.right] if self.spreads else [self.left, self.contracted, self.right]
        unknown = [letter for group in groups if len(group) > 1 for letter in group if self.sizes[letter] is None]
        return f"the size of {unknown[0]} is not known, which is merged with others" if unknown else None

    def make(self, make: Builder, first: Any, second: Any) -> Any:
        """The nodes for it; the last gives the result."""
        batch, left, right, contracted = self.batch, self.left, self.right, self.contracted
        if not contracted:
            one = _moved(make, first, self.first, batch + left)
            other = _moved(make, second, self.second, batch + right)
            one = make.unsqueeze(one, _range(len(batch + left), len(right))) if right else one
            other = make.unsqueeze(other, _range(len(batch), len(left))) if left else other
            return _moved(make, make("Mul", one, other), batch + left + right, self.output)
        one = self._matrix(make, _moved(make, first, self.first, batch + left + contracted), left, contracted)
        other = self._matrix(make, _moved(make, second, self.second, batch + contracted + right), contracted, right)
        made = self._split(make, make("MatMul", one, other))
        return _moved(make, made, batch + left + right, self.output)

    def _matrix(self, make: Builder, value: Any, rows: str, columns: str) -> Any:
        """The last letters as two axes, unless the rows stay as they are."""
        apart = self.spreads and rows == self.left
        if len(columns) == 1 and (apart or len(rows) == 1):
            return value
        kept = rows if apart else ""
        sizes = [0] * len(self.batch + kept)
        if not apart:
            sizes.append(self._merged(rows, 0))
        return make("Reshape", value, np.asarray([*sizes, self._merged(columns, -1)], np.int64))

    def _merged(self, group: str, unknown: int) -> int:
        """Size of a group as one axis: of one open letter ``unknown``, 0 to copy it, -1 for what remains."""
        known = [size for letter in group if (size := self.sizes[letter]) is not None]
        return unknown if len(known) < len(group) else int(np.prod(known, dtype=np.int64))

    def _split(self, make: Builder, value: Any) -> Any:
        """The product's axes as the letters they stand for."""
        left, right = self.left, self.right
        if len(right) == 1 and (len(left) == 1 or self.spreads):
            return value
        copied = len(self.batch + left) if len(left) == 1 or self.spreads else len(self.batch)
        rest = (left + right)[copied - len(self.batch) :]
        sizes = [-1 if (size := self.sizes[letter]) is None else size for letter in rest]
        return make("Reshape", value, np.asarray([0] * copied + sizes, np.int64))


def _range(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


REWRITES: tuple[Rewrite, ...] = (EinsumToMatMul(),)
