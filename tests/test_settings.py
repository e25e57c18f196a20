"""Where a setting comes from, and what is said about a value that is not allowed."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ort_metainfer.errors import MetainferError, SettingsError
from ort_metainfer.settings import DEFAULTS, FIELDS, Settings, config_file, resolve, sources

LAYERS: dict[str, tuple[Any, tuple[str, Any], tuple[str, Any]]] = {
    # field: keyword, (environment's text, its value), (file's TOML, its value)
    "mode": ("off", ("cached", "cached"), ('"auto"', "auto")),
    "budget_s": (1.5, ("2", 2.0), ("3", 3.0)),
    "accuracy": ("fast", ("balanced", "balanced"), ('"STRICT"', "strict")),
    "providers": (
        ("CPU",),
        ("OpenVINO, CPU", ("OpenVINOExecutionProvider", "CPUExecutionProvider")),
        ('["CUDAExecutionProvider"]', ("CUDAExecutionProvider",)),
    ),
    "cache_dir": ("/k", ("/e", "/e"), ('"/f"', "/f")),
    "strategy": ("/k.toml", ("/e.toml", "/e.toml"), ('"/f.toml"', "/f.toml")),
    "input_shapes": (
        {"x": [1, 2]},
        ("x:3,4;mask:", {"x": (3, 4), "mask": ()}),
        ("{ x = [5, 6] }", {"x": (5, 6)}),
    ),
    "inputs": ("k.npz", ("e.npz", "e.npz"), ('"f.npz"', "f.npz")),
    "objective": ("pipeline", ("throughput", "throughput"), ('"Tail"', "tail")),
    "callers": (8, ("4", 4), ("2", 2)),
    "max_slowdown": (1.5, ("2", 2.0), ("1.2", 1.2)),
    "metric": ("m:f", ("pkg.m:f.g", "pkg.m:f.g"), ('"entry-point"', "entry-point")),
    "metric_threshold": (0.5, ("0", 0.0), ("1e-3", 1e-3)),
    "capture": (True, ("5", 5), ("false", 0)),
    "buckets": (6, ("4", 4), ("2", 2)),
    "compiled": ("off", ("auto", "auto"), ('"OFF"', "off")),
    "max_trials": (3, ("40", 40), ("5", 5)),
    "rules_off": (["a"], ("a, b", ("a", "b")), ('["c"]', ("c",))),
    "records": (False, ("on", True), ("false", False)),
    "strict": (True, ("no", False), ("true", True)),
    "log": ("debug", ("OFF", "off"), ('"info"', "info")),
}

BAD: dict[str, tuple[Any, str]] = {  # field: a value that is not allowed, and what its message must name
    "mode": ("sometimes", "auto, cached, background, off"),
    "budget_s": ("-1", "up to 86400"),
    "accuracy": ("sloppy", "strict, balanced, fast"),
    "providers": (", ,", "provider names"),
    "cache_dir": (7, "a path"),
    "strategy": (7, "a path"),
    "input_shapes": ("x:a,b", "name:1,3,224,224"),
    "objective": ("beauty", "latency, tail, throughput, memory, pipeline"),
    "callers": ("1", "from 2 to 1024"),
    "max_slowdown": ("0.9", "a ratio from 1 to 10"),
    "metric": ("not a name", "module:function"),
    "metric_threshold": ("-1", "a number, 0 or more"),
    "capture": ("1001", "1000 at most"),
    "buckets": ("65", "from 0 to 64"),
    "compiled": ("never", "auto, off"),
    "max_trials": ("0", "from 1 to 10000"),
    "rules_off": (7, "names of rules"),
    "records": ("maybe", "true, false"),
    "strict": ("perhaps", "true, false"),
    "log": ("loud", "off, error, warning, info, debug"),
}


def keyword_value(name: str) -> Any:
    return getattr(Settings(**{name: LAYERS[name][0]}), name)


def test_the_tables_of_this_file_cover_every_field() -> None:
    assert set(LAYERS) == set(FIELDS) == {field.name for field in fields(Settings)}
    assert set(BAD) == set(FIELDS) - {"inputs"}


@pytest.mark.parametrize("name", FIELDS)
def test_keyword_wins_over_environment_over_file_over_default(name: str, tmp_path: Path) -> None:
    keyword, (text, from_environment), (toml, from_file) = LAYERS[name]
    file = tmp_path / "settings.toml"
    file.write_text(
        f"{name} = {toml}\n" + ("metric_threshold = 1\n" if name == "metric" else "")
    )  # one needs the other
    environment = {f"ORT_METAINFER_{name.upper()}": text}
    missing = tmp_path / "missing.toml"

    def resolved(*layers: Any) -> Any:
        settings, problems = resolve(*layers)
        assert not problems
        return getattr(settings, name)

    assert resolved(Settings(**{name: keyword}), environment, file) == keyword_value(name)
    assert resolved(None, environment, file) == from_environment
    assert resolved(None, {}, file) == from_file
    assert resolved(None, {}, missing) == getattr(DEFAULTS, name)


@pytest.mark.parametrize("name", [name for name, (value, _) in BAD.items() if isinstance(value, str)])
def test_a_bad_variable_is_named_with_the_values_allowed_and_counts_as_not_given(name: str, tmp_path: Path) -> None:
    value, allowed = BAD[name]
    settings, problems = resolve(None, {f"ORT_METAINFER_{name.upper()}": value}, tmp_path / "missing.toml")
    assert getattr(settings, name) == getattr(DEFAULTS, name)
    (problem,) = problems
    assert f"ORT_METAINFER_{name.upper()}=" in str(problem)
    assert repr(value) in str(problem)
    assert allowed in str(problem)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_keyword_raises_and_names_the_field_with_the_values_allowed(name: str) -> None:
    value, allowed = BAD[name]
    with pytest.raises(SettingsError, match=re.escape(f"{name}=")) as caught:
        Settings(**{name: value})
    assert allowed in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MetainferError)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_in_the_file_is_named_with_the_file_and_the_next_layer_is_used(name: str, tmp_path: Path) -> None:
    value, allowed = BAD[name]
    file = tmp_path / "settings.toml"
    file.write_text(f"{name} = {value if not isinstance(value, str) else repr(value)}\n")
    settings, problems = resolve(None, {}, file)
    assert getattr(settings, name) == getattr(DEFAULTS, name)
    (problem,) = problems
    assert f"{file}: {name}=" in str(problem)
    assert allowed in str(problem)


def test_a_bad_variable_falls_through_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("budget_s = 4\n")
    settings, problems = resolve(None, {"ORT_METAINFER_BUDGET_S": "soon"}, file)
    assert settings.budget_s == 4
    assert len(problems) == 1


@pytest.mark.parametrize("value", ["nan", "inf", "0", "86401", "", True, None, [1]])
def test_a_budget_is_a_number_of_seconds_that_a_person_may_wait(value: Any) -> None:
    if value is None:
        assert Settings(budget_s=None).budget_s is None
        return
    with pytest.raises(SettingsError):
        Settings(budget_s=value)


def test_a_size_may_be_zero_as_a_decoder_s_past_is_at_first() -> None:
    assert Settings(input_shapes="past:1,8,0,64").input_shapes == {"past": (1, 8, 0, 64)}


@pytest.mark.parametrize("value", ["", "x", ":1", "x:-1", "x:1.5", {}, {"x": 5}, {"x": [-1]}, {"": [1]}, 3])
def test_input_shapes_that_are_none_are_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match="input_shapes="):
        Settings(input_shapes=value)


def test_an_input_name_may_hold_a_colon() -> None:
    assert Settings(input_shapes="input:0:1,224,224,3").input_shapes == {"input:0": (1, 224, 224, 3)}  # type: ignore[arg-type]


def test_an_unknown_setting_in_the_file_is_named_with_those_known(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('acuracy = "fast"\nbudget_s = 4\n')
    settings, problems = resolve(None, {}, file)
    assert settings.budget_s == 4
    (problem,) = problems
    assert str(file) in str(problem)
    assert "'acuracy'" in str(problem)
    assert "accuracy" in str(problem)


@pytest.mark.parametrize("content", [b"budget_s = ", b"\xff\xfe", b"budget_s = 1\nbudget_s = 2\n"])
def test_a_file_that_is_not_toml_is_named_and_the_defaults_are_used(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(content)
    settings, problems = resolve(None, {}, file)
    assert settings == DEFAULTS
    (problem,) = problems
    assert str(file) in str(problem)


def test_a_folder_where_the_file_should_be_is_named(tmp_path: Path) -> None:
    settings, problems = resolve(None, {}, tmp_path)
    assert settings == DEFAULTS
    assert str(tmp_path) in str(problems[0])


def test_where_each_setting_comes_from_is_told(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('budget_s = 4\naccuracy = "fast"\nlog = "loud"\n')
    told = sources({"ORT_METAINFER_ACCURACY": "strict", "ORT_METAINFER_MODE": "sometimes"}, file)
    assert told["accuracy"] == "ORT_METAINFER_ACCURACY"
    assert told["budget_s"] == f"{file}: budget_s"
    assert {told[name] for name in FIELDS if name not in ("accuracy", "budget_s")} == {"default"}


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.toml"
    file.write_text("budget_s = 9\n")
    environment = {"ORT_METAINFER_CONFIG": str(file)}
    assert config_file(environment) == file
    assert resolve(None, environment)[0].budget_s == 9


def test_without_a_named_file_it_is_the_platforms_own() -> None:
    assert config_file({}).name == "config.toml"
    assert "ort_metainfer" in config_file({}).parts


def test_plain_values_hold_no_arrays_and_no_tuples() -> None:
    import json

    settings = Settings(inputs={"x": object()}, input_shapes={"x": (1, 2)}, providers=("CPU",))
    plain = json.loads(json.dumps(settings.as_dict()))
    assert plain["inputs"] == "dict"
    assert plain["input_shapes"] == {"x": [1, 2]}
    assert plain["providers"] == ["CPUExecutionProvider"]
    assert set(plain) == set(FIELDS)


def test_every_field_stands_in_the_readmes_table() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", readme, flags=re.MULTILINE))
    assert set(FIELDS) <= rows


@pytest.mark.parametrize(
    "names", ["openvino,cpu", ["OpenVINO", "CPU"], "OpenVINOExecutionProvider, CPUExecutionProvider"]
)
def test_providers_are_named_as_one_likes_and_kept_as_onnxruntime_spells_them(names: object) -> None:
    providers = Settings(providers=names).providers  # type: ignore[arg-type]
    assert providers == ("OpenVINOExecutionProvider", "CPUExecutionProvider")
    assert Settings(providers="cpu_ep").providers == ("cpu_ep",)  # type: ignore[arg-type]


def test_a_provider_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"'openvno' is no execution provider; use some of CPU, OpenVINO"):
        Settings(providers="openvno")  # type: ignore[arg-type]


def test_a_variable_that_is_mistyped_is_told_and_counts_for_nothing(tmp_path: Path) -> None:
    environment = {"ORT_METAINFER_BUGDET_S": "3", "ORT_METAINFER_ZOO": "/zoo", "ORT_METAINFER_BUDGET_S": "4"}
    environment |= {"ORT_METAINFER_SERVICE_HOST": "10.0.0.1", "ORT_METAINFER_PORT_80_TCP": "tcp://10.0.0.1:80"}
    settings, problems = resolve(None, environment, tmp_path / "none.toml")
    assert settings.budget_s == 4
    assert [str(problem).split(";")[0] for problem in problems] == ["ORT_METAINFER_BUGDET_S is no setting"]
