"""A model's identity: what it holds counts and nothing else; an unchanged file is not read again, a changed one is."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as some
from onnx import TensorProto, helper, numpy_helper

from ort_metainfer.errors import ModelError
from ort_metainfer.model import fingerprint as module
from ort_metainfer.model.fingerprint import fingerprint, known_graph, remember_graph, signature
from ort_metainfer.model.onnx_file import check_frame, external_locations
from ort_metainfer.problem import Graph, TensorSpec
from ort_metainfer.strategy_cache.store import StrategyCache

LONG_AGO_NS = 1_600_000_000_000_000_000
Tiny = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_memos() -> Iterator[None]:
    module._memos.clear()
    yield
    module._memos.clear()


@pytest.fixture
def cache(tmp_path: Path) -> StrategyCache:
    return StrategyCache(tmp_path / "cache")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the models that were really read."""
    seen: list[str] = []
    real = module._read

    def read(path: str, *rest: Any) -> Any:
        seen.append(path)
        return real(path, *rest)

    monkeypatch.setattr(module, "_read", read)
    return seen


@pytest.fixture
def model(tiny_model: Tiny) -> Path:
    """A model without external data, written long ago."""
    return aged(tiny_model("MatMul"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A model whose two weights lie in two files in a folder of their own, all written long ago."""
    return write_outside(tmp_path / "outside")


def aged(path: Path) -> Path:
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def write_outside(folder: Path, names: tuple[str, str] = ("data/w1.bin", "w2.bin")) -> Path:
    (folder / "data").mkdir(parents=True)
    weights = [np.full((4, 4), n, np.float32) for n in (1, 2)]
    for name, weight in zip(names, weights, strict=True):
        (folder / name).write_bytes(weight.tobytes())
        aged(folder / name)
    tensors = [external_tensor(f"w{n}", name) for n, name in enumerate(names)]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("MatMul", ["h", "w1"], ["y"])],
        "outside",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        tensors,
    )
    path = folder / "model.onnx"
    path.write_bytes(serialised(graph))
    return aged(path)


def serialised(graph: Any) -> bytes:
    made: bytes = helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]
    ).SerializeToString()
    return made


def external_tensor(name: str, location: str, dims: tuple[int, ...] = (4, 4)) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def identity_graph(name: str = "g", **rest: Any) -> Any:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    return helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], name, [x], [y], **rest)


# What the hash is of


def test_a_files_hash_is_sha256_of_its_bytes(model: Path) -> None:
    found = fingerprint(model, None)
    assert found.hash == f"sha256:{hashlib.sha256(model.read_bytes()).hexdigest()}"
    assert found.size_bytes == model.stat().st_size
    assert (found.path, found.content) == (str(model), None)


def test_bytes_and_file_of_one_content_are_one_model(model: Path) -> None:
    content = model.read_bytes()
    found = fingerprint(content, None)
    assert found.hash == fingerprint(model, None).hash
    assert (found.path, found.content, found.size_bytes) == (None, content, len(content))


def test_a_copy_under_another_name_is_the_same_model(model: Path, tmp_path: Path) -> None:
    copy = shutil.copy(model, tmp_path / "copy.onnx")
    assert fingerprint(copy, None).hash == fingerprint(model, None).hash


def test_external_data_counts_wherever_the_folder_lies(outside: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(outside.parent, tmp_path / "moved")
    assert fingerprint(moved / "model.onnx", None).hash == fingerprint(outside, None).hash
    assert fingerprint(outside, None).hash != f"sha256:{hashlib.sha256(outside.read_bytes()).hexdigest()}"
    assert fingerprint(outside, None).size_bytes == outside.stat().st_size + 2 * 64


@pytest.mark.parametrize("name", ["data/w1.bin", "w2.bin"])
def test_one_byte_of_one_external_file_is_another_model(outside: Path, name: str) -> None:
    before = fingerprint(outside, None).hash
    data = outside.parent / name
    data.write_bytes(b"\xff" + data.read_bytes()[1:])
    assert fingerprint(outside, None).hash != before


def test_external_files_that_trade_places_are_another_model(outside: Path) -> None:
    before = fingerprint(outside, None).hash
    one, two = outside.parent / "data/w1.bin", outside.parent / "w2.bin"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert fingerprint(outside, None).hash != before


def test_bytes_with_external_data_take_it_from_the_working_directory(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(outside.parent)
    found = fingerprint(outside.read_bytes(), None)
    assert found.hash == fingerprint(outside, None).hash
    assert found.size_bytes == outside.stat().st_size + 2 * 64
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"w1\.bin"):
        fingerprint(outside.read_bytes(), None)


def test_external_data_is_found_wherever_a_tensor_can_be() -> None:
    inner = identity_graph("inner", initializer=[external_tensor("a", "in a subgraph")])
    sparse = onnx.SparseTensorProto(
        values=external_tensor("v", "sparse values", (2,)), indices=external_tensor("i", "sparse indices", (2,))
    )
    constant = helper.make_node("Constant", [], ["c"], value=external_tensor("t", "an attribute"))
    branch = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=identity_graph())
    lists = helper.make_node("Custom", [], ["z"], domain="mine")
    lists.attribute.append(helper.make_attribute("ts", [external_tensor("l", "a list")]))
    lists.attribute.append(helper.make_attribute("gs", [inner]))
    lists.attribute.append(helper.make_attribute("s", sparse))
    graph = identity_graph(
        initializer=[external_tensor("w", "an initialiser"), numpy_helper.from_array(np.ones(2), "n")]
    )
    graph.node.extend([constant, branch, lists])
    graph.sparse_initializer.append(sparse)
    model = helper.make_model(graph)
    model.functions.add(name="f").node.append(
        helper.make_node("Constant", [], ["c"], value=external_tensor("f", "a function"))
    )
    model.training_info.add().algorithm.initializer.append(external_tensor("s", "a training step"))
    assert external_locations(model.SerializeToString(), "it") == (
        "a function",
        "a list",
        "a training step",
        "an attribute",
        "an initialiser",
        "in a subgraph",
        "sparse indices",
        "sparse values",
    )


def test_the_word_location_alone_makes_no_external_data() -> None:
    graph = identity_graph(
        "location", doc_string="\x08location", initializer=[numpy_helper.from_array(np.ones(2), "location")]
    )
    assert fingerprint(serialised(graph), None).hash == f"sha256:{hashlib.sha256(serialised(graph)).hexdigest()}"


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 8, 9, 10, 11, 64])
def test_external_data_is_noticed_wherever_the_file_is_cut_for_reading(
    outside: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fingerprint(outside, None).hash
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    module._memos.clear()
    assert fingerprint(outside, None).hash == whole


# What is not a model


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"garbage that is no model at all", id="text"),
        pytest.param(bytes(range(256)) * 100, id="bytes"),
        pytest.param(b"\x08\x0a", id="no graph"),
        pytest.param(b"\x18\x00\x00\x00ORTM" + b"\0" * 500, id="ORT format"),
        pytest.param(b"\0" * 5000, id="zeros"),
        pytest.param(b"\x08\x01" * 200_000, id="fields without end"),
    ],
)
def test_what_is_no_model_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"bad\.onnx is no complete ONNX model"):
        fingerprint(path, None)
    with pytest.raises(ModelError, match=f"{len(content)} bytes is no complete ONNX model"):
        fingerprint(content, None)


def test_framed_bytes_that_say_external_but_do_not_parse_are_refused() -> None:
    content = b"\x3a\x0b\xff\xff\x08location"
    with pytest.raises(ModelError, match="is no ONNX model"):
        fingerprint(content, None)


def test_a_model_cut_short_is_refused(model: Path) -> None:
    whole = model.read_bytes()
    proto = onnx.load(model)
    graph_end = whole.index(proto.graph.SerializeToString()) + proto.graph.ByteSize()
    for size in range(graph_end):
        with pytest.raises(ModelError):
            check_frame(io.BytesIO(whole[:size]), size, "it")
    check_frame(io.BytesIO(whole), len(whole), "it")


@given(some.binary(max_size=300))
def test_any_bytes_are_a_model_or_a_model_error(content: bytes) -> None:
    try:
        assert fingerprint(content, None).content == content
    except ModelError as error:
        assert str(len(content)) in str(error)


@pytest.mark.parametrize("path", ["missing.onnx", "missing/model.onnx", "", ".", "a\0b.onnx", "x" * 5000])
def test_a_path_without_a_model_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError):
        fingerprint(path, None)


@pytest.mark.parametrize("source", [None, 3, bytearray(b"x"), memoryview(b"x"), 1.5, ["model.onnx"]])
def test_what_is_neither_path_nor_bytes_is_refused(source: Any) -> None:
    with pytest.raises(ModelError, match="neither a path nor bytes"):
        fingerprint(source, None)


def test_a_fifo_and_a_device_are_refused_without_reading(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.onnx")
    for path in (tmp_path / "fifo.onnx", "/dev/zero"):
        with pytest.raises(ModelError, match="no regular file"):
            fingerprint(path, None)


def test_a_fifo_as_external_data_is_refused_without_reading(outside: Path) -> None:
    (outside.parent / "w2.bin").unlink()
    os.mkfifo(outside.parent / "w2.bin")
    with pytest.raises(ModelError, match=r"w2\.bin is no regular file"):
        fingerprint(outside, None)


def test_a_missing_external_file_is_named(outside: Path) -> None:
    (outside.parent / "w2.bin").unlink()
    with pytest.raises(ModelError, match=r"w2\.bin: No such file"):
        fingerprint(outside, None)


def test_a_removed_working_directory_is_a_model_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ModelError):
        fingerprint("model.onnx", None)


def test_a_model_that_changes_while_it_is_read_is_refused(
    model: Path, cache: StrategyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._hash_model

    def meddle(*arguments: Any) -> Any:
        done = real(*arguments)
        os.utime(model, ns=(LONG_AGO_NS, LONG_AGO_NS + 1))
        return done

    monkeypatch.setattr(module, "_hash_model", meddle)
    with pytest.raises(ModelError, match="changed while it was read"):
        fingerprint(model, cache)
    assert cache.keys("files") == []


def test_external_data_that_changes_while_it_is_read_is_refused(
    outside: Path, cache: StrategyCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module._opened

    def meddle(path: str) -> Any:
        if path.endswith("w2.bin"):
            os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS + 1))
        return real(path)

    monkeypatch.setattr(module, "_opened", meddle)
    with pytest.raises(ModelError, match=r"w2\.bin of .* changed while it was read"):
        fingerprint(outside, cache)
    assert cache.keys("files") == []


# Names


@pytest.mark.parametrize("name", ["модель 模型 é.onnx", "spaces and 'quotes\".onnx", "new\nline.onnx", "#?%20.onnx"])
def test_any_name_works(tiny_model: Tiny, cache: StrategyCache, name: str, reads: list[str]) -> None:
    path = aged(tiny_model("Identity", name=name))
    first = fingerprint(path, cache)
    module._memos.clear()
    assert fingerprint(str(path), cache) == first
    assert (first.path, len(reads)) == (str(path), 1)
    assert cache.last_failure is None


def test_a_name_that_is_no_unicode_works_as_text_and_as_a_path_of_bytes(
    model: Path, cache: StrategyCache, reads: list[str]
) -> None:
    raw = os.fsencode(model.parent) + b"/\xff\xfe.onnx"
    os.rename(model, raw)

    class BytesPath:
        def __fspath__(self) -> bytes:
            return raw

    first = fingerprint(os.fsdecode(raw), cache)
    module._memos.clear()
    assert fingerprint(BytesPath(), cache) == first
    assert (first.path, len(reads)) == (os.fsdecode(raw), 1)
    assert cache.last_failure is None


def test_a_relative_path_is_made_absolute_and_outlives_a_change_of_directory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    assert fingerprint(model.name, None).path == str(model)
    assert fingerprint(f"./{model.name}", None).path == str(model)


def test_a_symlink_is_followed(model: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.onnx"
    link.symlink_to(model)
    assert fingerprint(link, None) == replace(fingerprint(model, None), path=str(link))


def test_a_symlink_that_points_elsewhere_now_is_read_again(
    tiny_model: Tiny, tmp_path: Path, cache: StrategyCache
) -> None:
    link = tmp_path / "link.onnx"
    link.symlink_to(aged(tiny_model("MatMul")))
    before = fingerprint(link, cache).hash
    link.unlink()
    link.symlink_to(aged(tiny_model("Conv")))
    assert fingerprint(link, cache).hash != before


def test_the_folder_above_a_symlink_is_that_of_its_target(tiny_model: Tiny, tmp_path: Path) -> None:
    (tmp_path / "far" / "below").mkdir(parents=True)
    shutil.copy(tiny_model("Conv"), tmp_path / "far" / "model.onnx")
    shutil.copy(tiny_model("MatMul"), tmp_path / "model.onnx")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "below")
    found = fingerprint(os.path.join(str(tmp_path), "link", "..", "model.onnx"), None)
    assert found.hash == fingerprint(tmp_path / "far" / "model.onnx", None).hash
    assert found.path is not None and Path(found.path).samefile(tmp_path / "far" / "model.onnx")


# The memo


def test_an_unchanged_file_is_read_once_by_this_process(model: Path, reads: list[str]) -> None:
    assert fingerprint(model, None) == fingerprint(model, None)
    assert len(reads) == 1


def test_an_unchanged_file_is_not_read_by_another_process(model: Path, cache: StrategyCache, reads: list[str]) -> None:
    first = fingerprint(model, cache)
    module._memos.clear()
    assert fingerprint(model, StrategyCache(cache.directory)) == first
    assert len(reads) == 1
    row, stat = cache.get("files", str(model)), model.stat()
    expected = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino, "hash": first.hash}
    assert row == {**expected, "external": []}


def test_unchanged_external_data_costs_no_look_into_the_model(
    outside: Path, cache: StrategyCache, reads: list[str]
) -> None:
    first = fingerprint(outside, cache)
    module._memos.clear()
    assert fingerprint(outside, cache) == first
    assert len(reads) == 1
    row = cache.get("files", str(outside))
    assert row is not None and [entry[0] for entry in row["external"]] == ["data/w1.bin", "w2.bin"]


def change_size(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content + b"\x12\x00" if path.suffix == ".onnx" else content + b"\0")
    aged(path)


def change_mtime(path: Path) -> None:
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS + 1))


def change_inode(path: Path) -> None:
    twin = path.with_suffix(".twin")
    twin.write_bytes(path.read_bytes())
    os.replace(aged(twin), path)


@pytest.mark.parametrize("change", [change_size, change_mtime, change_inode])
@pytest.mark.parametrize("name", ["model.onnx", "data/w1.bin", "w2.bin"])
@pytest.mark.parametrize("is_same_process", [True, False])
def test_a_change_of_any_stamp_of_any_file_is_noticed(
    outside: Path,
    cache: StrategyCache,
    reads: list[str],
    change: Callable[[Path], None],
    name: str,
    is_same_process: bool,
) -> None:
    before = fingerprint(outside, cache)
    path = outside.parent / name
    old = path.stat()
    change(path)
    new = path.stat()
    differs = [getattr(old, field) != getattr(new, field) for field in ("st_size", "st_mtime_ns", "st_ino")]
    assert differs.count(True) == 1
    if not is_same_process:
        module._memos.clear()
    after = fingerprint(outside, cache)
    assert len(reads) == 2
    assert (after.hash != before.hash) == (change is change_size)
    assert fingerprint(outside, cache) == after
    assert len(reads) == 2


def test_an_external_file_that_is_gone_is_noticed(outside: Path, cache: StrategyCache) -> None:
    fingerprint(outside, cache)
    (outside.parent / "w2.bin").unlink()
    with pytest.raises(ModelError, match=r"w2\.bin"):
        fingerprint(outside, cache)


def test_a_file_written_just_now_is_not_remembered(tiny_model: Tiny, cache: StrategyCache, reads: list[str]) -> None:
    """A second write within one tick of the file system's clock would leave no trace."""
    path = tiny_model("MatMul")
    assert fingerprint(path, cache) == fingerprint(path, cache)
    assert len(reads) == 2
    assert cache.keys("files") == []
    aged(path)
    assert fingerprint(path, cache) == fingerprint(path, cache)
    assert len(reads) == 3


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"size": 1},
        {"size": "x", "mtime_ns": 1, "inode": 1, "hash": "sha256:0", "external": []},
        {"hash": None},
        {"external": 3},
        {"external": [["w", 1]]},
        {"external": [[]]},
        {"hash": "md5:0"},
    ],
)
def test_a_memo_of_another_make_is_read_over(
    model: Path, cache: StrategyCache, reads: list[str], row: dict[str, Any]
) -> None:
    right = fingerprint(model, cache)
    module._memos.clear()
    stored = cache.get("files", str(model)) or {}
    assert cache.put("files", str(model), {**stored, **row} if len(row) == 1 and "size" not in row else row)
    assert fingerprint(model, cache) == right
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_costs_the_memo_only(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = StrategyCache(tmp_path / "file")
    assert fingerprint(model, cache).hash == fingerprint(model, None).hash
    assert cache.last_failure is not None


@pytest.mark.slow
def test_an_unchanged_model_with_external_data_is_known_without_importing_onnx(
    outside: Path, cache: StrategyCache
) -> None:
    expected = fingerprint(outside, cache)
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ort_metainfer.model.fingerprint import fingerprint\n"
        "from ort_metainfer.strategy_cache.store import open_cache\n"
        "found = fingerprint(sys.argv[1], open_cache(Path(sys.argv[2])))\n"
        "print(found.hash, 'onnx' in sys.modules, 'sqlitedict' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(outside), str(cache.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{expected.hash} False False\n"


@pytest.mark.slow
def test_a_self_contained_model_is_read_without_importing_onnx(zoo_model: Callable[[str], Path]) -> None:
    script = (
        "import sys\n"
        "from ort_metainfer.model.fingerprint import fingerprint\n"
        "print(fingerprint(sys.argv[1], None).hash, 'onnx' in sys.modules)\n"
    )
    path = zoo_model("silero_vad")
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()} False\n"


# Signature and graphs


def test_a_signature_names_inputs_types_and_declared_dims() -> None:
    inputs = [
        TensorSpec("x", "float32", (1, 3, 224, 224)),
        TensorSpec("mask", "int64", ("batch", "seq")),
        TensorSpec("any", "string", None),
        TensorSpec("odd", "float16", (None, 2)),
        TensorSpec("scalar", "bool", ()),
    ]
    assert signature(inputs, {}) == (
        "x:float32[1,3,224,224] mask:int64[batch,seq] any:string[*] odd:float16[?,2] scalar:bool[]"
    )


def test_given_shapes_replace_declared_ones() -> None:
    inputs = [TensorSpec("x", "float32", ("n", 4)), TensorSpec("mask", "int64", None), TensorSpec("s", "bool", ("n",))]
    assert signature(inputs, {"x": (8, 4), "mask": (8, 128), "s": ()}) == "x:float32[8,4] mask:int64[8,128] s:bool[]"
    assert signature([], {"x": (1,)}) == ""


GRAPH = Graph(
    inputs=(TensorSpec("x", "float32", ("n", None, 4)), TensorSpec("z", "int64", None)),
    outputs=(TensorSpec("y", "float32", (1,)),),
    ir_version=10,
    opsets={"ai.onnx": 17},
    operators={"MatMul": 2, "com.microsoft.Gelu": 1},
    node_count=3,
    parameter_count=32,
    weight_bytes=128,
    macs=None,
    random_operators=("Dropout",),
    blockers=("training",),
    index_bounds={"z": 100},
    external_files=("w.bin",),
)


def test_a_graph_is_remembered_under_the_models_hash(cache: StrategyCache) -> None:
    assert known_graph(cache, "sha256:a") is None
    assert remember_graph(cache, "sha256:a", GRAPH)
    assert known_graph(cache, "sha256:a") == GRAPH
    assert known_graph(cache, "sha256:b") is None


@pytest.mark.parametrize("change", ["missing", "unknown", "wrong"])
def test_a_graph_of_another_release_is_not_known(cache: StrategyCache, change: str) -> None:
    plain = GRAPH.as_dict()
    if change == "missing":
        del plain["operators"]
    elif change == "unknown":
        plain["depth"] = 3
    else:
        plain["inputs"] = 3
    assert cache.put("models", "sha256:a", plain)
    assert known_graph(cache, "sha256:a") is None
