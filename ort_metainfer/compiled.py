"""Models compiled for a device, kept below the cache directory so that the next start need not compile again.

Each lies in a folder of its own, ``compiled/NAME``: an ONNX model, the blobs it names, and a record of what it is for
and what its files must be. It is made under another name, checked, and renamed: a folder that bears the right name is
whole. Anything that differs (the model, the device, an option, a version) is another name. What is damaged all the same
is noticed by its digests when it is loaded, and dropped: the original model then does.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ort_metainfer.compiled_key import CompiledKey, canonical

__all__ = [
    "MAX_TOTAL_BYTES",
    "MODEL_FILE",
    "Compiled",
    "compiled_for",
    "digest_folder",
    "discard",
    "keep",
    "made_with_any_inputs",
    "part_folder",
    "prune",
    "remove_all",
    "strategy_file",
    "unsupported",
]

FORMAT = 1
"""Raised when what a record says changes meaning."""

MODEL_FILE = "model.onnx"
RECORD_FILE = "compiled.json"

MAX_TOTAL_BYTES = 4 << 30
"""What all compiled models of a cache may take together; those unused longest go first."""


@dataclass(frozen=True)
class Compiled:
    """A compiled model that was found whole.

    Attributes:
        folder: where it lies.
        form: ``EPContext`` or ``optimised model``.
        key: what it is for.
        metadata: what the original's ``get_modelmeta()`` says, attribute by attribute.
        compatibility: provider's name -> what it says the compiled model needs, for
            ``get_model_compatibility_for_ep_devices``.
        figures: milliseconds and errors from when it was made.
        size_bytes: all its files.
        made_at: ISO 8601 date.
        referenced: external data files of the caller's model that it needs too; their content is part of the model's
            hash, which is part of the key (see ``rewrites.references.Places``).
    """

    folder: Path
    form: str
    key: CompiledKey
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)  # some models keep a dictionary there
    compatibility: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    size_bytes: int = 0
    made_at: str = ""
    referenced: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_file(self) -> Path:
        """The file to give onnxruntime."""
        return self.folder / MODEL_FILE


def compiled_for(directory: Path, key: CompiledKey, name: str | None = None) -> Compiled | str:
    """The compiled model for ``key``, or one sentence why there is none; one that is damaged is removed.

    Args:
        directory: the cache's.
        key: what it must be for.
        name: of its folder, where a decision names it: it is then right whatever inputs it was made with.
    """
    folder = _place(directory) / (name or key.folder_name)
    try:
        record = _read_record(folder)
    except FileNotFoundError:
        return f"it was not compiled under these circumstances: {_nearest(directory, key)}"
    except PermissionError as error:  # another user's cache
        return f"the compiled model in {folder} cannot be read: {error.strerror}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        discard(folder)
        return f"the compiled model in {folder} was damaged and is dropped: {error or type(error).__name__}"
    if record.key != (key if name is None else replace(key, inputs=record.key.inputs)):  # 64 bits of a digest agree
        return "another compiled model bears its name"
    with suppress(OSError):  # a cache that may only be read
        os.utime(folder / RECORD_FILE)
    return record


def made_with_any_inputs(directory: Path, key: CompiledKey) -> Compiled | str:
    """The same for any inputs; the one used last where there are several."""
    for folder, _, _ in sorted(_folders(directory), key=lambda entry: -entry[2]):
        if folder.name.startswith(key.folder_name.partition("-")[0]):
            found = compiled_for(directory, key, folder.name)
            if isinstance(found, Compiled):
                return found
    return compiled_for(directory, key)


def unsupported(compiled: Compiled) -> str | None:
    """Why the providers here would not run it, or run it badly, as onnxruntime tells; None where nothing is said.

    The strategy's provider must have been attached before.
    """
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    ask = getattr(binding, "get_model_compatibility_for_ep_devices", None)
    if ask is None or not compiled.compatibility:
        return None
    for name, text in compiled.compatibility.items():
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
        verdicts = [_verdict(ask, device, text) for device in devices]
        bad = [verdict for verdict in verdicts if verdict in ("EP_UNSUPPORTED", "EP_SUPPORTED_PREFER_RECOMPILATION")]
        if verdicts and len(bad) == len(verdicts):
            return f"{name} says {bad[0]}"
    return None


def _verdict(ask: Any, device: Any, text: str) -> str:
    try:
        return str(ask([device], text).name)
    except Exception:  # noqa: BLE001 (QNN's raises for whatever is no NPU: that is no answer)
        return ""


@contextmanager
def part_folder(directory: Path) -> Iterator[Path]:
    """A folder (0700) to compile into, gone afterwards unless :func:`keep` renamed it; sweeps what was left behind.

    Raises:
        OSError: it cannot be made.
    """
    from ort_metainfer.scratch import PREFIX, sweep

    place = _place(directory)
    os.makedirs(place, mode=0o700, exist_ok=True)
    sweep(place)
    part = place / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    part.mkdir(mode=0o700)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def keep(directory: Path, part: Path, compiled: Compiled) -> Compiled:
    """Make what lies in ``part`` the compiled model of its key, and make room for it.

    Raises:
        OSError: it cannot be written down.
    """
    files = digest_folder(part)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    size = sum(int(facts["bytes"]) for facts in files.values())
    final = _place(directory) / compiled.key.folder_name
    compiled = replace(compiled, folder=final, size_bytes=size, made_at=now)
    rest = {name: value for name, value in asdict(compiled).items() if name != "folder"}
    record = {"format": FORMAT, "files": files, **rest}
    text = canonical({"seal": hashlib.sha256(canonical(record)).hexdigest(), **record})
    with open(part / RECORD_FILE, "wb") as file:
        file.write(text)
    for path in part.iterdir():
        _settle(path)
    discard(final)
    os.rename(part, final)
    prune(directory, keep_names=(final.name,))
    return compiled


def digest_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of each file of a compiled model but its record: what is checked at every load."""
    return {path.name: _facts(path) for path in sorted(folder.iterdir()) if path.name != RECORD_FILE}


def strategy_file(folder: Path) -> Path:
    """Where the strategy of a model that was prepared by hand is written down, for ``Settings.strategy``."""
    return folder.with_name(f"{folder.name}.toml")


def discard(folder: Path) -> None:
    """Remove a compiled model; where that is not allowed, nothing happens.

    Renamed first, so that nobody finds half of it.
    """
    aside = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
    with suppress(OSError):
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)
        strategy_file(folder).unlink(missing_ok=True)


def prune(directory: Path, keep_names: Sequence[str] = (), max_bytes: int | None = None) -> list[Path]:
    """Remove the compiled models unused longest until the rest fits into ``max_bytes``; returns what was removed.

    Also those that another one of the same purpose has replaced (a version of something has changed since), and what
    an interrupted removal left.
    """
    limit = MAX_TOTAL_BYTES if max_bytes is None else max_bytes
    purposes = {purpose for name in keep_names if (purpose := _purpose(_place(directory) / name)) is not None}
    removed, total = [], 0
    for folder, size, _ in sorted(_folders(directory), key=lambda entry: (entry[0].name not in keep_names, -entry[2])):
        stays = folder.name in keep_names
        total += size
        if not stays and (total > limit or folder.name.startswith(".") or _purpose(folder) in purposes):
            discard(folder)
            removed.append(folder)
            total -= size
    return removed


def remove_all(directory: Path) -> int:
    """Remove every compiled model of a cache; returns how many there were."""
    folders = [folder for folder, _, _ in _folders(directory)]
    for folder in folders:
        discard(folder)
    return len(folders)


def _place(directory: Path) -> Path:
    return Path(directory) / "compiled"


def _folders(directory: Path) -> list[tuple[Path, int, float]]:
    """Folder, bytes and time of last use of everything that is kept; folders in the making are left out."""
    from ort_metainfer.scratch import PREFIX

    found = []
    with suppress(OSError):
        for folder in _place(directory).iterdir():
            if folder.is_dir() and not folder.is_symlink() and not folder.name.startswith(PREFIX):
                with suppress(OSError):
                    sizes = [path.stat().st_size for path in folder.iterdir()]
                    used = folder / RECORD_FILE if (folder / RECORD_FILE).exists() else folder
                    found.append((folder, sum(sizes), used.stat().st_mtime))
    return found


def _purpose(folder: Path) -> tuple[str, ...] | None:
    """What a compiled model is for, versions aside; None where its record cannot be read."""
    try:
        key = json.loads((folder / RECORD_FILE).read_bytes())["key"]
        return (*(str(key[name]) for name in ("model", "device", "session", "strategy")), key.get("inputs", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _nearest(directory: Path, key: CompiledKey) -> str:
    """What differs from the compiled models of the same model that there are."""
    differences: list[list[str]] = []
    for folder, _, _ in _folders(directory):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            other = CompiledKey(**json.loads((folder / RECORD_FILE).read_bytes())["key"])
            if other.model == key.model:
                differences.append([name for name in asdict(key) if getattr(other, name) != getattr(key, name)])
    if not differences:
        return "nothing compiled from this model is in the cache"
    nearest = min(differences, key=len)
    return f"{' and '.join(nearest)} differ from those of the nearest one"


def _read_record(folder: Path) -> Compiled:
    """The record of a folder, its own digest and that of every file checked.

    Raises:
        FileNotFoundError: there is none.
        OSError, ValueError, KeyError, TypeError, AttributeError: it is damaged.
    """
    record = json.loads((folder / RECORD_FILE).read_bytes())
    seal = record.pop("seal")
    if seal != hashlib.sha256(canonical(record)).hexdigest() or record.pop("format") != FORMAT:
        raise ValueError(f"{RECORD_FILE} is not as it was written")
    for name, facts in record.pop("files").items():
        try:
            if _facts(folder / name) != facts:
                raise ValueError(f"{name} is not as it was written")
        except FileNotFoundError as error:
            raise ValueError(f"{name} is gone") from error
    return Compiled(folder=folder, **{**record, "key": CompiledKey(**record["key"])})


def _facts(path: Path) -> dict[str, Any]:
    """Size and digest of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def _settle(path: Path) -> None:
    """On the disk, and for its owner only."""
    os.chmod(path, 0o600)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
