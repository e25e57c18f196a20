"""What is importable, what an import costs in modules, and what a built wheel holds."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import onnxruntime
import pytest

import ort_metainfer

ROOT = Path(__file__).parent.parent
FOLDERS = ("ort_metainfer", "providers", "strategy_cache")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


OURS = {"InferenceSession", "Settings", "Strategy", "Decision", "tune", "patch", "unpatch", "MetainferError"}


def test_every_name_of_all_is_there_and_listed() -> None:
    assert set(ort_metainfer.__all__) >= OURS
    assert all(hasattr(ort_metainfer, name) for name in ort_metainfer.__all__)
    assert set(ort_metainfer.__all__) <= set(dir(ort_metainfer))
    assert len(ort_metainfer.__all__) == len(set(ort_metainfer.__all__))


def test_every_public_name_of_onnxruntime_is_there_and_only_the_session_is_replaced() -> None:
    names = [name for name in dir(onnxruntime) if not name.startswith("_")]
    assert set(names) <= set(dir(ort_metainfer))
    assert [name for name in names if getattr(ort_metainfer, name) is not getattr(onnxruntime, name)] == [
        "InferenceSession"
    ]
    assert issubclass(ort_metainfer.InferenceSession, onnxruntime.InferenceSession)


def test_no_module_of_ours_bears_a_name_that_onnxruntime_has() -> None:
    """Importing ``ort_metainfer.x`` sets ``ort_metainfer.x``, which would hide onnxruntime's ``x`` from then on."""
    ours = {path.stem for path in (ROOT / "ort_metainfer").iterdir()} | {"providers", "strategy_cache"}
    assert ours.isdisjoint(name for name in dir(onnxruntime) if not name.startswith("_"))


def test_a_name_that_neither_has_is_an_attribute_error_that_says_so() -> None:
    with pytest.raises(AttributeError, match=r"ort_metainfer.*no_such_name.*onnxruntime"):
        ort_metainfer.no_such_name  # noqa: B018


def test_every_error_of_the_tree_is_exported() -> None:
    from ort_metainfer import errors

    assert set(errors.__all__) <= set(ort_metainfer.__all__)
    assert all(issubclass(getattr(errors, name), errors.MetainferError) for name in errors.__all__)


@pytest.mark.slow
def test_importing_brings_no_module_that_a_cached_start_can_do_without() -> None:
    """Another process, since this one has imported everything: what onnxruntime brings by itself does not count."""
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
import onnxruntime
before = set(sys.modules)
import ort_metainfer
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, check=True, timeout=60
    )
    brought = json.loads(done.stdout)
    heavy = {"onnx", "sqlitedict", "sqlite3", "platformdirs", "click", "rich", "filelock", "tomli_w", "packaging"}
    assert heavy.isdisjoint(name.partition(".")[0] for name in brought), brought
    assert "ort_metainfer.session" in brought


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_reads_or_writes_pickles_or_imports_a_folder_by_its_bare_name(path: Path) -> None:
    banned = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib", "providers", "strategy_cache"}
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add((node.module or "").partition(".")[0])
    assert banned.isdisjoint(imported), imported & banned


def test_no_array_file_is_read_with_pickles_allowed() -> None:
    for path in SOURCES:
        assert "allow_pickle=True" not in path.read_text(encoding="utf-8"), path


def test_the_lower_bounds_that_are_tested_are_those_declared() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {}
    for text in [*project["dependencies"], *project["optional-dependencies"]["cli"]]:
        requirement = Requirement(text)
        (bound,) = (part.version for part in requirement.specifier if part.operator == ">=")
        declared[canonicalize_name(requirement.name)] = bound
    lines = (ROOT / "tests" / "lower-bounds.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert set(pinned) == set(declared)
    for name, bound in declared.items():
        assert pinned[name] == bound or pinned[name].startswith(f"{bound}."), f"{name} {pinned[name]} {bound}"


def test_readme_and_ci_name_the_same_commands() -> None:
    readme, ci = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    command = "python -m pip install -e '.[dev]' && python -m pytest"
    assert command in readme
    assert command in ci


@pytest.mark.slow
def test_a_wheel_holds_the_three_folders_below_one_package_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=170, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"ort_metainfer"}
    for path in SOURCES:
        inside = path.relative_to(ROOT).as_posix()
        inside = inside if inside.startswith("ort_metainfer/") else f"ort_metainfer/{inside}"
        assert inside in names
    assert "ort_metainfer/py.typed" in names
    assert "ort_metainfer/providers/chips.toml" in names
