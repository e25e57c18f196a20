"""A model while it is rewritten: as an onnx_ir model or as a file, whichever the next rewrite works on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ort_metainfer.errors import RewriteError

__all__ = ["INLINE_LIMIT_BYTES", "Draft"]

INLINE_LIMIT_BYTES = 1_000_000_000
"""Weights that are new (not by reference to the original's files) beyond this go to a file beside the model: protobuf
ends at 2 GB, and a gigabyte of message costs as much again to read."""

DATA_SUFFIX = ".data"


class Draft:
    """The model at its present state.

    Args:
        file: the original; never written to.
        folder: where intermediate files go.

    Attributes:
        original: the file it began with; external data is looked for beside it.
    """

    def __init__(self, file: Path, folder: Path) -> None:
        self.original, self._folder = Path(file), Path(folder)
        self._file: Path | None = self.original
        self._ir: Any = None
        self._count = 0

    @property
    def ir(self) -> Any:
        """The model as onnx_ir.Model, to be changed in place; weights in external files stay there until read.

        Raises:
            RewriteError: onnx_ir cannot read it.
        """
        import onnx_ir

        if self._ir is None:
            try:
                self._ir = onnx_ir.load(self._file)  # type: ignore[arg-type]
            except Exception as error:
                raise RewriteError(f"{self.original}: onnx_ir cannot read it: {error}") from error
        self._file = None  # whoever has it may change it
        return self._ir

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

    def save(self, target: Path) -> list[Path]:
        """Write the model to ``target``, all weights included; returns the files written, the model's first.

        Raises:
            RewriteError: it cannot be written.
        """
        self.ir  # noqa: B018 (a file that a tool made may name external data that is not beside ``target``)
        self._write(target)
        data = target.with_name(target.name + DATA_SUFFIX)
        return [target, *([data] if data.exists() else [])]

    def _write(self, target: Path) -> None:
        import onnx_ir

        os.makedirs(target.parent, exist_ok=True)
        model = self._ir
        external = target.name + DATA_SUFFIX if _weight_bytes(model) > INLINE_LIMIT_BYTES else None
        try:
            if external is None:
                onnx_ir.external_data.load_to_model(model)
            onnx_ir.save(model, target, external_data=external)
        except Exception as error:
            raise RewriteError(f"{self.original}: its rewritten form cannot be written to {target}: {error}") from error


def _weight_bytes(model: Any) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
