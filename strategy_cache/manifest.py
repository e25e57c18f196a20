"""What a decision made now rests on, and the same read back from an entry."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import onnxruntime

from ort_metainfer._version import VERSION
from ort_metainfer.decision import Manifest

__all__ = ["current_manifest", "manifest_from_dict"]

_NONE: Mapping[str, Any] = MappingProxyType({})


def current_manifest(
    provider: str | None,
    provider_versions: Mapping[str, str],
    transforms: Mapping[str, int] = _NONE,
    *,
    decided_at: str = "",
    inputs: str = "",
    settings: Mapping[str, Any] = _NONE,
) -> Manifest:
    """The manifest of a decision made in this process. Cheap: no distribution is searched, nothing imported.

    Args:
        provider: the strategy's provider; None where the caller's providers stay.
        provider_versions: versions that provider rests on (``Provider.versions``); where it names none, the provider
            itself stands in the manifest as ``unversioned``, so that the entry of another provider never looks current.
        transforms: transform -> its version.
        decided_at: ISO 8601 date.
        inputs: where the inputs of the trials came from.
        settings: settings the decision was made under, plain values.
    """
    versions = dict(provider_versions)
    if provider is not None and not versions:
        versions[provider] = "unversioned"
    versions |= {"ort_metainfer": VERSION, "onnxruntime": _onnxruntime()}
    return Manifest(versions, dict(transforms), decided_at, inputs, dict(settings))


def manifest_from_dict(plain: Any) -> Manifest | None:
    """The manifest that ``Decision.as_dict`` made plain; None for anything that is none."""
    if not isinstance(plain, Mapping) or not isinstance(plain.get("versions"), Mapping):
        return None
    versions = {str(name): str(version) for name, version in plain["versions"].items()}
    tables = [plain.get(name, {}) for name in ("transforms", "settings")]
    if not all(isinstance(table, Mapping) for table in tables):
        return None
    words = [str(plain.get(name, "")) for name in ("decided_at", "inputs")]
    return Manifest(versions, dict(tables[0]), words[0], words[1], dict(tables[1]))


@functools.cache
def _onnxruntime() -> str:
    """Version and build: two builds of one version (other flags, other commit) must not pass for the same."""
    build: str = onnxruntime.get_build_info()
    return f"{onnxruntime.__version__} {hashlib.sha256(build.encode()).hexdigest()[:12]}"
