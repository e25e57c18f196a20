"""Weights that a rewritten model leaves where the original keeps them: in its external data files.

onnxruntime must be told the folder, since the rewritten model lies elsewhere and no location may leave the folder that
it is looked for in. A hard link beside the rewritten model would do for onnxruntime, but onnx (1.23) and onnx_ir (1.1)
then refuse the caller's own file, which has two names from then on; of a symbolic link onnxruntime 1.24 and later do
not take the data. Both seen.

That the files hold what they did is known from the model's hash, which covers them: a rewritten model is only ever
looked for by it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["FOLDER_KEY", "SMALLEST_BYTES", "Places", "folder_of", "given_to_onnxruntime", "out_of_reach", "weights_of"]

FOLDER_KEY = "session.model_external_initializers_file_folder_path"
"""Config entry of a session: where external data is looked for."""

SMALLEST_BYTES = 1024
"""Smaller weights go into the model: shapes and axes, which onnxruntime reads while it infers shapes."""

FOLDER_FOR_FILES_SINCE = (1, 28)
"""onnxruntime from which the config entry counts for a model given as a file; before, for bytes only (seen: 1.23.2,
1.27.0)."""


@dataclass(frozen=True)
class Places:
    """Where the original's external data lies.

    Attributes:
        folder: the folder that holds all of it, links resolved.
        locations: location as the original states it -> location below ``folder``. Another one where the original's
            is a symbolic link, as in the Hugging Face cache.
    """

    folder: Path = Path()
    locations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, folder: Path) -> Places:
        """Those of an onnx_ir model that was read from ``folder``; its tensors are read from there afterwards."""
        import onnx_ir

        outside = [value for value in weights_of(model) if isinstance(value.const_value, onnx_ir.ExternalTensor)]
        real = {str(value.const_value.location) for value in outside}
        places = cls._found(folder, real)
        for value in outside:
            value.const_value = _moved(value.const_value, places)
        return places

    @classmethod
    def _found(cls, folder: Path, locations: Iterable[str]) -> Places:
        real = {location: Path(os.path.realpath(folder / location)) for location in sorted(locations)}
        if not real:
            return cls()
        try:
            common = Path(os.path.commonpath([path.parent for path in real.values()]))
        except ValueError:  # on two drives
            return cls()
        return cls(common, {location: path.relative_to(common).as_posix() for location, path in real.items()})

    def referable(self, tensor: Any) -> bool:
        """Whether an onnx_ir tensor is one of the original's, as it was, and worth leaving where it is."""
        import onnx_ir

        return (
            isinstance(tensor, onnx_ir.ExternalTensor)
            and Path(tensor.base_dir) == self.folder
            and str(tensor.location) in self.locations.values()
            and tensor.nbytes > SMALLEST_BYTES
        )

    def used_by(self, model: Any) -> dict[str, str]:
        """Those of ``locations`` that the model still refers to."""
        used = {str(value.const_value.location) for value in weights_of(model) if self.referable(value.const_value)}
        return {stated: real for stated, real in self.locations.items() if real in used}


def weights_of(model: Any) -> Iterator[Any]:
    """Every initialiser of an onnx_ir model that has a value, those of bodies too."""
    for graph in model.graphs():
        yield from (value for value in graph.initializers.values() if value.const_value is not None)


def _moved(tensor: Any, places: Places) -> Any:
    """The same tensor, read from where it really lies: onnx_ir follows no link that leaves the folder."""
    import onnx_ir

    location = places.locations.get(str(tensor.location))
    if location is None:
        return tensor
    return onnx_ir.ExternalTensor(
        location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        base_dir=places.folder,
    )


def folder_of(model_folder: Path, locations: Mapping[str, str]) -> Path | None:
    """The folder to give onnxruntime for a rewritten model of the one in ``model_folder``.

    Args:
        model_folder: where the caller's model lies now.
        locations: as in :class:`Places`.

    Returns:
        None where the files are laid out otherwise than they were when the model was rewritten.
    """
    found = set()
    for stated, location in locations.items():
        real, below = Path(os.path.realpath(model_folder / stated)), PurePosixPath(location).parts
        if real.parts[-len(below) :] != below or not real.is_file():
            return None
        found.add(real.parents[len(below) - 1])
    return found.pop() if len(found) == 1 else None


def out_of_reach(model_file: Path, locations: Iterable[str]) -> list[str]:
    """External data that a model may not name: outside its folder, and outside the one its file really lies in.

    onnxruntime 1.24 and later refuse such a model. A rewritten one must not bring in what they would not read.
    """
    allowed = [Path(os.path.realpath(model_file.parent)), Path(os.path.realpath(model_file)).parent]
    real = {location: Path(os.path.realpath(model_file.parent / location)) for location in locations}
    return [
        location
        for location, path in real.items()
        if os.path.isabs(location) or not any(path.is_relative_to(folder) for folder in allowed)
    ]


def given_to_onnxruntime(model_file: Path) -> Path | bytes:
    """A model that refers to weights in another folder, in the form in which this onnxruntime finds them there."""
    import onnxruntime

    version = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    return model_file if version >= FOLDER_FOR_FILES_SINCE else model_file.read_bytes()
