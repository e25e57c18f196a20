"""Public tables are read as what they are, and nothing that is held out leaks into what is learned."""

from __future__ import annotations

import gzip
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ort_metainfer.errors import InputsError
from ort_metainfer.learning import policies
from ort_metainfer.learning.held_out import folds, predict_held_out
from ort_metainfer.learning.public import VARIABLE, public_folder
from ort_metainfer.learning.public_aihub import load_aihub
from ort_metainfer.learning.public_help import gate_by_class, kind_of, load_help
from ort_metainfer.learning.public_ncnn import load_ncnn
from ort_metainfer.learning.public_timm import load_timm
from ort_metainfer.learning.references import aligned, choose_references, effects
from tests.made_learning import made_tasks

needs_training = pytest.mark.skipif(find_spec("sklearn") is None, reason="training needs the extra train")

FOLDER = os.environ.get(VARIABLE)
"""Read before the isolation of tests removes the variable."""


@pytest.fixture
def tables() -> Path:
    if not FOLDER:
        pytest.skip(f"{VARIABLE} is unset; name a folder with the public tables there")
    return Path(FOLDER)


def write(path: Path, header: str, *rows: str) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join([header, *rows]) + "\n")


AIHUB = (
    "model,component,domain,use_case,params,resolution,size_float,precision,chipset,runtime,latency_ms,"
    "layers_total,layers_npu,layers_gpu,layers_cpu"
)


def test_aihub_rows_become_cases_with_probe_and_words(tmp_path: Path) -> None:
    about = "resnet18,ResNet18,Computer Vision,Image Classification,11000000,224x224,44.6M"
    write(
        tmp_path / "aihub.csv.gz",
        AIHUB,
        f"{about},float,qualcomm-qcs8275-proxy,onnx,4.0,50,40,,10",
        f"{about},w8a8,qualcomm-qcs8275-proxy,tflite,1.0,60,60,,",
        f"{about},float,qualcomm-snapdragon-x-elite,onnx,2.0,50,50,,",  # leaves no choice
        f"{about},w8a8,qualcomm-snapdragon-8gen3,onnx,,50,50,,",  # has no latency
    )
    tasks = load_aihub(tmp_path)
    assert tasks.configuration.tolist() == ["onnx:float", "tflite:w8a8"]
    assert set(tasks.hardware.tolist()) == {"qualcomm-sa7255p"}  # figure for figure the same chip
    assert set(tasks.kind.tolist()) == {"iot"} and set(tasks.family.tolist()) == {"resnet"}
    assert tasks.column("cpu_share").tolist() == [0.2, 0.0]
    assert tasks.column("weight_bits").tolist() == [16.0, 8.0]
    np.testing.assert_allclose(np.exp(tasks.column("log_parameters")), 11e6)
    np.testing.assert_allclose(np.exp(tasks.column("log_file_bytes")), 44.6e6)
    np.testing.assert_allclose(np.exp(tasks.column("log_input_elements")), 224 * 224)
    assert "log_layers" not in load_aihub(tmp_path, probe="share").names
    assert "cpu_share" not in load_aihub(tmp_path, probe="none").names


def test_ncnn_takes_the_fastest_binding_and_tells_gpu_from_threads(tmp_path: Path) -> None:
    header = "device,model,min_ms,max_ms,avg_ms,num_threads,powersave,gpu_device"
    write(
        tmp_path / "ncnn.csv.gz",
        header,
        "Rock RK3588 (Cortex-A76 2.4GHz x 4 + Cortex-A55 1.8GHz x 4),resnet18,1,1,30,4,0,-1",
        "Rock RK3588 (Cortex-A76 2.4GHz x 4 + Cortex-A55 1.8GHz x 4),resnet18,1,1,20,4,2,-1",
        "Rock RK3588 (Cortex-A76 2.4GHz x 4 + Cortex-A55 1.8GHz x 4),resnet18,1,1,50,1,0,0",
        "Rock RK3588 (Cortex-A76 2.4GHz x 4 + Cortex-A55 1.8GHz x 4),resnet18-int8,1,1,10,4,0,-1",
        "Rock RK3588 (Cortex-A76 2.4GHz x 4 + Cortex-A55 1.8GHz x 4),vgg16,1,1,90,4,0,",
    )
    tasks = load_ncnn(tmp_path)
    assert dict(zip(tasks.configuration.tolist(), tasks.latency_ms.tolist(), strict=True)) == {
        "4:float": 20.0,
        "gpu:float": 50.0,
    }
    assert tasks.column("log2_cores").tolist() == [3.0, 3.0] and tasks.column("clock_ghz").tolist() == [2.4, 2.4]
    assert set(tasks.hardware.tolist()) == {"RK3588"}
    assert sorted(load_ncnn(tmp_path, with_int8=True).configuration.tolist()) == ["4:float", "4:int8", "gpu:float"]


def test_timm_counts_one_chip_under_two_names_as_one(tmp_path: Path) -> None:
    write(
        tmp_path / "timm.csv.gz",
        "model,img,sps,gmacs,macts,par,prec,lay,pt,gpu,dyn",
        "tf_resnet50,224,1000,4.1,11,25,amp,nchw,240,rtx4090,0",
        "tf_resnet50,224,2000,4.1,11,25,amp,nhwc,240,4090,1",
    )
    tasks = load_timm(tmp_path)
    assert tasks.configuration.tolist() == ["amp:nchw:eager", "amp:nhwc:compiled"]
    assert set(tasks.hardware.tolist()) == {"rtx4090"} and set(tasks.family.tolist()) == {"resnet"}
    assert tasks.latency_ms.tolist() == [1.0, 0.5]


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match=r"aihub\.csv\.gz: not a readable table"):
        load_aihub(tmp_path)
    with pytest.raises(InputsError, match="not a readable archive"):
        load_help(tmp_path / "help.npz")


def test_the_folder_is_named_by_a_variable_and_by_nothing_else() -> None:
    assert public_folder({}) is None
    assert public_folder({VARIABLE: "tables"}) == Path("tables")


def test_a_configurations_rank_on_references_depends_on_size() -> None:
    size = np.log([1.0, 10.0, 100.0] * 2)
    names = ["m0", "m1", "m2"] * 2
    configuration = ["cpu"] * 3 + ["gpu"] * 3
    log_ms = np.concatenate([np.log([1.0, 10.0, 100.0]), np.log([5.0, 5.2, 7.0])])
    parts, _, middle = effects(log_ms, names, configuration, size)

    def ahead(work: float) -> float:
        (cpu, cpu_slope), (gpu, gpu_slope) = parts["cpu"], parts["gpu"]
        return (cpu - gpu) + (cpu_slope - gpu_slope) * (np.log(work) - middle)

    assert ahead(0.1) < 0 < ahead(1000.0)


def test_references_are_of_different_families_and_among_the_rows_that_may_be_seen() -> None:
    tasks = made_tasks()
    rows = ~np.isin(tasks.model, ["m00", "m01"])
    chosen = choose_references(tasks, rows, 3)
    families = dict(zip(tasks.model.tolist(), tasks.family.tolist(), strict=True))
    assert len(chosen) == 3 and len({families[each] for each in chosen}) == 3
    assert not {"m00", "m01"} & set(chosen)


def test_columns_of_references_are_of_the_rows_own_device_alone() -> None:
    tasks = made_tasks()
    chosen = ["m03", "m07"]
    before = aligned(tasks, chosen)
    other = tasks.device != "d1"
    after = aligned(replace(tasks, latency_ms=np.where(other, tasks.latency_ms * 3.0, tasks.latency_ms)), chosen)
    for name, column in before.items():
        np.testing.assert_array_equal(column[~other], after[name][~other])


@pytest.mark.parametrize("split", ["device", "both", "both-models", "family", "model"])
def test_no_hardware_or_model_is_on_both_sides_of_a_fold(split) -> None:
    tasks, tested = made_tasks(), np.zeros(len(made_tasks()), dtype=int)
    for fold in folds(tasks, split, groups=3):
        tested += fold.test
        if split in ("device", "both", "both-models"):
            assert not set(tasks.hardware[fold.learn]) & set(tasks.hardware[fold.test])
        if split in ("both", "family"):
            assert not set(tasks.family[fold.learn]) & set(tasks.family[fold.test])
        if split in ("both-models", "model"):
            assert not set(tasks.model[fold.learn]) & set(tasks.model[fold.test])
    assert (tested == 1).all()


@needs_training
@pytest.mark.parametrize(("split", "groups"), [("device", 3), ("both", 3)])
def test_latencies_of_the_held_out_device_do_not_touch_its_answers_but_through_references(split, groups) -> None:
    tasks = made_tasks()
    learner = policies.forest(trees=4)
    before = predict_held_out(tasks, learner, split, references=2, groups=groups, only=["d3"])
    references = _references_of(tasks, split, groups, "d3")
    spoilt = (tasks.device == "d3") & ~np.isin(tasks.model, list(references))
    random = np.random.default_rng(0).uniform(0.1, 10.0, len(tasks))
    changed = replace(tasks, latency_ms=np.where(spoilt, tasks.latency_ms * random, tasks.latency_ms))
    after = predict_held_out(changed, learner, split, references=2, groups=groups, only=["d3"])
    answered = ~np.isnan(before.expected[:, 0])
    assert answered.any() and set(tasks.device[answered]) == {"d3"}
    same = answered & ~np.isin(tasks.model, list(references))
    np.testing.assert_array_equal(before.expected[same], after.expected[same])


def _references_of(tasks, split, groups, device) -> set[str]:
    """Every model that serves as a reference in some fold that holds out ``device``."""
    return {
        model
        for fold in folds(tasks, split, groups)
        if device in set(tasks.hardware[fold.test])
        for model in choose_references(tasks, fold.learn, 2)
    }


@needs_training
def test_latencies_of_held_out_models_elsewhere_do_not_touch_their_answers() -> None:
    tasks = made_tasks()
    fold = next(fold for fold in folds(tasks, "both", 3) if "d3" in set(tasks.hardware[fold.test]))
    models = set(tasks.model[fold.test].tolist())
    spoilt = np.isin(tasks.model, list(models)) & (tasks.device != "d3")
    changed = replace(
        tasks, latency_ms=np.where(spoilt, tasks.latency_ms * (1 + np.arange(len(tasks)) % 7), tasks.latency_ms)
    )
    learner = policies.forest(trees=4)
    before, after = (
        predict_held_out(each, learner, "both", references=2, groups=3, only=["d3"]).expected
        for each in (tasks, changed)
    )
    rows = fold.test
    assert not np.isnan(before[rows]).all()
    np.testing.assert_array_equal(before[rows], after[rows])


def test_reference_models_are_not_answered_for() -> None:
    tasks = made_tasks()
    held_out = predict_held_out(tasks, policies.average(), "device", references=2, only=["d4"])
    chosen = _references_of(tasks, "device", 10, "d4")
    answered = {tasks.model[case[0]] for case in held_out.cases()}
    assert answered and not answered & chosen


def test_a_device_class_that_was_held_out_is_refused_in_the_archives(tables: Path) -> None:
    for name in ("help_nasbench201", "help_fbnet"):
        gated = {each.device: each for each in gate_by_class(tables / f"{name}.npz")}
        for device in ("fpga", "eyeriss"):
            assert gated[device].refused and f"no device of class {kind_of(device)} was seen" in (
                gated[device].reason or ""
            )
        assert not gated["titan_rtx_1"].refused


def test_the_public_tables_hold_what_they_are_described_to_hold(tables: Path) -> None:
    aihub, ncnn = load_aihub(tables), load_ncnn(tables)
    assert (len(set(aihub.case.tolist())), len(set(aihub.device.tolist()))) == (2108, 15)
    assert (len(set(ncnn.case.tolist())), len(set(ncnn.device.tolist())), len(set(ncnn.configuration.tolist()))) == (
        1711,
        69,
        14,
    )


@pytest.mark.slow
def test_ncnn_beats_the_references_alone_on_a_device_and_models_unseen(tables: Path) -> None:
    from ort_metainfer.learning.evaluate import regrets

    tasks = load_ncnn(tables)
    only = [str(each) for each in np.unique(tasks.hardware)[::8]]
    found = {
        name: regrets(predict_held_out(tasks, learner, "both-models", references=3, groups=3, only=only))
        for name, learner in (
            ("forest", policies.forest(20, over="reference_at_size")),
            ("average", policies.average()),
        )
    }
    assert found["forest"][:, 0].mean() < found["average"][:, 0].mean() / 2
    assert (found["forest"][:, 1] <= 0.05).mean() > 0.95
