"""Inputs made from a graph's declarations, inputs the caller gives, and feeds as files."""

from __future__ import annotations

import itertools
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx.backend.test.case.node import collect_testcases

from ort_metainfer.errors import InputsError
from ort_metainfer.model.feeds import FEEDABLE
from ort_metainfer.model.graph import describe
from ort_metainfer.model.inputs import GUESSES, caller_feeds, load_feeds, save_feeds, shapes_of, synthetic
from ort_metainfer.problem import Graph, TensorSpec


def graph_of(*specs: TensorSpec, **others: Any) -> Graph:
    return Graph(specs, (), 10, {"ai.onnx": 18}, {}, 0, 0, 0, **others)


def made(*specs: TensorSpec, guess: int = 0, shapes: Any = None, **others: Any) -> dict[str, np.ndarray[Any, Any]]:
    return synthetic(graph_of(*specs, **others), shapes or {}, seed=0, guess=guess)


class TestShapes:
    def test_fixed_dimensions_are_kept_zero_and_rank_zero_included(self) -> None:
        feed = made(TensorSpec("x", "float32", (2, 0, 7)), TensorSpec("s", "float32", ()))
        assert shapes_of([feed]) == {"x": (2, 0, 7), "s": ()}
        assert all(isinstance(array, np.ndarray) for array in feed.values())

    @pytest.mark.parametrize("guess", range(GUESSES))
    def test_dimensions_of_one_name_have_one_size_and_unnamed_ones_are_on_their_own(self, guess: int) -> None:
        ids = TensorSpec("ids", "int64", ("batch", "sequence"))
        mask = TensorSpec("mask", "int64", ("batch", "sequence"))
        states = TensorSpec("encoded", "float32", ("batch", "encoder_sequence", 512))
        shapes = shapes_of([made(ids, mask, states, guess=guess)])
        assert shapes["ids"] == shapes["mask"]
        assert shapes["ids"][0] == shapes["encoded"][0] == 1
        assert shapes["encoded"][2] == 512

    @pytest.mark.parametrize(
        ("spec", "shape"),
        [
            (TensorSpec("x", "float32", ("N", 3, "H", "W")), (1, 3, 224, 224)),
            (TensorSpec("x", "float32", (None, 3, None, None)), (1, 3, 224, 224)),
            (TensorSpec("x", "float32", (None, None, None, 3)), (1, 224, 224, 3)),
            (TensorSpec("x", "float32", ("d0", 3, 48, "d1")), (1, 3, 48, 224)),
            (TensorSpec("x", "float32", (None, None, None, None)), (1, 3, 224, 224)),
            (TensorSpec("input_ids", "int64", (None, None)), (1, 64)),
            (TensorSpec("tokens", "int64", (1, "sequence_length")), (1, 64)),
            (TensorSpec("mel", "float32", ("batch", 80, "time")), (1, 80, 64)),
            (TensorSpec("audio", "float32", (None, None)), (1, 512)),
            (TensorSpec("audio", "float32", ("batch", "sequence")), (1, 512)),
            (TensorSpec("state", "float32", (2, None, 128)), (2, 1, 128)),
            (TensorSpec("features", "float32", (None, 4)), (1, 4)),
            (TensorSpec("speed", "float32", (None,)), (1,)),
            (TensorSpec("element", "int64", ("num_atoms",)), (64,)),
        ],
    )
    def test_the_first_guess_is_what_the_name_and_place_suggest(self, spec: TensorSpec, shape: tuple[int, ...]) -> None:
        assert made(spec)[spec.name].shape == shape

    def test_guesses_differ_where_something_is_open(self) -> None:
        sizes = {made(TensorSpec("x", "float32", (1, 3, "h", "w")), guess=guess)["x"].shape for guess in range(GUESSES)}
        assert len(sizes) == GUESSES
        assert {(1, 3, side, side) for side in (224, 320, 64, 640, 32)} <= sizes

    def test_a_given_shape_sets_the_dimensions_of_the_same_name(self) -> None:
        specs = [TensorSpec("a", "float32", ("N", 3)), TensorSpec("b", "float32", ("N", "M"))]
        assert made(*specs, shapes={"a": (5, 3)})["b"].shape[0] == 5

    def test_a_name_that_is_a_sum_is_computed(self) -> None:
        feed = made(
            TensorSpec("input_ids", "int64", ("batch", "sequence_length")),
            TensorSpec("past.0.key", "float32", ("batch", 4, "past_sequence_length", 8)),
            TensorSpec("attention_mask", "int64", ("batch", "past_sequence_length + sequence_length")),
            TensorSpec("other_mask", "int64", ("batch", "total_sequence_length")),
            TensorSpec("one_more", "float32", ("batch", "past_sequence_length + 1")),
        )
        past, new = feed["past.0.key"].shape[2], feed["input_ids"].shape[1]
        assert feed["attention_mask"].shape == feed["other_mask"].shape == (1, past + new)
        assert feed["one_more"].shape == (1, past + 1)

    @pytest.mark.parametrize(
        ("shapes", "culprit"),
        [({"y": (1,)}, "'y'"), ({"x": (1, 2, 3)}, "'x'"), ({"x": (1, 5)}, "'x'"), ({"x": (-1, 4)}, "negative")],
    )
    def test_shapes_that_do_not_fit_are_refused_by_name(self, shapes: Any, culprit: str) -> None:
        with pytest.raises(InputsError, match=culprit):
            made(TensorSpec("x", "float32", ("N", 4)), shapes=shapes)

    @pytest.mark.parametrize("guess", [-1, GUESSES])
    def test_a_guess_that_does_not_exist_is_refused(self, guess: int) -> None:
        with pytest.raises(InputsError, match="guess"):
            made(TensorSpec("x", "float32", (1,)), guess=guess)


class TestValues:
    @pytest.mark.parametrize(
        "dtype",
        [
            "bool",
            "float16",
            "float32",
            "float64",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "uint16",
            "uint32",
            "uint64",
        ],
    )
    def test_the_declared_type_is_made(self, dtype: str) -> None:
        assert made(TensorSpec("x", dtype, (2, 3)))["x"].dtype == np.dtype(dtype)

    def test_strings_are_python_strings(self) -> None:
        array = made(TensorSpec("x", "string", (2, 1)))["x"]
        assert array.dtype == object
        assert array.tolist() == [["a"], ["a"]]

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            (TensorSpec("attention_mask", "int64", (1, 3)), [[1, 1, 1]]),
            (TensorSpec("attention_mask", "float32", (1, 3)), [[1, 1, 1]]),
            (TensorSpec("token_type_ids", "int64", (1, 3)), [[0, 0, 0]]),
            (TensorSpec("position_ids", "int64", (2, 3)), [[0, 1, 2], [0, 1, 2]]),
            (TensorSpec("use_cache", "bool", (1,)), [True]),
            (TensorSpec("sr", "int64", ()), 16000),
            (TensorSpec("sample_rate", "float32", (1,)), [16000]),
            (TensorSpec("speed", "float32", (1,)), [1]),
            (TensorSpec("noiseScale", "float32", (2,)), [1, 1]),
            (TensorSpec("length_scale", "float32", ()), 1),
            (TensorSpec("iou_threshold", "float32", (1,)), [0.5]),
        ],
    )
    def test_a_telling_name_decides(self, spec: TensorSpec, expected: Any) -> None:
        assert made(spec)[spec.name].tolist() == expected

    def test_distances_are_positive(self) -> None:
        assert made(TensorSpec("edge_dist", "float32", (1000,)))["edge_dist"].min() >= 0.1

    def test_lengths_are_the_sizes_they_speak_of(self) -> None:
        feed = made(
            TensorSpec("speech", "float32", ("batch", "frames", 80)),
            TensorSpec("text", "int64", ("batch", "tokens")),
            TensorSpec("text_lengths", "int32", ("batch",)),
            TensorSpec("speech_len", "int64", ("batch",)),
            guess=1,
        )
        assert feed["text_lengths"].tolist() == [feed["text"].shape[1]]
        assert feed["speech_len"].tolist() == [feed["speech"].shape[1]]

    def test_bounded_integers_use_their_range_and_stay_inside(self) -> None:
        array = made(TensorSpec("ids", "int64", (1, 5000)), index_bounds={"ids": 7})["ids"]
        assert (array.min(), array.max()) == (0, 6)

    def test_integers_bounded_by_another_input_stay_below_its_size(self) -> None:
        specs = [TensorSpec("edges", "int64", (2, 500)), TensorSpec("atoms", "float32", ("num_atoms", 3))]
        for guess in range(GUESSES):
            feed = made(*specs, guess=guess, index_inputs={"edges": ("atoms", 0)})
            assert feed["edges"].max() == len(feed["atoms"]) - 1

    def test_unbounded_integers_are_zero_or_one(self) -> None:
        assert set(made(TensorSpec("x", "int64", (1000,)))["x"].tolist()) == {0, 1}

    @pytest.mark.parametrize("dtype", ["int8", "uint8"])
    def test_a_bound_beyond_the_type_is_no_overflow(self, dtype: str) -> None:
        array = made(TensorSpec("x", dtype, (1000,)), index_bounds={"x": 30_000})["x"]
        assert array.min() >= 0
        assert array.max() > 100

    @pytest.mark.parametrize("shape", [(1, 3, 64, 96), (2, 64, 64, 3), (1, 1, 32, 32)])
    def test_an_image_is_smooth_and_of_unit_variance(self, shape: tuple[int, ...]) -> None:
        image = made(TensorSpec("x", "float32", shape))["x"]
        width_axis = 3 if shape[1] in (1, 3) else 2
        assert 0.9 < image.std() < 1.1
        assert np.abs(np.diff(image, axis=width_axis)).mean() < 0.4  # white noise: 1.13

    def test_an_image_of_bytes_uses_their_range(self) -> None:
        image = made(TensorSpec("x", "uint8", (1, 64, 64, 3)))["x"]
        assert image.min() < 60
        assert image.max() > 200

    def test_one_seed_makes_one_feed_and_another_seed_another(self) -> None:
        graph = graph_of(TensorSpec("x", "float32", (4, 4)), TensorSpec("y", "float32", (4, 4)))
        one, again, other = (synthetic(graph, {}, seed) for seed in (1, 1, 2))
        assert np.array_equal(one["x"], again["x"])
        assert not np.array_equal(one["x"], other["x"])
        assert not np.array_equal(one["x"], one["y"])

    @pytest.mark.parametrize(
        ("spec", "culprit"),
        [
            (TensorSpec("s", "seq(tensor(float))", None), r"seq\(tensor\(float\)\)"),
            (TensorSpec("o", "optional(tensor(float))", None), "'o'"),
            (TensorSpec("b", "bfloat16", (1,)), "bfloat16"),
            (TensorSpec("f", "float8e4m3fn", (1,)), "float8e4m3fn"),
            (TensorSpec("u", "unknown type 99", (1,)), "unknown type 99"),
            (TensorSpec("r", "float32", None), "rank"),
            (TensorSpec("x", "float32", (1 << 20, 1 << 20)), "MB"),
        ],
    )
    def test_what_cannot_be_made_is_refused_by_name(self, spec: TensorSpec, culprit: str) -> None:
        with pytest.raises(InputsError, match=culprit):
            made(TensorSpec("fine", "float32", (1,)), spec)

    def test_an_input_without_a_rank_takes_a_given_shape(self) -> None:
        assert made(TensorSpec("r", "float32", None), shapes={"r": (2, 3)})["r"].shape == (2, 3)

    def test_a_model_without_inputs_gets_an_empty_feed(self) -> None:
        assert made() == {}


PAIR = graph_of(
    TensorSpec("x", "float32", ("N", 2)),
    TensorSpec("ids", "int64", (None,)),
    overridable=(TensorSpec("bias", "float32", (2,)),),
)


def feed_of(size: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.full((size, 2), size, np.float32), "ids": np.arange(size)}


class Rank2:
    """A tensor of another library, as far as numpy is concerned."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.ones((1, 2), np.float32)


class TestWhatTheCallerGives:
    @pytest.mark.parametrize(
        "wrap",
        [
            lambda feed: feed,
            lambda feed: [feed],
            lambda feed: (feed,),
            lambda feed: iter([feed]),
            lambda feed: (item for item in [feed]),
            lambda feed: lambda: feed,
            lambda feed: lambda: [feed],
            lambda feed: lambda: iter([feed]),
        ],
        ids=["dict", "list", "tuple", "iterator", "generator", "callable", "callable list", "callable iterator"],
    )
    def test_any_form_gives_the_feed(self, wrap: Callable[[Any], Any]) -> None:
        (feed,) = caller_feeds(wrap(feed_of(3)), PAIR)
        assert np.array_equal(feed["x"], feed_of(3)["x"])
        assert list(feed) == ["x", "ids"]

    def test_no_more_than_the_limit_is_taken_from_an_iterator(self) -> None:
        taken = []

        def endless() -> Iterator[dict[str, Any]]:
            for size in itertools.count(1):
                taken.append(size)
                yield feed_of(size)

        assert [len(feed["x"]) for feed in caller_feeds(endless(), PAIR, limit=3)] == [1, 2, 3]
        assert taken == [1, 2, 3]

    def test_files_folders_and_patterns_are_read_in_the_order_of_their_numbers(self, tmp_path: Path) -> None:
        for size in (10, 2, 1):
            np.savez(tmp_path / f"{size}.npz", **feed_of(size))
        (tmp_path / "notes.txt").write_text("no feed")
        for place in (tmp_path, str(tmp_path), tmp_path / "*.npz", str(tmp_path / "**" / "*.npz")):
            assert [len(feed["x"]) for feed in caller_feeds(place, PAIR)] == [1, 2, 10]
        assert len(caller_feeds(tmp_path, PAIR, limit=2)) == 2
        (feed,) = caller_feeds(tmp_path / "10.npz", PAIR)
        assert feed["ids"].tolist() == list(range(10))

    def test_a_file_whose_name_looks_like_a_pattern_is_that_file(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a[1].npz", **feed_of(4))
        assert len(caller_feeds(tmp_path / "a[1].npz", PAIR)[0]["x"]) == 4

    def test_saved_feeds_are_accepted_back(self, tmp_path: Path) -> None:
        save_feeds([feed_of(2)], tmp_path)
        assert np.array_equal(caller_feeds(tmp_path, PAIR)[0]["x"], feed_of(2)["x"])

    def test_an_ortvalue_a_list_and_a_foreign_tensor_become_arrays(self) -> None:
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([4, 5]))
        (feed,) = caller_feeds({"x": Rank2(), "ids": value}, PAIR)
        assert feed["ids"].tolist() == [4, 5]
        assert feed["x"].shape == (1, 2)
        assert caller_feeds({"x": [[1, 2]], "ids": [3]}, PAIR)[0]["x"].dtype == np.float32

    def test_text_becomes_python_strings(self) -> None:
        text = graph_of(TensorSpec("t", "string", (None,)))
        for given_text in (["é", "bc"], np.array(["é", "bc"]), np.array(["é", "bc"], object), ["é".encode(), b"bc"]):
            (feed,) = caller_feeds({"t": given_text}, text)
            assert feed["t"].dtype == object
            assert feed["t"].tolist() == ["é", "bc"]

    def test_an_overridable_input_may_be_given_or_left_out(self) -> None:
        assert "bias" not in caller_feeds(feed_of(), PAIR)[0]
        assert "bias" in caller_feeds({**feed_of(), "bias": np.ones(2, np.float32)}, PAIR)[0]

    def test_types_are_converted_where_no_value_changes(self) -> None:
        (feed,) = caller_feeds({"x": np.array([[0.5, np.nan]]), "ids": np.array([1], np.int32)}, PAIR)
        assert (feed["x"].dtype, feed["ids"].dtype) == (np.float32, np.int64)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("x", np.array([[0.1, 0.2]])),
            ("ids", np.array([1.5])),
            ("ids", np.array([2**63], np.uint64)),
            ("ids", np.array([2.0**63])),
            ("ids", np.array([np.inf])),
            ("ids", np.array([np.nan])),
            ("ids", np.array(["7"])),
            ("ids", np.array([1j])),
            ("ids", np.array(["2020-01-01"], "datetime64[D]")),
            ("ids", [[1, 2], [3]]),
            ("ids", [object()]),
            ("ids", None),
            ("ids", np.zeros((1, 1), np.int64)),
            ("x", np.zeros((1, 3), np.float32)),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(InputsError, match=f"'{name}'"):
            caller_feeds({**feed_of(), name: value}, PAIR)

    def test_a_type_that_onnxruntime_cannot_be_fed_with_is_refused_by_name(self) -> None:
        with pytest.raises(InputsError, match="'x' is of type bfloat16"):
            caller_feeds({"x": np.ones(1, np.float32)}, graph_of(TensorSpec("x", "bfloat16", (1,))))

    def test_wrong_names_are_told_with_the_right_ones(self) -> None:
        with pytest.raises(InputsError, match=r"feed 1 .*unknown: y; missing: x.*takes x, ids, bias"):
            caller_feeds([feed_of(), {"y": np.ones(1), "ids": np.ones(1)}], PAIR)

    @pytest.mark.parametrize(
        "inputs", [None, 3, b"bytes", np.ones(3), [1, 2], [], iter([]), lambda: None, "nowhere.npz"]
    )
    def test_what_is_no_input_is_refused(self, inputs: Any) -> None:
        with pytest.raises(InputsError, match="inputs"):
            caller_feeds(inputs, PAIR)

    def test_an_error_of_the_callers_own_function_is_the_callers(self) -> None:
        def broken() -> Any:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            caller_feeds(broken, PAIR)

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00", b"text"])
    def test_a_broken_file_is_refused_by_name(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(InputsError, match=r"bad\.npz"):
            caller_feeds(tmp_path / "bad.npz", PAIR)

    def test_a_file_with_pickles_is_refused_unread(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "bad.npz", x=np.array([Bomb()], object), allow_pickle=True)
        with pytest.raises(InputsError, match=r"bad\.npz.*pickle"):
            caller_feeds(tmp_path / "bad.npz", PAIR)
        assert not Bomb.went_off

    def test_a_single_array_is_no_feed(self, tmp_path: Path) -> None:
        np.save(tmp_path / "one.npy", np.ones(3))
        with pytest.raises(InputsError, match=r"one\.npy"):
            caller_feeds(tmp_path / "one.npy", PAIR)

    def test_without_a_graph_any_names_and_types_pass(self) -> None:
        assert caller_feeds({"anything": np.ones(3, np.int8)}, None)[0]["anything"].dtype == np.int8


class Bomb:
    """Notices when it is unpickled."""

    went_off = False

    def __setstate__(self, state: Any) -> None:
        Bomb.went_off = True

    def __getstate__(self) -> dict[str, int]:
        return {"armed": 1}


class TestFeedFiles:
    def test_names_types_order_and_text_come_back(self, tmp_path: Path) -> None:
        feeds = [
            {
                "input:0": np.ones((2, 3), np.float16),
                "../../up/x": np.array(3, np.int64),
                "__names__": np.zeros((0, 4), bool),
                "a1": np.array([["é", ""], ["longer", "b"]], object),
                "file": np.array([], object),
            },
            {"x": np.float32([1])},
        ]
        save_feeds(feeds, tmp_path / "feeds")
        back = load_feeds(tmp_path / "feeds")
        assert [list(feed) for feed in back] == [list(feed) for feed in feeds]
        for before, after in zip(feeds, back, strict=True):
            for name, array in before.items():
                assert after[name].dtype == array.dtype
                assert after[name].shape == array.shape
                assert np.array_equal(after[name], array)
        assert sorted(path.name for path in (tmp_path / "feeds").iterdir()) == ["0.npz", "1.npz"]

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
    def test_only_the_owner_can_read_them(self, tmp_path: Path) -> None:
        save_feeds([feed_of()], tmp_path)
        assert stat.S_IMODE((tmp_path / "0.npz").stat().st_mode) == 0o600

    def test_saving_again_leaves_nothing_of_before(self, tmp_path: Path) -> None:
        (tmp_path / "kept.txt").write_text("not ours")
        save_feeds([feed_of(size) for size in range(1, 13)], tmp_path)
        assert [len(feed["x"]) for feed in load_feeds(tmp_path)] == list(range(1, 13))
        save_feeds([feed_of(5)], tmp_path)
        assert [len(feed["x"]) for feed in load_feeds(tmp_path)] == [5]
        assert (tmp_path / "kept.txt").exists()

    def test_a_string_that_cannot_be_stored_is_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(InputsError, match="'t'"):
            save_feeds([{"t": np.array(["ends in a NUL\0"], object)}], tmp_path)

    def test_an_empty_folder_and_a_damaged_file_are_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(InputsError, match=tmp_path.name):
            load_feeds(tmp_path)
        np.savez(tmp_path / "0.npz", __names__=np.frombuffer(b'["x", "y"]', np.uint8), a0=np.ones(1))
        with pytest.raises(InputsError, match=r"0\.npz is damaged"):
            load_feeds(tmp_path)

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
    @given(
        arrays=st.dictionaries(
            st.text(max_size=20),
            hnp.arrays(
                st.sampled_from([np.float32, np.int64, np.bool_, np.uint8, np.float16]),
                hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
            ),
            max_size=4,
        )
    )
    def test_whatever_the_names_and_arrays_they_come_back(self, tmp_path: Path, arrays: dict[str, Any]) -> None:
        save_feeds([arrays], tmp_path)
        (back,) = load_feeds(tmp_path)
        assert list(back) == list(arrays)
        for name, array in arrays.items():
            assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
            assert back[name].tobytes() == array.tobytes()

    def test_shapes_are_those_of_the_first_feed(self) -> None:
        assert shapes_of([feed_of(3), feed_of(4)]) == {"x": (3, 2), "ids": (3,)}
        assert shapes_of([]) == {}


ZOO = [
    *("ppocr_v6_det", "ppocr_v6_rec", "ppocr_cls", "doc_orientation", "opennsfw_resnet50", "minilm_l3_fp32"),
    *("t5_encoder_int8", "t5_decoder_int8", "kokoro_int8", "silero_vad", "silero_vad_ifless", "magika_v3"),
    *("spindle_unet1d", "painn_gnn", "sk_mlp_tiny", "sk_tree_tiny"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_a_real_model_runs_on_the_first_guess_with_finite_results(zoo_model: Callable[[str], Path], name: str) -> None:
    path = zoo_model(name)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(None, synthetic(describe(path), {}, seed=0))
    assert all(np.isfinite(output).all() for output in outputs if output.dtype.kind == "f")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "guesses"),
    [
        ("painn_gnn", range(GUESSES)),
        ("minilm_l3_fp32", range(GUESSES)),
        ("silero_vad", [0, 2]),  # its window is 512 samples, with 64 before it in newer versions
        ("silero_vad_ifless", range(GUESSES)),
    ],
)
def test_a_real_model_runs_on_the_guesses_its_design_admits(
    zoo_model: Callable[[str], Path], name: str, guesses: list[int]
) -> None:
    path = zoo_model(name)
    session, graph = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), describe(path)
    for guess in guesses:
        assert session.run(None, synthetic(graph, {}, seed=1, guess=guess))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx.backend")
def test_the_model_of_every_operator_test_of_onnx_is_described_and_fed(tmp_path: Path) -> None:
    """ONNX's own test of each operator: nothing raises but InputsError, its own inputs pass, most made-up ones run."""
    outcomes: Counter[str] = Counter()
    for case in collect_testcases(None):
        content = case.model.SerializeToString()
        graph = describe(content)
        own = dict(zip((spec.name for spec in graph.inputs), case.data_sets[0][0], strict=False))
        are_arrays = all(isinstance(array, np.ndarray) for array in own.values())
        if are_arrays and all(spec.dtype in FEEDABLE for spec in graph.inputs):
            outcomes["own"] += 1
            assert_unchanged(own, caller_feeds(own, graph)[0], tmp_path)
        outcomes[outcome_of(content, graph)] += 1
    assert outcomes["own"] > 1200
    assert outcomes["ran"] > 1200
    assert outcomes["ran"] > 9 * outcomes["refused its values"]


def assert_unchanged(before: dict[str, Any], feed: dict[str, Any], folder: Path) -> None:
    save_feeds([feed], folder)
    (back,) = load_feeds(folder)
    for name, array in before.items():
        assert back[name].dtype == array.dtype
        assert np.array_equal(back[name], array, equal_nan=array.dtype.kind == "f")


def outcome_of(content: bytes, graph: Graph) -> str:
    try:
        feed = synthetic(graph, {}, seed=0)
    except InputsError:
        return "not made"
    try:
        session = onnxruntime.InferenceSession(content, quietly(), ["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 (onnxruntime's errors share no other base class)
        return "no kernel"
    try:
        session.run(None, feed)
    except Exception:  # noqa: BLE001 (as above; an axis or a divisor of zero, say)
        return "refused its values"
    return "ran"


def quietly() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def test_a_declared_scalar_may_be_fed_as_onnxruntime_lets_it() -> None:
    graph = Graph((TensorSpec("sr", "int64", ()),), (), 10, {"ai.onnx": 17}, {}, 0, 0, 0)
    feeds = caller_feeds({"sr": np.array([16000], np.int64)}, graph)
    assert feeds[0]["sr"].shape == (1,)


def test_an_iterator_is_left_when_its_time_is_up_but_for_the_first_item() -> None:
    taken = []

    def endless() -> Iterator[dict[str, Any]]:
        while True:
            taken.append(1)
            yield {"x": np.zeros(1, np.float32)}

    assert len(caller_feeds(endless(), None, until=-1.0)) == 1
    assert len(taken) == 1
    assert len(caller_feeds(endless(), None)) == 8
