"""A model while it is rewritten: as an onnx_ir model or as a file, whichever the next rewrite works on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ort_metainfer.errors import RewriteError
from ort_metainfer.rewrites.references import Places, weights_of

__all__ = ["INLINE_LIMIT_BYTES", "Draft"]

INLINE_LIMIT_BYTES = 1_000_000_000
"""Weights that are new (not by reference to the original's files) beyond this go to a file beside the model: protobuf
ends at 2 GB, and a gigabyte of message costs as much again to read."""

DATA_SUFFIX = ".data"


class _Description(NamedTuple):
    """What a caller can ask of a model beside what it computes."""

    model: Mapping[str, Any]
    metadata: Mapping[str, str]
    graph_name: str | None
    graph_doc_string: str | None

    @classmethod
    def of(cls, model: Any) -> _Description:
        names = ("producer_name", "producer_version", "domain", "model_version", "doc_string")
        told = {name: getattr(model, name) for name in names}
        return cls(told, dict(model.metadata_props), model.graph.name, model.graph.doc_string)

    def give_to(self, model: Any) -> None:
        for name, value in self.model.items():
            setattr(model, name, value)
        model.metadata_props.clear()
        model.metadata_props.update(self.metadata)
        model.graph.name, model.graph.doc_string = self.graph_name, self.graph_doc_string


class Draft:
    """The model at its present state.

    Args:
        file: the original; never written to.
        folder: where intermediate files go.

    Attributes:
        original: the file it began with; external data is looked for beside it.
        referenced: after :meth:`save`: location of external data as the original states it -> location below the
            folder that really holds it (see :class:`ort_metainfer.rewrites.references.Places`).
    """

    def __init__(self, file: Path, folder: Path) -> None:
        self.original, self._folder = Path(file), Path(folder)
        self._file: Path | None = self.original
        self._ir: Any = None
        self._count = 0
        self._places = Places()
        self._description: _Description | None = None
        self.referenced: Mapping[str, str] = {}

    @property
    def ir(self) -> Any:
        """The model as onnx_ir.Model, to be changed in place; weights in external files stay there until read.

        Raises:
            RewriteError: onnx_ir cannot read it.
        """
        if self._ir is None:
            assert self._file is not None
            self._ir = self._load(self._file)
            if self._file == self.original:
                self._places = Places.of(self._ir, self.original.parent)
                self._description = _Description.of(self._ir)
        self._file = None  # whoever has it may change it
        return self._ir

    def _load(self, file: Path) -> Any:
        import onnx_ir

        try:
            return onnx_ir.load(file)
        except Exception as error:
            raise RewriteError(f"{self.original}: onnx_ir cannot read it: {error}") from error

    def file(self) -> Path:
        """The model as a file, with every tensor in reach; to be read only."""
        if self._file is None:
            self._count += 1
            self._file = self._folder / f"draft{self._count}.onnx"
            self._write(self._file)
        return self._file

    def take(self, file: Path) -> None:
        """Go on with the model in ``file``, which a tool that works on files has made."""
        self._file, self._ir = Path(file), None

    def go_on_with(self, model: Any) -> None:
        """Go on with another onnx_ir model, made of this one."""
        self._file, self._ir = None, model

    def save(self, target: Path, may_refer: bool = False) -> list[Path]:
        """Write the model to ``target`` with the original's description; returns the files written, the model's first.

        Args:
            target: a file.
            may_refer: whether weights that are the original's, as they were, may stay in its external data files;
                ``referenced`` then says in which. Else, and where what is new takes a file of its own, all weights
                are written.

        Raises:
            RewriteError: it cannot be written.
        """
        model = self.ir  # a file that a tool made may name external data that is not beside ``target``
        description = self._description or _Description.of(self._load(self.original))
        description.give_to(model)
        self.referenced = self._write(target, self._places if may_refer else Places())
        data = target.with_name(target.name + DATA_SUFFIX)
        return [target, *([data] if data.exists() else [])]

    def _write(self, target: Path, places: Places = Places()) -> Mapping[str, str]:  # noqa: B008 (frozen)
        """Write the model, but for weights in ``places``; returns those of them that it refers to."""
        import onnx_ir

        os.makedirs(target.parent, exist_ok=True)
        model = self._ir
        written = [value for value in weights_of(model) if not places.referable(value.const_value)]
        is_large = sum(value.const_value.nbytes for value in written) > INLINE_LIMIT_BYTES
        try:
            if not is_large:
                _read_into_memory(written)
            onnx_ir.save(model, target, external_data=target.name + DATA_SUFFIX if is_large else None)
        except Exception as error:
            raise RewriteError(f"{self.original}: its rewritten form cannot be written to {target}: {error}") from error
        return {} if is_large else places.used_by(model)


def _read_into_memory(values: list[Any]) -> None:
    """Weights that lie in files, so that they are written into the model."""
    import onnx_ir

    outside = [value for value in values if isinstance(value.const_value, onnx_ir.ExternalTensor)]
    read = onnx_ir.external_data.convert_tensors_from_external([value.const_value for value in outside])
    for value, tensor in zip(outside, read, strict=True):
        value.const_value = tensor
