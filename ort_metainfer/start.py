"""The shortcut of a cached start: the same session asked for again, by the same settings, on the same machine.

A full look-up imports what it takes to decide: some 40 ms in a fresh process. This one reads two rows. The first, in
table ``starts``, is found by a text of everything that the answer of a full look-up depends on; it names the entry and
the files that must not have changed since. Whatever differs, is missing or cannot be read means no shortcut, never a
wrong one. Imports next to nothing, on purpose.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sqlite3
import sys
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import onnxruntime

from ort_metainfer._version import VERSION
from ort_metainfer.hardware.devices import device_string
from ort_metainfer.places import cache_place, config_place
from ort_metainfer.spec import THREAD_VARIABLES

if TYPE_CHECKING:
    from pathlib import Path

    from ort_metainfer.decision import Decision
    from ort_metainfer.settings import Settings
    from ort_metainfer.spec import SessionSpec

__all__ = ["PLUG_IN_MODULES", "Start", "recall", "record"]

PLUG_IN_MODULES = (
    "onnxruntime_ep_openvino",
    "nxrt_ep_cpu",
    "onnxruntime_qnn",
    "onnxruntime_ep_webgpu",
    "onnxruntime_ggml",
    "onnxruntime_ep_nv_tensorrt_rtx",
)
"""Packages of plug-in providers: one that is installed, upgraded or removed changes what a look-up answers."""

PROVIDER_VARIABLES = (
    "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ORT_MIGRAPHX_FP16_ENABLE",
    "ORT_MIGRAPHX_BF16_ENABLE",
    "ORT_MIGRAPHX_FP8_ENABLE",
    "ORT_MIGRAPHX_INT8_ENABLE",
)
"""Environment variables of providers by which one becomes usable or is no more, sees other devices, or computes in
another type."""

PREFIX = "ORT_METAINFER_"


class Start(NamedTuple):
    """What the cache said: the printed cache key, the entry's row, and the compiled model to use, by its name."""

    key: str
    entry: dict[str, Any]
    compiled: str | None = None

    @property
    def model_hash(self) -> str:
        """The model's, out of the key."""
        return str(json.loads(self.key)[1])

    def decision(self) -> Decision:
        """The whole of it, for who asks the session."""
        from ort_metainfer.problem import CacheKey
        from ort_metainfer.remember import decision_of

        key = CacheKey.parse(self.key)
        assert key is not None  # recall() saw to it
        return decision_of({**self.entry, "compiled": self.compiled}, key)


def recall(path: str, spec: SessionSpec, keyword: Settings | None) -> Start | None:
    """The answer that a full look-up would give for this session, or None where that has to be done."""
    try:
        directory = cache_place(keyword)
        if directory is None:
            return None
        from ort_metainfer.strategy_cache.file import FILE_NAME, SCHEMA, open_for_reading

        database = directory / FILE_NAME
        if not database.exists():
            return None
        connection = open_for_reading(database)
        try:
            row = _row(connection, f"starts_v{SCHEMA}", _circumstances(path, spec, keyword))
            if row is None or not all(_stamp(file) == stamp for file, *stamp in row["files"]):
                return None
            entry = _row(connection, f"entries_v{SCHEMA}", row["key"])
        finally:
            connection.close()
        if entry is None or entry["decided_at"] != row["decided_at"] or not row["key"].startswith("["):
            return None
        return Start(row["key"], entry, row.get("compiled"))
    except sqlite3.Error as error:
        from ort_metainfer.strategy_cache.file import note_wait

        note_wait(error)
        return None  # the full look-up meets it too, and says so
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # whatever it is, the full look-up meets it too, and says so


def record(path: str, spec: SessionSpec, keyword: Settings | None, decision: Decision) -> bool:
    """Make the next start like this one short; False where that cannot be: the decision is none that the cache has."""
    from ort_metainfer.model.fingerprint import files_behind
    from ort_metainfer.providers.registry import HOMES
    from ort_metainfer.strategy_cache.store import open_cache

    directory = cache_place(keyword)
    files = files_behind(path)
    if directory is None or files is None or decision.key is None or decision.origin == "override":
        return False
    if decision.strategy.static_shapes or not decision.manifest or not decision.manifest.decided_at:
        return False  # the guard of fixed shapes needs the model's features
    own = {name.removesuffix("ExecutionProvider") for name in HOMES}
    if not own.issuperset(decision.key.policy.split("|")[2].split("+")):
        return False  # a third party's adapter, whose package is not among those looked at
    if decision.strategy_file is not None:
        if decision.strategy_file.endswith(".new.toml"):
            return False  # beside a file that a person edited, which a full look-up honours
        files = [*files, [decision.strategy_file, *_stamp(decision.strategy_file)]]
    if not decision.inputs_are_real:  # real ones that are captured meanwhile may make the entry stale
        from ort_metainfer.model.captured import folder_of

        folder = str(folder_of(directory, decision.key.model))
        files = [*files, [folder, *_stamp(folder)]]
    row = {
        "key": str(decision.key),
        "decided_at": decision.manifest.decided_at,
        "files": files,
        "compiled": decision.compiled,
    }
    return open_cache(directory).put("starts", _circumstances(path, spec, keyword), row)


def _row(connection: sqlite3.Connection, table: str, key: str) -> dict[str, Any] | None:
    found = connection.execute(f'SELECT value FROM "{table}" WHERE key = ?', (key,)).fetchone()
    plain = None if found is None else json.loads(found[0])
    return plain if isinstance(plain, dict) else None


def _stamp(file: str | Path) -> list[int]:
    """Size, modification time and inode of a file; empty where there is none."""
    try:
        stat = os.stat(file)
    except OSError:
        return []
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _circumstances(path: str, spec: SessionSpec, keyword: Settings | None) -> str:
    """Everything that the answer of a full look-up depends on, as one text."""
    bearing = {name for name in os.environ if name.startswith(PREFIX)}
    bearing |= {*PROVIDER_VARIABLES, *THREAD_VARIABLES.values()}
    environment = [(name, os.environ.get(name)) for name in sorted(bearing)]
    config = config_place()
    asked = [environment, str(config), _stamp(config), None if keyword is None else keyword.as_dict()]
    # as it is spelt, since ``link/../model`` need not be ``model``
    place = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    return json.dumps([place, asked, spec.as_dict(), device_string(), *_software()])


@functools.cache
def _software() -> list[Any]:
    """Versions, which providers are there, and which packages: one may contribute rules. Once per process: packages do
    not change under a running one."""
    plugins = []
    for module in PLUG_IN_MODULES:
        found = importlib.util.find_spec(module)
        plugins.append([module, *(_stamp(found.origin) if found is not None and found.origin else [])])
    runtime = [onnxruntime.__version__, onnxruntime.get_build_info(), onnxruntime.get_available_providers()]
    names = _distributions()
    return [VERSION, runtime, plugins, len(names), zlib.crc32(" ".join(names).encode())]


def _distributions() -> list[str]:
    """The installed distributions, by the names of their folders: those hold the versions, and none is opened."""
    found: set[str] = set()
    for folder in {*sys.path}:
        with suppress(OSError):  # an archive, or not there
            found.update(name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info")))
    return sorted(found)
