"""The strategy as a file: written, read back, edited by a person, refused with the file's name and the field's."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from ort_metainfer.errors import MetainferError, StrategyError
from ort_metainfer.options import apply
from ort_metainfer.rewrites.registry import get_rewrite
from ort_metainfer.strategy import EXECUTION_MODES, GRAPH_LEVELS, SESSION_OPTIONS, Strategy, Transform

EVERYTHING = Strategy(
    transforms=(Transform("fuse_gelu", 2, {"exact": True, "limit": 3, "names": ["a", "b"]}), Transform("to_nhwc")),
    provider="OpenVINOExecutionProvider",
    device="CPU",
    provider_options={"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1"},
    session_options={
        "intra_op_num_threads": 1,
        "inter_op_num_threads": 2,
        "execution_mode": "parallel",
        "graph_optimization_level": "extended",
        "enable_mem_pattern": False,
        "enable_cpu_mem_arena": True,
        "enable_mem_reuse": True,
    },
    session_config={"session.intra_op.allow_spinning": "0"},
    static_shapes={"batch": 1, "DynamicDimension.0": 640},
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "strategy.toml"


@pytest.mark.parametrize("strategy", [Strategy(), EVERYTHING, Strategy(session_options={"intra_op_num_threads": 1})])
def test_what_is_written_is_read_back_equal(strategy: Strategy, file: Path) -> None:
    file.write_text(strategy.to_toml("why: because\nsecond line"), encoding="utf-8")
    assert Strategy.read(file) == strategy
    assert file.read_text().startswith("# why: because\n# second line\n")


def test_the_sample_of_this_file_sets_every_session_option() -> None:
    assert set(EVERYTHING.session_options) == set(SESSION_OPTIONS)


def test_the_file_is_the_same_whatever_order_options_were_given_in() -> None:
    one = Strategy(provider_options={"a": "1", "b": "2"})
    other = Strategy(provider_options={"b": "2", "a": "1"})
    assert one.to_toml() == other.to_toml()


def test_override_wins_field_by_field_and_leaves_the_rest(file: Path) -> None:
    extra = '\n[override]\ndevice = "AUTO"\n[override.session_options]\nintra_op_num_threads = 4\n'
    file.write_text(EVERYTHING.to_toml() + extra, encoding="utf-8")
    read = Strategy.read(file)
    assert read.device == "AUTO"
    assert read.session_options["intra_op_num_threads"] == 4
    assert read.session_options["inter_op_num_threads"] == 2
    assert read.provider_options == EVERYTHING.provider_options
    assert read.transforms == EVERYTHING.transforms


def test_override_alone_is_a_strategy(file: Path) -> None:
    file.write_text("[override.session_options]\nintra_op_num_threads = 2\n")
    assert Strategy.read(file) == Strategy(session_options={"intra_op_num_threads": 2})


def test_a_file_that_an_editor_on_windows_wrote_is_read(file: Path) -> None:
    file.write_text("[strategy.session_options]\r\nintra_op_num_threads = 2\r\n", encoding="utf-8-sig")
    assert Strategy.read(file) == Strategy(session_options={"intra_op_num_threads": 2})


BAD_FILES = {  # content: what the message must name besides the file
    "not TOML": ("[strategy", "TOML"),
    "empty": ("", "[strategy]"),
    "stray table": ("[strategy]\n[stratgy]\n", "stratgy"),
    "bare values": ('provider = "CPUExecutionProvider"\n', "[strategy]"),
    "unknown field": ('[strategy]\nprovidr = "CPUExecutionProvider"\n', "'providr'"),
    "unknown field in override": ("[strategy]\n[override]\nthreads = 1\n", "'threads'"),
    "unknown session option": ("[strategy.session_options]\nthreads = 1\n", "'threads'"),
    "session option of the wrong type": ('[strategy.session_options]\nintra_op_num_threads = "1"\n', "intra_op_num_th"),
    "a flag for a number": ("[strategy.session_options]\nintra_op_num_threads = true\n", "intra_op_num_threads"),
    "unknown graph level": ('[strategy.session_options]\ngraph_optimization_level = "max"\n', ", ".join(GRAPH_LEVELS)),
    "unknown execution mode": ('[strategy.session_options]\nexecution_mode = "fast"\n', ", ".join(EXECUTION_MODES)),
    "provider option that is no text": ("[strategy.provider_options]\nNUM_STREAMS = 1\n", "provider_options.NUM_STREA"),
    "config entry that is no text": ('[strategy.session_config]\n"a.b" = 1\n', "session_config.a.b"),
    "size that is no number": ('[strategy.static_shapes]\nbatch = "1"\n', "static_shapes.batch"),
    "size of zero": ("[strategy.static_shapes]\nbatch = 0\n", "static_shapes"),
    "transform without a name": ("[[strategy.transforms]]\nversion = 1\n", "name"),
    "transform whose name is no text": ("[[strategy.transforms]]\nname = 3\n", "name must be str"),
    "transform of a version in quotes": ('[[strategy.transforms]]\nname = "a"\nversion = "1"\n', "version must be int"),
    "transform with a list of parameters": ('[[strategy.transforms]]\nname = "a"\nparameters = [1]\n', "parameters"),
    "transform with a field it lacks": ('[[strategy.transforms]]\nname = "a"\nforce = true\n', "'force'"),
    "transforms as bare names": ('[strategy]\ntransforms = ["int8-dynamic"]\n', "[[strategy.transforms]]"),
    "transforms that are no list": ("[strategy]\ntransforms = 1\n", "[[strategy.transforms]]"),
    "transforms as one text": ('[strategy]\ntransforms = "int8-dynamic"\n', "int8-dynamic"),
    "transforms as one table": ('[strategy.transforms]\nname = "a"\n', "[[strategy.transforms]]"),
    "a date for a parameter": ('[[strategy.transforms]]\nname = "a"\nparameters = {b = [2020-01-01]}\n', "parameter b"),
    "a size beyond 64 bits": ("[strategy.static_shapes]\nbatch = 9223372036854775808\n", "static_shapes"),
    "more threads than 32 bits": (
        "[strategy.session_options]\nintra_op_num_threads = 2147483648\n",
        "intra_op_num_thr",
    ),
    "strategy that is no table": ("strategy = 1\n", "strategy"),
    "provider that is no text": ("[strategy]\nprovider = 1\n", "provider"),
    "override that is no table": ("override = 1\n", "override"),
    "a table laid over a text": ('[strategy]\nprovider = "a"\n[override.provider]\nb = 1\n', "provider"),
    "options that are no table": ('[strategy]\nsession_options = "fast"\n', "session_options"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_with_its_name_and_the_field(kind: str, file: Path) -> None:
    content, named = BAD_FILES[kind]
    file.write_text(content)
    with pytest.raises(StrategyError) as caught:
        Strategy.read(file)
    assert str(file) in str(caught.value)
    assert named in str(caught.value)
    assert isinstance(caught.value, MetainferError)


def test_a_missing_file_a_folder_and_bytes_that_are_no_text_are_refused_with_their_name(tmp_path: Path) -> None:
    binary = tmp_path / "model.onnx"
    binary.write_bytes(b"\x08\x0a\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, binary):
        with pytest.raises(StrategyError) as caught:
            Strategy.read(path)
        assert str(path) in str(caught.value)


def test_a_strategy_is_hashable_and_read_only() -> None:
    assert len({EVERYTHING, Strategy.from_dict(EVERYTHING.as_dict()), Strategy()}) == 2
    with pytest.raises(TypeError):
        EVERYTHING.session_options["intra_op_num_threads"] = 3  # type: ignore[index]


def test_a_rewrite_that_there_is_not_is_refused_rather_than_left_out() -> None:
    with pytest.raises(StrategyError, match="no graph rewrite 'fuse_gelu'"):
        apply(onnxruntime.SessionOptions(), Strategy(transforms=(Transform("fuse_gelu"),)))


@pytest.mark.parametrize(("name", "told"), [("int8-statc", "did you mean int8-static"), ("x", "known: pow-to-mul")])
def test_of_a_rewrite_that_there_is_not_the_nearest_names_are_told(name: str, told: str) -> None:
    with pytest.raises(StrategyError, match=told):
        get_rewrite(name)
