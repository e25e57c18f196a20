"""The shortcut of a cached start: taken when nothing changed, never when anything did."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import platformdirs
import pytest

import ort_metainfer
from ort_metainfer import places, start
from ort_metainfer.errors import ProviderError
from ort_metainfer.providers import registry
from ort_metainfer.providers.built_in import BuiltInProvider
from ort_metainfer.providers.plugin_provider import PlugInProvider
from ort_metainfer.settings import Settings
from ort_metainfer.spec import SessionSpec
from ort_metainfer.strategy_cache.store import open_cache
from ort_metainfer.trials.fake import FakeTrialHost, Scripted
from tests.test_adapt import BIG_GRAPH, favour

LEVEL = "graph_optimization_level"


@pytest.fixture
def old_model(tiny_model: Callable[..., Path]) -> Path:
    """A model that is old enough to be remembered by its stamp."""
    path = tiny_model("MatMul")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


@pytest.fixture
def decided(old_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model for which a graph level was adopted, by a session without any keyword."""
    host = FakeTrialHost(favour(LEVEL), graph=BIG_GRAPH)
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    session = ort_metainfer.InferenceSession(str(old_model))
    assert session.strategy is not None and LEVEL in session.strategy.session_options
    return old_model


def recall(model: Path, spec: SessionSpec = SessionSpec(), keyword: Settings | None = None) -> Any:  # noqa: B008
    return start.recall(str(model), spec, keyword)


def test_the_second_session_takes_the_shortcut_and_tells_its_decision_when_asked(
    decided: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ort_metainfer.adapt.decide", lambda *_: pytest.fail("a full look-up"))
    session = ort_metainfer.InferenceSession(str(decided))
    assert "adaptation" not in session.__dict__
    assert session.adaptation is not None and session.adaptation.cache == "hit"
    assert session.strategy is not None and session.adaptation.strategy == session.strategy
    level = session.strategy.session_options[LEVEL]
    assert session.get_session_options().graph_optimization_level.name.lower().endswith(str(level))
    with ort_metainfer.patch():
        patched: Any = onnxruntime.InferenceSession(str(decided))
    assert patched.adaptation == session.adaptation


def test_a_default_that_won_needs_nothing_else(old_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeTrialHost(lambda _: Scripted(), graph=BIG_GRAPH)
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    ort_metainfer.InferenceSession(str(old_model))
    found = recall(old_model)
    assert found is not None and found.entry["strategy"] == {}
    session = ort_metainfer.InferenceSession(str(old_model))
    assert session.strategy is not None and session.strategy.is_default
    assert session.run(None, {"x": np.ones((1, 8), np.float32)})[0].shape == (1, 3)


def edit(file: Path) -> None:
    file.write_text(file.read_text() + "\n[override.session_options]\nintra_op_num_threads = 1\n")


def contributing(folder: Path, version: str = "1.0") -> Path:
    """A folder with an installed distribution that contributes a rule."""
    place = folder / "site" / f"their_rules-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: their-rules\nVersion: {version}\n")
    (place / "entry_points.txt").write_text("[ort_metainfer.rules]\none = their_rules:RULE\n")
    return place.parent


@pytest.fixture(autouse=True)
def _software_told_anew() -> Iterator[None]:
    """What is asked once per process is asked again after a test that installed something."""
    asked = start._software
    yield
    asked.cache_clear()


CHANGES: dict[str, Callable[[Path, Any, pytest.MonkeyPatch], object]] = {
    "another setting": lambda model, found, patch: patch.setenv("ORT_METAINFER_ACCURACY", "fast"),
    "a setting that is wrong": lambda model, found, patch: patch.setenv("ORT_METAINFER_BUDGET_S", "soon"),
    "a settings file": lambda model, found, patch: Path(os.environ["ORT_METAINFER_CONFIG"]).write_text(
        "budget_s = 3\n"
    ),
    "another cache": lambda model, found, patch: patch.setenv("ORT_METAINFER_CACHE_DIR", str(model.parent / "other")),
    "the model's content": lambda model, found, patch: model.write_bytes(model.read_bytes() + b"\0"),
    "the model's date": lambda model, found, patch: os.utime(model, (1_700_000_001, 1_700_000_001)),
    "the model is gone": lambda model, found, patch: model.unlink(),
    "the strategy file": lambda model, found, patch: edit(Path(found.entry["strategy_file"])),
    "the strategy file is gone": lambda model, found, patch: Path(found.entry["strategy_file"]).unlink(),
    "the entry is gone": lambda model, found, patch: open_cache(places.cache_place(None)).delete("entries", found.key),  # type: ignore[arg-type]
    "the entry was decided anew": lambda model, found, patch: open_cache(places.cache_place(None)).put(  # type: ignore[arg-type]
        "entries", found.key, {**found.entry, "decided_at": "later"}
    ),
    "the hardware": lambda model, found, patch: patch.setattr(start, "device_string", lambda: "cpu:another"),
    "what makes a provider usable": lambda model, found, patch: patch.setenv(start.PROVIDER_VARIABLES[0], "1"),
    "threads by onnxruntime's own variable": lambda model, found, patch: patch.setenv("ORT_INTRA_OP_NUM_THREADS", "1"),
    "a provider's package": lambda model, found, patch: patch.setattr(start, "_software", lambda: ["another"]),
    "a package that may contribute rules": lambda model, found, patch: (
        patch.syspath_prepend(contributing(model.parent)),
        start._software.cache_clear(),
    ),
    "the database is damaged": lambda model, found, patch: (places.cache_place(None) / "strategies.sqlite").write_bytes(  # type: ignore[operator]
        b"SQLite format 3\0" + b"\xff" * 5000
    ),
    "the database is gone": lambda model, found, patch: (places.cache_place(None) / "strategies.sqlite").unlink(),  # type: ignore[operator]
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_there_is_no_shortcut(change: str, decided: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recall(decided)
    assert found is not None
    CHANGES[change](decided, found, monkeypatch)
    assert recall(decided) is None


@pytest.mark.parametrize(
    "spec",
    [
        SessionSpec(properties={"intra_op_num_threads": 2}),
        SessionSpec(config={"session.x": "1"}),
        SessionSpec(free_dimensions={"N": 1}),
        SessionSpec(providers=(("CPUExecutionProvider", {}),)),
    ],
)
def test_another_session_takes_none(spec: SessionSpec, decided: Path) -> None:
    assert recall(decided, spec) is None
    assert recall(decided, keyword=Settings(objective="pipeline")) is None
    assert recall(decided) is not None


def test_a_path_through_a_link_is_not_shortened(decided: Path, tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    other = tmp_path / "far" / decided.name
    other.write_bytes(decided.read_bytes() + b"\x12\x00")
    spelt = f"{tmp_path}/link/../{decided.name}"
    assert os.path.samefile(spelt, other) and os.path.abspath(spelt) == str(decided)
    assert recall(decided) is not None and start.recall(spelt, SessionSpec(), None) is None


def test_strict_of_the_environment_holds_on_the_shortcut_too(old_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ProviderError("it is gone")

    host = FakeTrialHost(favour(LEVEL), graph=BIG_GRAPH)
    monkeypatch.setattr("ort_metainfer.trials.client.ChildTrialHost", lambda: host)
    monkeypatch.setenv("ORT_METAINFER_STRICT", "1")
    ort_metainfer.InferenceSession(str(old_model))
    assert recall(old_model) is not None
    monkeypatch.setattr("ort_metainfer.options.apply", broken)
    with pytest.raises(ProviderError, match="it is gone"):
        ort_metainfer.InferenceSession(str(old_model))


def test_a_decision_made_beside_an_edited_file_takes_no_shortcut(
    decided: Path,
) -> None:
    found = recall(decided)
    edit(Path(found.entry["strategy_file"]))
    decision = replace(found.decision(), strategy_file=found.entry["strategy_file"].replace(".toml", ".new.toml"))
    assert start.record(str(decided), SessionSpec(), None, decision) is False


def test_the_modules_looked_for_are_those_of_the_adapters() -> None:
    plugged = [provider.plug_in.module for provider in registry.our_providers() if isinstance(provider, PlugInProvider)]
    assert sorted(start.PLUG_IN_MODULES) == sorted(plugged)


def test_the_variables_looked_at_are_those_that_bear_on_an_adapters_results() -> None:
    built_in = [provider for provider in registry.our_providers() if isinstance(provider, BuiltInProvider)]
    named = {name for provider in built_in for name in provider.variables}
    assert named and named <= set(start.PROVIDER_VARIABLES)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs itself is asked")
@pytest.mark.parametrize("base", [None, "", "  ", "/somewhere/else"])
def test_places_are_those_of_platformdirs(base: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False) if base is None else monkeypatch.setenv(name, base)
    for name in ("CACHE_DIR", "CONFIG"):
        monkeypatch.delenv(f"ORT_METAINFER_{name}")
    assert str(places.cache_directory(Settings())) == platformdirs.user_cache_dir("ort_metainfer", appauthor=False)
    folder = platformdirs.user_config_dir("ort_metainfer", appauthor=False)
    assert places.config_place() == Path(folder) / "config.toml"


def fresh_process(code: str) -> str:
    """What ``code`` prints in a process of its own, where no other test has registered a provider."""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_fresh_process_imports_nothing_that_decides(old_model: Path) -> None:
    decide = (
        "import ort_metainfer, ort_metainfer.trials.client as client\n"
        "from tests.test_adapt import BIG_GRAPH, FakeTrialHost, favour\n"
        f"client.ChildTrialHost = lambda: FakeTrialHost(favour({LEVEL!r}), graph=BIG_GRAPH)\n"
        f"print(ort_metainfer.InferenceSession({str(old_model)!r}).adaptation.cache)\n"
    )
    assert fresh_process(decide) == "miss"
    start = (
        "import sys, ort_metainfer\n"
        f"session = ort_metainfer.InferenceSession({str(old_model)!r})\n"
        "assert '_metainfer_start' in session.__dict__\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "heavy = {'onnx', 'sqlitedict', 'platformdirs', 'filelock', 'tempfile', 'tomllib', 'hashlib'}\n"
        "ours = {'ort_metainfer.adapt', 'ort_metainfer.problem', 'ort_metainfer.providers', 'ort_metainfer.settings'}\n"
        "print(sorted(loaded & heavy | ours & set(sys.modules)))\n"
    )
    assert fresh_process(start) == "[]"
