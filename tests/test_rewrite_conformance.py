"""Every registered rewrite keeps to the contract, and the suite that says so catches those that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ort_metainfer.rewrites.base import Rewrite
from ort_metainfer.rewrites.registry import all_rewrites
from tests import made_rewrites
from tests.made_rewrites import SPOILT, AbsToMax, Spoilt
from tests.odd_models import odd_models
from tests.random_graphs import Plan, build, random_plan
from tests.rewrite_conformance import check_rewrite, faults_of, meaning
from tests.rewrite_run import outputs
from tests.rewrite_trials import Subject, campaign, report, smallest
from tests.rounding_noise import rounding_noise

ROOT = Path(__file__).parents[1]
CAUGHT_WITHIN = 150


@pytest.mark.parametrize("rewrite", [pytest.param(rewrite, id=rewrite.name) for rewrite in all_rewrites()])
def test_rewrite_keeps_to_the_contract(rewrite: Rewrite) -> None:
    check_rewrite(rewrite)


def test_names_are_taken_once() -> None:
    names = [rewrite.name for rewrite in all_rewrites()]
    assert len(names) == len(set(names))


def test_listing_them_imports_no_graph_library() -> None:
    """It is done in the caller's process, where a program's own module may bear such a name."""
    words = "import sys; from ort_metainfer.rewrites.registry import all_rewrites; all_rewrites(); "
    words += "sys.exit(bool({'onnx', 'onnx_ir', 'onnxscript'} & set(sys.modules)))"
    paths = os.pathsep.join(filter(None, sys.path))
    assert subprocess.run([sys.executable, "-c", words], env=os.environ | {"PYTHONPATH": paths}).returncode == 0


def test_a_right_rewrite_passes() -> None:
    check_rewrite(AbsToMax())


def test_a_right_rewrite_keeps_its_promise_on_random_graphs() -> None:
    record = campaign(AbsToMax(), (Subject(build(random_plan(seed))) for seed in range(2 * CAUGHT_WITHIN)))
    assert record.applied > 5 and not record.faults


@pytest.mark.parametrize("name", SPOILT)
def test_a_wrong_rewrite_is_caught_by_the_suite_or_by_random_graphs(name: str) -> None:
    words = SPOILT[name][1]
    found = faults_of(Spoilt(name))
    record = campaign(Spoilt(name), (Subject(build(random_plan(seed))) for seed in range(CAUGHT_WITHIN)))
    found += [fault for _, _, fault in record.faults]
    assert any(words in fault for fault in found), found


MADE_FAULTS = {
    "NotTheSameTwice": "other bytes the second time",
    "SaysNothing": "no reason given",
    "DeniesIt": "but changed nodes",
    "Raises": "raised",
    "WritesToTheOriginal": "the original was written to",
}


@pytest.mark.parametrize("name", MADE_FAULTS)
def test_a_careless_rewrite_is_caught(name: str) -> None:
    found = faults_of(getattr(made_rewrites, name)())
    assert any(MADE_FAULTS[name] in fault for fault in found), found


def test_careless_statements_are_caught() -> None:
    found = "\n".join(faults_of(made_rewrites.Careless()))
    for words in ("words with hyphens", "positive int", "needs may hold", "execution providers", "measured figure"):
        assert words in found
    assert "parameter most does not say what it means" in found and "parameter most: default must be" in found


def test_a_failing_graph_is_shown_in_its_smallest_form() -> None:
    wrong = Spoilt("is-off-by-a-thousandth")
    subjects = [Subject(build(random_plan(seed))) for seed in range(CAUGHT_WITHIN)]
    record = campaign(wrong, subjects, most_faults=3)
    large = max((plan for plan, _, _ in record.faults), key=lambda plan: len(plan.blocks))
    assert len(large.blocks) > 1
    shown = smallest(wrong, large, {})
    assert shown.count(" = ") == 1 and "Abs" in shown and "off by" in shown
    assert wrong.name in report(wrong, record)


def test_rounding_noise_tells_an_ill_conditioned_graph_from_others() -> None:
    """Normalising what an Expand made equal divides rounding errors by the square root of epsilon."""
    calm = build(Plan((("gemm", 1), ("hard_swish", 2))))
    shaky = build(Plan((("repeats", 32545), ("instance_norm", 926), ("group_norm", 32541))))
    assert 0 < rounding_noise(calm.bytes, calm.feeds) < 1e-5
    assert rounding_noise(shaky.bytes, shaky.feeds) > 1e-4


def test_odd_models_run() -> None:
    names = set()
    for odd in odd_models():
        assert outputs(odd.model.SerializeToString(), odd.feeds)
        names.add(odd.name)
    assert len(names) == len(odd_models()) > 25


def test_a_models_meaning_is_more_than_its_names() -> None:
    first, second = (build(random_plan(5)).model.graph for _ in range(2))
    for node in second.node:
        node.name, node.doc_string = "another", "documented"
    assert meaning(first) == meaning(second)
    second.node[-1].op_type += "2"
    assert meaning(first) != meaning(second)


PRINT_DIGESTS = """
import sys
from ort_metainfer.rewrites.registry import all_rewrites
from tests.made_rewrites import AbsToMax, OtherInAnotherProcess
from tests.rewrite_conformance import digests
made = [AbsToMax(), OtherInAnotherProcess()]
for rewrite in made if sys.argv[1] == "made" else all_rewrites():
    print(rewrite.name, *digests(rewrite))
"""


def digests_with(hash_seed: int, which: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", PRINT_DIGESTS, which]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_another_process_gives_the_same_bytes() -> None:
    first, second = (digests_with(seed, "all") for seed in (1, 2))
    assert first == second


@pytest.mark.slow
def test_bytes_that_depend_on_the_process_are_caught() -> None:
    first, second = (digests_with(seed, "made") for seed in (1, 2))
    assert first["abs-to-max"] == second["abs-to-max"]
    assert first["other-in-another-process"] != second["other-in-another-process"]
