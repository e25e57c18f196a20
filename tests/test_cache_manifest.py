"""The manifest: what a decision made now rests on, and which change of it makes an entry stale."""

from __future__ import annotations

import importlib.metadata
import json
from typing import Any

import onnxruntime
import pytest

from ort_metainfer._version import VERSION
from ort_metainfer.decision import Decision, Manifest
from ort_metainfer.strategy import Strategy
from ort_metainfer.strategy_cache import manifest as manifest_module
from ort_metainfer.strategy_cache.manifest import current_manifest, manifest_from_dict

OPENVINO = "OpenVINOExecutionProvider"


def test_it_names_this_package_onnxruntime_with_its_build_and_the_providers_versions() -> None:
    versions = current_manifest(OPENVINO, {"onnxruntime-ep-openvino": "1.8.1", "driver": "32.0"}).versions
    assert set(versions) == {"ort_metainfer", "onnxruntime", "onnxruntime-ep-openvino", "driver"}
    assert versions["ort_metainfer"] == VERSION
    assert versions["onnxruntime"].startswith(f"{onnxruntime.__version__} ")


def test_two_made_now_do_not_differ() -> None:
    assert current_manifest(None, {}).differences(current_manifest(None, {}, decided_at="2026-01-01")) == []


def test_another_build_of_the_same_version_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = current_manifest(None, {})
    manifest_module._onnxruntime.cache_clear()
    monkeypatch.setattr(onnxruntime, "get_build_info", lambda: "ORT Build Info: git-branch=mine")
    try:
        [change] = before.differences(current_manifest(None, {}))
    finally:
        manifest_module._onnxruntime.cache_clear()
    assert change.startswith("onnxruntime was ")


@pytest.mark.parametrize(
    ("provider", "versions"),
    [(None, {}), (OPENVINO, {}), ("XNNPACKExecutionProvider", {}), (OPENVINO, {"onnxruntime-ep-openvino": "1.9.0"})],
)
def test_another_provider_or_version_of_it_differs(provider: str | None, versions: dict[str, str]) -> None:
    then = current_manifest(OPENVINO, {"onnxruntime-ep-openvino": "1.8.1"})
    assert then.differences(current_manifest(provider, versions)) != []


def test_a_provider_cannot_pass_for_onnxruntime_or_this_package() -> None:
    versions = current_manifest(OPENVINO, {"onnxruntime": "0", "ort_metainfer": "0"}).versions
    assert versions["ort_metainfer"] == VERSION
    assert versions["onnxruntime"] != "0"


def test_it_searches_no_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a start must not search the installed distributions")

    for name in ("version", "distribution", "distributions", "metadata"):
        monkeypatch.setattr(importlib.metadata, name, refuse)
    manifest_module._onnxruntime.cache_clear()
    assert current_manifest(None, {}).versions["ort_metainfer"] == VERSION


def test_it_comes_back_from_an_entry() -> None:
    made = current_manifest(
        OPENVINO,
        {"x": "1"},
        {"to_nhwc": 2},
        decided_at="2026-01-01",
        inputs="synthetic",
        settings={"accuracy": "strict"},
    )
    plain = json.loads(json.dumps(Decision(Strategy(), "rules", "", manifest=made).as_dict()))["manifest"]
    assert manifest_from_dict(plain) == made
    assert manifest_from_dict({"versions": {"a": "1"}}) == Manifest({"a": "1"})


@pytest.mark.parametrize(
    "plain", [None, [], "text", {}, {"versions": None}, {"versions": [1]}, {"versions": {}, "transforms": 3}]
)
def test_what_is_no_manifest_is_none(plain: Any) -> None:
    assert manifest_from_dict(plain) is None
