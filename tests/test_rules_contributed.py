"""Rules of third parties, rules switched off, and third parties' rewrites that are on by default."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import onnx
import pytest

from ort_metainfer.adapt import Request, decide, settings_for, tune
from ort_metainfer.contributors import GROUPS, contributors
from ort_metainfer.deciders import contributed
from ort_metainfer.deciders.rule import BINDING_PRIORITY, Rule
from ort_metainfer.deciders.rules import RuleLibrary, all_rules, shipped_rules
from ort_metainfer.decision import Decision, Proposal
from ort_metainfer.errors import SettingsError
from ort_metainfer.problem import Graph, Policy, Problem, SessionSpec, providers_in
from ort_metainfer.rewrites import registry
from ort_metainfer.rewrites.base import Context, Outcome, Rewrite
from ort_metainfer.settings import Settings
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.fake import FakeTrialHost
from tests.made_problems import TRANSFORMER, problem

PATTERN = Strategy(session_options={"enable_mem_pattern": False})


def made(name: str = "patterns_off", **more: Any) -> Rule:
    proposes = more.pop("proposes", lambda problem: (PATTERN,))
    given = {"priority": 50, "dimension": "scheduling", "reason": "we know our machine", "source": "our measurement"}
    return Rule(name, **{**given, **more}, proposes=proposes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Point:
    """An entry point whose object is at hand."""

    name: str
    load: Callable[[], Any]
    value: str = "made:up"
    dist: Any = None


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs entry points of the group."""

    def install(*points: Point, group: str = contributed.ENTRY_POINT_GROUP) -> None:
        find = metadata.entry_points
        monkeypatch.setattr(
            metadata, "entry_points", lambda **asked: points if asked.get("group") == group else find(**asked)
        )
        forget()

    yield install
    monkeypatch.undo()
    forget()


def forget() -> None:
    """What is asked of the entry points once per process."""
    contributed.contributed_rules.cache_clear()
    registry.all_rewrites.cache_clear()
    contributors.cache_clear()


def proposed(library: RuleLibrary, asked: Problem) -> list[Strategy]:
    return [answer.strategy for answer in library.propose(asked, ()) if isinstance(answer, Proposal)]


def test_a_rule_of_a_third_party_takes_part_and_is_switched_off_by_its_name(installed: Callable[..., None]) -> None:
    installed(Point("one", made), Point("two", lambda: (made("more"), made("most", priority=94))))
    assert {rule.name for rule in all_rules()} - {rule.name for rule in shipped_rules()} == {
        "patterns_off",
        "more",
        "most",
    }
    assert PATTERN in proposed(RuleLibrary(), problem())
    without = RuleLibrary(disabled=("patterns_off", "more", "most"))
    assert PATTERN not in proposed(without, problem())


def cannot() -> Any:
    raise ImportError("no module named their")


def leaves() -> Any:
    sys.exit(3)


@pytest.mark.parametrize(
    ("load", "told"),
    [
        (cannot, "ImportError: no module named their"),
        (leaves, "does not load: SystemExit: 3"),
        (lambda: "a rule", "it is no Rule"),
        (lambda: made("no name"), "it has no name"),
        (lambda: made(priority=BINDING_PRIORITY), "its priority"),
        (lambda: made(priority=True), "its priority"),
        (lambda: made(dimension="speed"), "its dimension"),
        (lambda: made(devices=("tpu",)), "its devices"),
        (lambda: made(source=" "), "a reason and a source"),
        (lambda: made(proposes=None), "neither proposes"),
    ],
)
def test_a_broken_rule_is_told_once_and_left_out_and_the_others_stay(
    load: Callable[[], Any],
    told: str,
    installed: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    installed(Point("bad", load), Point("good", lambda: made("good")))
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        all_rules()
        all_rules()
    assert [told in record.getMessage() for record in caplog.records] == [True]
    assert "good" in {rule.name for rule in all_rules()}


def test_of_one_name_the_rule_of_this_package_stands(installed: Callable[..., None]) -> None:
    installed(Point("one", lambda: made("memory_arena_stays")))
    (one,) = (rule for rule in all_rules() if rule.name == "memory_arena_stays")
    assert one.forbids is not None


def raises(*arguments: Any) -> Any:
    raise ZeroDivisionError("their mistake")


def yields_then_raises(asked: Problem) -> Iterator[Strategy]:
    yield PATTERN
    raises()


@pytest.mark.parametrize(
    "broken",
    [
        {"when": (raises,)},
        {"proposes": raises},
        {"proposes": yields_then_raises},
        {"requires": raises},
        {"forbids": raises},
        {"forbids": raises, "subject": "everything", "matters": raises},
    ],
)
def test_a_rule_that_raises_while_it_is_asked_is_told_once_and_silent_from_then_on(
    broken: dict[str, Any], installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    installed(Point("bad", lambda: made("bad", **broken)))
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        for _ in range(3):
            asked = problem()
            list(RuleLibrary().propose(asked, ()))
            RuleLibrary().refuse(asked, PATTERN)
    assert ["ZeroDivisionError: their mistake" in record.getMessage() for record in caplog.records] == [True]
    assert PATTERN not in proposed(RuleLibrary(), problem())


def drifting() -> Callable[[Problem, Strategy], Strategy]:
    numbers = itertools.count()
    return lambda asked, strategy: Strategy(session_config={"their.number": str(next(numbers))})


@pytest.mark.parametrize(
    ("nonsense", "told"),
    [
        ({"proposes": lambda asked: [PATTERN, "a strategy"]}, "it proposes 'a strategy', which is no Strategy"),
        ({"proposes": lambda asked: itertools.repeat(PATTERN)}, "it proposes more than 1000 strategies"),
        ({"requires": lambda asked, strategy: 42}, "it requires 42, which is no Strategy"),
        ({"requires": drifting()}, "asked again of its own answer, it requires something else"),
        ({"forbids": lambda asked, strategy: sys.exit(3)}, "SystemExit: 3"),
    ],
)
def test_a_rule_that_answers_nonsense_is_told_once_and_silent_from_then_on(
    nonsense: dict[str, Any], told: str, installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    installed(Point("bad", lambda: made("bad", **nonsense)), Point("good", lambda: made("good")))
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        for _ in range(3):
            assert PATTERN in proposed(RuleLibrary(), problem(TRANSFORMER))
    assert [told in record.getMessage() for record in caplog.records] == [True]


def test_a_reason_that_names_what_no_problem_has_stands_as_it_is(installed: Callable[..., None]) -> None:
    installed(Point("bad", lambda: made(reason="for {problem.luck} and {0}")))
    (answer,) = (a for a in RuleLibrary().propose(problem(), ()) if "luck" in a.reason)
    assert answer.reason == "for {problem.luck} and {0} (rule patterns_off)"


def test_rules_that_are_off_reach_the_settings_without_the_names_that_there_are_not() -> None:
    settings, problems = settings_for(Settings(rules_off=("machine_busy", "machine_bussy")))
    assert settings.rules_off == ("machine_busy",)
    assert len(problems) == 1
    assert isinstance(problems[0], SettingsError)
    assert "'machine_bussy'" in str(problems[0]) and "machine_busy" in str(problems[0])
    assert settings_for(Settings(rules_off=("machine_busy",)))[1] == []


def test_tune_refuses_the_name_of_a_rule_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="machine_bussy"):
        tune(tmp_path / "model.onnx", Settings(rules_off=("machine_bussy",), cache_dir=tmp_path))


def test_a_session_warns_of_such_a_name_and_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ort_metainfer import InferenceSession

    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (2,)) for name in "xy")
    graph = onnx.helper.make_graph([node], "relu", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    monkeypatch.setenv("ORT_METAINFER_RULES_OFF", "machine_bussy")
    monkeypatch.setenv("ORT_METAINFER_MODE", "cached")
    monkeypatch.setenv("ORT_METAINFER_CACHE_DIR", str(tmp_path))
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        session = InferenceSession(model.SerializeToString())
    assert [record.getMessage() for record in caplog.records if "machine_bussy" in record.getMessage()]
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_a_policy_is_printed_as_ever_where_no_rule_is_off() -> None:
    assert str(Policy()) == "strict|latency|CPU"
    assert str(Policy(pinned={"intra_op_num_threads": "2"})) == "strict|latency|CPU|intra_op_num_threads=2"


def test_rules_that_are_off_are_part_of_the_printed_policy_in_whatever_order() -> None:
    off = Policy(rules_off=("machine_busy", "memory_arena_stays"))
    assert str(off) == "strict|latency|CPU|rules off: machine_busy,memory_arena_stays"
    assert str(Policy(rules_off=("memory_arena_stays", "machine_busy", "machine_busy"))) == str(off)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": "1,b=2"}, {"a": "1", "b": "2"}),
        ({"a": "1|rules off: x"}, {"a": "1"}),
        ({"a=b": "c"}, {"a": "b=c"}),
        ({"a": "%2C"}, {"a": ","}),
        ({"a": "%7C"}, {"a": "|"}),
    ],
)
def test_no_two_policies_are_printed_alike(one: Mapping[str, str], other: Mapping[str, str]) -> None:
    assert str(Policy(pinned=one)) != str(Policy(pinned=other))
    assert str(Policy(pinned=one)).count("|") == 3


@pytest.mark.parametrize("name", ["Their|Provider", "Their+Provider", "Their%2BProvider", "Their%7CProvider"])
def test_a_provider_s_name_comes_back_out_of_the_printed_policy(name: str) -> None:
    policy = Policy(providers=("CPUExecutionProvider", name), pinned={"a": "b|c"})
    assert providers_in(str(policy)) == ("CPU", name)


class Theirs(Rewrite):
    """A third party's rewrite that was measured to pay."""

    name: ClassVar[str] = "theirs"
    dimension = "fusion"
    promise = "exact"
    on_by_default: ClassVar[bool] = True

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        return None if graph.count("Relu") else "it has no Relu"

    def rewrite(self, draft: Any, context: Context, parameters: Mapping[str, Any]) -> Outcome:
        raise AssertionError("a rule does not rewrite")


class Shy(Theirs):
    name: ClassVar[str] = "shy"
    on_by_default: ClassVar[bool] = False


class ForGpus(Theirs):
    name: ClassVar[str] = "for-gpus"
    providers: ClassVar[tuple[str, ...]] = ("CUDAExecutionProvider",)


def test_a_third_party_s_rewrite_is_proposed_where_it_is_on_by_default_and_has_something_to_do(
    installed: Callable[..., None],
) -> None:
    points = (Point(each.name, lambda each=each: each) for each in (Theirs, Shy, ForGpus))
    installed(*points, group=registry.ENTRY_POINT_GROUP)
    names = [[t.name for t in s.transforms] for s in proposed(RuleLibrary(), problem({"Relu": 3, "Conv": 5}))]
    assert [name for name in names if name in (["theirs"], ["shy"], ["for-gpus"])] == [["theirs"]]
    assert ["theirs"] not in [[t.name for t in s.transforms] for s in proposed(RuleLibrary(), problem({"Conv": 5}))]
    off = proposed(RuleLibrary(disabled=("contributed_rewrites",)), problem({"Relu": 3, "Conv": 5}))
    assert ["theirs"] not in [[t.name for t in s.transforms] for s in off]


class Raising(Theirs):
    name: ClassVar[str] = "raising"

    def objection(self, graph: Graph, context: Context | None = None) -> str | None:
        raise ZeroDivisionError("their mistake")


def test_a_third_party_s_rewrite_that_raises_or_leaves_costs_only_itself(
    installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    points = (Point("leaving", leaves), Point("raising", lambda: Raising), Point("theirs", lambda: Theirs))
    installed(*points, group=registry.ENTRY_POINT_GROUP)
    with caplog.at_level(logging.WARNING, "ort_metainfer"):
        names = [[t.name for t in s.transforms] for s in proposed(RuleLibrary(), problem({"Relu": 3, "Conv": 5}))]
    assert ["theirs"] in names and ["raising"] not in names
    words = "\n".join(record.getMessage() for record in caplog.records)
    assert "rewrite leaving = made:up does not load: SystemExit: 3" in words
    assert "rewrite raising is not proposed: ZeroDivisionError: their mistake" in words


def decided(model: Path, **settings: Any) -> Decision:
    resolved, _ = settings_for(Settings(**settings))
    graph = problem({"MatMul": 8, "Relu": 8}).graph
    return decide(Request(str(model), SessionSpec(), resolved), FakeTrialHost(graph=graph))


def test_a_decision_carries_the_rules_that_fired_and_none_that_is_off(tiny_model: Callable[..., Path]) -> None:
    name = "extended_level_without_convolutions"
    asked = {"providers": ("CPU",)}
    first = decided(tiny_model("MatMul"), **asked)
    assert name in [verdict.rule for verdict in first.rules]
    without = decided(tiny_model("MatMul"), rules_off=(name,), **asked)
    assert name not in [verdict.rule for verdict in without.rules]
    assert first.key is not None and without.key is not None and without.cache == "miss"
    assert without.key.policy == f"{first.key.policy}|rules off: {name}"
    assert decided(tiny_model("MatMul"), **asked).cache == "hit"


@dataclass(frozen=True)
class Package:
    """What an entry point knows of its distribution."""

    name: str = "their-rules"
    version: str = "1.0"


def test_an_entry_rests_on_the_packages_that_contribute_rules_or_rewrites(
    tiny_model: Callable[..., Path], installed: Callable[..., None]
) -> None:
    assert GROUPS == (contributed.ENTRY_POINT_GROUP, registry.ENTRY_POINT_GROUP)
    model = tiny_model("MatMul")
    without = decided(model)
    assert without.manifest is not None and "their-rules" not in without.manifest.versions
    for group in GROUPS:
        for package, told in ((Package(), "None, is 1.0"), (Package(version="1.1"), "1.0, is 1.1")):
            load = made if group == contributed.ENTRY_POINT_GROUP else lambda: Shy
            installed(Point("one", load, dist=package), group=group)
            assert (decided(model).cache_reason, decided(model).cache) == (f"their-rules was {told}", "hit")
        installed(group=group)
        assert decided(model).cache_reason == "their-rules was 1.1, is None"
