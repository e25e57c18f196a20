"""Operator cases: valid models, the names promised, what real providers take."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.hardware.devices import cpu_device
from ort_metainfer.hardware.operator_cases import CASES, case_named
from ort_metainfer.hardware.operator_models import MATRIX, case
from ort_metainfer.hardware.operators import serve, try_operator
from ort_metainfer.hardware.probe import find_operators
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.faults import VARIABLE

CPU = Strategy(provider="CPUExecutionProvider")

PROMISED = (
    "Conv Conv/depthwise ConvTranspose Gemm MatMul MatMul/float16 MatMul/bfloat16 MatMulInteger QLinearConv Conv/qdq "
    "LSTM GRU "
    "com.microsoft.Attention LayerNormalization InstanceNormalization GroupNormalization Resize/nearest Resize/linear "
    "Resize/cubic Pad/reflect Gather GatherND ScatterND TopK NonZero If Loop Einsum Gelu HardSwish Softmax ReduceMean "
    "Cast/float16 Cast/bfloat16 DepthToSpace GridSample Where CumSum Pow Erf"
)
UNTYPED_DOMAIN = "com.microsoft"


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name)
def test_a_case_is_a_valid_model_around_its_operator(entry) -> None:
    micro = entry.build()
    model = onnx.load_from_string(micro.model)
    for value in model.graph.output:  # onnx knows no shapes for some operators: onnxruntime infers them
        if not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.dim.add()
    opset = next(given.version for given in model.opset_import if given.domain == "")
    is_known = opset <= onnx.defs.onnx_opset_version()  # onnx 1.17 ends before Attention and RotaryEmbedding
    if is_known and entry.name != "SimplifiedLayerNormalization":  # onnxruntime's own, in ONNX's domain
        onnx.checker.check_model(model)
    operator = entry.name.partition("/")[0].removeprefix(f"{UNTYPED_DOMAIN}.")
    assert operator in {node.op_type for node in model.graph.node}
    assert {value.name for value in model.graph.input} == set(micro.feeds)
    assert entry.build().model == micro.model


def test_there_are_cases_for_all_that_is_promised_each_once() -> None:
    names = [entry.name for entry in CASES]
    assert set(PROMISED.split()) <= set(names)
    assert len(set(names)) == len(names) > 100


def test_the_cpu_provider_takes_a_plain_operator() -> None:
    assert try_operator(case_named("MatMul"), CPU) == (True, None)


def test_what_the_cpu_provider_cannot_create_is_refused_in_its_own_words() -> None:
    taken, refusal = try_operator(case_named("MatMul/bfloat16"), CPU)
    assert taken is False
    assert "NOT_IMPLEMENTED" in str(refusal)


def test_what_can_be_created_and_does_not_run_is_refused() -> None:
    beyond = case("Gather", MATRIX, np.array([99], np.int64), axis=0)
    taken, refusal = try_operator(beyond, CPU)
    assert taken is False
    assert "out of" in str(refusal)


def test_past_its_time_the_child_begins_nothing() -> None:
    said: list[str] = []

    class Speaker:
        def say(self, event: str, **fields: Any) -> None:
            said.append(event)

    request = {"provider": "CPUExecutionProvider", "device": None, "cases": ["Conv"]}
    serve(request, Speaker(), time.monotonic() - 1)
    assert said == ["discovering"]


@pytest.mark.slow
def test_the_cpu_provider_takes_nearly_everything() -> None:
    found = find_operators(cpu_device(), time.monotonic() + 60, print)
    assert set(found) == {entry.name for entry in CASES}
    assert {name for name, taken in found.items() if not taken} <= {"MatMul/bfloat16", "Attention", "RotaryEmbedding"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_a_case_that_kills_its_process_costs_only_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"opening:Conv/depthwise:{kind}")
    found = find_operators(cpu_device(), time.monotonic() + 60, print)
    assert found["Conv/depthwise"] is False
    assert found["Conv"] is True
    assert found["Softmax"] is True


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nxrt_ep_cpu") is None, reason="nxrt-ep-cpu is not installed")
def test_nxrt_takes_products_and_normalisations_and_no_pooling() -> None:
    from ort_metainfer.providers import get_provider

    found = find_operators(get_provider("cpu_ep").devices()[0], time.monotonic() + 60, print)
    assert found["MatMul"] is True
    assert found["LayerNormalization"] is True
    assert found["MaxPool"] is False
    assert found["LSTM"] is False


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("onnxruntime_ggml") is None, reason="onnxruntime-ggml is not installed")
def test_ggml_takes_products_and_no_pooling() -> None:
    from ort_metainfer.providers import get_provider

    found = find_operators(get_provider("ggml").devices()[0], time.monotonic() + 60, print)
    assert found["MatMul"] is True
    assert found["MaxPool"] is False
