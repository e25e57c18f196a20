"""Quantised convolutions with the channels last: islands with transposes at their borders only."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from ort_metainfer.rewrites.layout_quantised import QuantisedChannelsLast
from tests.rewrite_models import attribute_of, model_of, noise, operators, rewritten

LAST = QuantisedChannelsLast()


def conv(x: str, y: str, weight: str, attributes: str = "") -> str:
    return f"{y} = QLinearConv {attributes} ({x}, s, z, {weight}, ws, wz, s, z)"


def weights(kind: Any = np.uint8, per_channel: bool = False, **shapes: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    made: dict[str, Any] = {name: rng.integers(-100, 100, shape).astype(np.int8) for name, shape in shapes.items()}
    scales = np.linspace(0.001, 0.01, next(iter(shapes.values()))[0], dtype=np.float32)
    made |= {"s": np.float32(0.05), "z": np.array(128 if kind == np.uint8 else 0, kind)}
    made |= {"ws": scales, "wz": np.zeros(scales.shape, np.int8)}
    return made if per_channel else made | {"ws": np.float32(0.005), "wz": np.int8(0)}


def image(body: str, opset: int = 17, **given: Any) -> onnx.ModelProto:
    text = f"""g (float[N,3,8,9] x) => (float[?,?,?,?] y) {{
        q = QuantizeLinear (x, s, z)
        {body}
        y = DequantizeLinear (r, s, z)
    }}"""
    return model_of(text, opset, **given)


FEED = {"x": noise(2, 3, 8, 9)}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    "attributes",
    ["", "<pads = [1,0,2,1], strides = [2,1]>", "<dilations = [2,2]>", '<auto_pad = "SAME_UPPER", strides = [2,2]>'],
)
def test_one_convolution_of_every_kind(kind: Any, per_channel: bool, attributes: str) -> None:
    model = image(conv("q", "r", "w", attributes), **weights(kind, per_channel, w=(4, 3, 3, 2)))
    after, outcome = rewritten(LAST, model, FEED)
    (node,) = [node for node in after.graph.node if node.op_type == "QLinearConv"]
    assert node.domain == "com.microsoft"
    assert attribute_of(node, "channels_last") == 1
    assert outcome.changed == 1


def test_a_chain_has_transposes_at_its_borders_only_and_quantisers_may_be_in_it() -> None:
    body = f"""{conv("q", "a", "w1", "<pads = [1,1,1,1]>")}
        p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (a)
        {conv("p", "b", "w2", "<group = 4>")}
        c = com.microsoft.QLinearAdd (b, s, z, p, s, z, s, z)
        {conv("c", "r", "w3")}"""
    given = weights(w1=(4, 3, 3, 3), w2=(4, 1, 1, 1), w3=(5, 4, 1, 1))
    after, outcome = rewritten(LAST, image(body, **given), FEED)
    found = operators(after)
    assert found["Transpose"] == 2
    assert found["NhwcMaxPool"] == 1
    assert outcome.changed == 4
    ends = [node.op_type for node in after.graph.node]
    assert "Transpose" in (ends[0], ends[1]) and "Transpose" in (ends[-1], ends[-2])


def test_what_makes_a_tensor_and_what_uses_it_may_change_places() -> None:
    """The Add goes to the channels first, the quantiser to the channels last: a transpose stays between them."""
    text = """g (float[2,3,8,9] x) => (float[?,?,?,?] y, float[?,?] f) {
        c = Conv (x, k)
        t = Transpose <perm = [0,2,3,1]> (c)
        a = Add (t, bias)
        b = Transpose <perm = [0,3,1,2]> (a)
        f = Flatten (b)
        q = QuantizeLinear (b, s, z)
        r = QLinearConv (q, s, z, w, ws, wz, s, z)
        y = DequantizeLinear (r, s, z)
    }"""
    given = weights(w=(2, 6, 3, 3)) | {"k": noise(6, 3, 1, 1), "bias": noise(6)}
    after, _ = rewritten(LAST, model_of(text, **given), FEED)
    assert operators(after)["Transpose"] == 2


def test_pooling_of_com_microsoft_follows() -> None:
    body = f"""{conv("q", "a", "w")}
        b = com.microsoft.QLinearAveragePool <kernel_shape = [2,2]> (a, s, z, s, z)
        r = com.microsoft.QLinearGlobalAveragePool (b, s, z, s, z)"""
    after, outcome = rewritten(LAST, image(body, **weights(w=(4, 3, 3, 3))), FEED)
    pools = [node for node in after.graph.node if "AveragePool" in node.op_type]
    assert [attribute_of(node, "channels_last") for node in pools] == [1, 1]
    assert outcome.changed == 3


def test_what_is_not_over_images_or_no_bytes_or_asked_for_indices_stays() -> None:
    text = """g (float[N,3,8,9] x, float[N,3,8] u) => (float[?,?,?,?] y, int64[?,?,?,?] i, float[?,?,?] v) {
        q = QuantizeLinear (x, s, z)
        a = QLinearConv (q, s, z, w, ws, wz, s, z)
        m, i = MaxPool <kernel_shape = [2,2]> (a)
        y = DequantizeLinear (m, s, z)
        p = QuantizeLinear (u, s, z)
        b = QLinearConv (p, s, z, w1, ws, wz, s, z)
        v = DequantizeLinear (b, s, z)
    }"""
    given = weights(w=(4, 3, 3, 3), w1=(4, 3, 2))
    after, outcome = rewritten(LAST, model_of(text, **given), FEED | {"u": noise(2, 3, 8)})
    assert outcome.changed == 1
    reasons = [site.reason for site in outcome.sites if site.reason]
    assert sorted(reasons) == [
        "it is not over images",
        "its indices are asked for, which count in its own order",
    ]
    assert operators(after)["MaxPool"] == 1


def test_a_graph_output_in_bytes_keeps_name_and_layout() -> None:
    text = "g (uint8[N,3,8,9] x) => (uint8[?,?,?,?] r) { r = QLinearConv (x, s, z, w, ws, wz, s, z) }"
    feeds = {"x": np.random.default_rng(0).integers(0, 256, (2, 3, 8, 9)).astype(np.uint8)}
    after, _ = rewritten(LAST, model_of(text, **weights(w=(4, 3, 3, 3))), feeds)
    assert [value.name for value in after.graph.output] == ["r"]
    assert operators(after) == {"Transpose": 2, "QLinearConv": 1}


def test_floats_are_refused() -> None:
    from ort_metainfer.model.graph import describe

    model = model_of("g (float[1,1,2,2] x) => (float[1,1,2,2] y) { y = Conv (x, w) }", w=noise(1, 1, 1, 1))
    assert LAST.objection(describe(model.SerializeToString())) == "the model has no QLinearConv"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppocr_cls", "doc_orientation"])
def test_a_real_network_quantised_becomes_one_island(name: str, zoo_model: Any, tmp_path: Any) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    from tests.rewrite_run import apply_to_bytes, difference, outputs

    shape = (1, 3, 48, 192) if name == "ppocr_cls" else (1, 3, 224, 224)
    feeds = [{"x": np.random.default_rng(0).random(shape, dtype=np.float32)}]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = list(feeds)

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    quantised = tmp_path / "quantised.onnx"
    quantize_static(
        str(zoo_model(name)), str(quantised), Reader(), QuantFormat.QOperator, activation_type=QuantType.QUInt8
    )
    made, outcome = apply_to_bytes(LAST, quantised.read_bytes(), feeds)
    assert outcome.changed > 20
    expected = outputs(quantised, feeds)
    assert difference(outputs(made, feeds), expected, "exact") is None
    (kept,) = {node.domain for node in onnx.load_from_string(made).graph.node if node.op_type == "QLinearConv"}
    assert kept == "com.microsoft"
