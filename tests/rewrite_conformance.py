"""What every graph rewrite must keep to, ours and third parties': ``check_rewrite(MyRewrite())``.

It covers what a rewrite states, its parameters, models of unusual make, and equal bytes for equal questions. Whether
the results stay is also tried on random graphs (:mod:`tests.rewrite_trials`).
"""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import onnx

from ort_metainfer.errors import StrategyError
from ort_metainfer.model.graph import describe
from ort_metainfer.problem import Graph
from ort_metainfer.rewrites.base import Context, Dimension, Outcome, Parameter, Promise, Rewrite
from ort_metainfer.rewrites.draft import Draft
from ort_metainfer.rewrites.rewriting import blocker
from ort_metainfer.strategy import Transform
from tests.odd_models import OddModel, odd_models
from tests.random_graphs import build, random_plan
from tests.rewrite_run import apply, apply_to_bytes, broken_surface, difference, fitting_feeds, outputs

__all__ = ["check_rewrite", "faults_of"]

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
KINDS = (str, int, float, bool, list, dict)
NEEDS = ("feeds", "shapes")
NEVER = "never measured to pay"

LOSSY_ODD_BOUND = 0.5
"""Relative L2 error that a lossy rewrite may have on a model of unusual make."""

SEARCHED, WANTED = 300, 3
"""Random graphs looked through for this many that the rewrite changes, to compare bytes of."""


def check_rewrite(rewrite: Rewrite) -> None:
    """Assert that ``rewrite`` keeps to the contract; the message lists everything that it does not."""
    faults = faults_of(rewrite)
    assert not faults, f"{rewrite.name}:\n" + "\n".join(faults)


def faults_of(rewrite: Rewrite) -> list[str]:
    """Everything it does not keep to, a sentence each."""
    return [
        *statement_faults(rewrite),
        *parameter_faults(rewrite),
        *odd_model_faults(rewrite),
        *determinism_faults(rewrite),
    ]


# what it states


def statement_faults(rewrite: Rewrite) -> Iterator[str]:
    """Name, version, promise, dimension, needs, providers, evidence, sources, documentation."""
    kind = type(rewrite)
    if not isinstance(rewrite.name, str) or not NAME.fullmatch(rewrite.name):
        yield f"name must be words with hyphens, got {rewrite.name!r}"
    if type(rewrite.version) is not int or rewrite.version < 1:
        yield f"version must be a positive int, got {rewrite.version!r}"
    if rewrite.promise not in get_args(Promise):
        yield f"promise must be one of {get_args(Promise)}, got {rewrite.promise!r}"
    if rewrite.dimension not in get_args(Dimension):
        yield f"dimension must be one of {get_args(Dimension)}, got {rewrite.dimension!r}"
    if not (kind.__doc__ or "").strip() or kind.__doc__ == Rewrite.__doc__:
        yield "its class has no docstring of its own"
    for name in ("providers", "needs", "sources"):
        value = getattr(rewrite, name)
        if not isinstance(value, tuple) or not all(isinstance(item, str) and item.strip() for item in value):
            yield f"{name} must be a tuple of text, got {value!r}"
    if set(rewrite.needs) - set(NEEDS):
        yield f"needs may hold {NEEDS}, got {rewrite.needs!r}"
    if any(not name.endswith("ExecutionProvider") for name in rewrite.providers):
        yield f"providers must be names of execution providers, got {rewrite.providers!r}"
    yield from _evidence_faults(rewrite)


def _evidence_faults(rewrite: Rewrite) -> Iterator[str]:
    if not isinstance(rewrite.evidence, str) or not rewrite.evidence.strip():
        yield "evidence must say where it paid and where not"
    elif rewrite.on_by_default and (rewrite.evidence.startswith(NEVER) or not re.search(r"\d", rewrite.evidence)):
        yield f"it is on by default without a measured figure in evidence: {rewrite.evidence!r}"


# its parameters


def parameter_faults(rewrite: Rewrite) -> Iterator[str]:
    """Complete, in their domain by default, taken at the edges and refused beyond."""
    for name, parameter in rewrite.parameters.items():
        if not isinstance(parameter, Parameter) or parameter.kind not in KINDS:
            yield f"parameter {name} must be a Parameter of one of {KINDS}"
            continue
        if not parameter.meaning.strip():
            yield f"parameter {name} does not say what it means"
        if parameter.objection(parameter.default) is not None:
            yield f"parameter {name}: default {parameter.objection(parameter.default)}"
        for value in edges(parameter):
            if refused(rewrite, {name: value}):
                yield f"parameter {name}: {value!r} lies in its domain and is refused"
        for value in beyond(parameter):
            if not refused(rewrite, {name: value}):
                yield f"parameter {name}: {value!r} lies outside its domain and is taken"
    if not refused(rewrite, {"no such parameter": 1}):
        yield "an unknown parameter is taken"
    if not refused(rewrite, {}, version=rewrite.version + 1):
        yield "another version is taken"
    if rewrite.complete(Transform(rewrite.name, rewrite.version)).keys() != rewrite.parameters.keys():
        yield "complete() does not fill in every parameter"


def edges(parameter: Parameter) -> list[Any]:
    """The values at the edge of its domain."""
    ends = [parameter.kind(end) for end in parameter.numbers or () if math.isfinite(end)]
    return [parameter.default, *parameter.values, *ends, *((True, False) if parameter.kind is bool else ())]


def beyond(parameter: Parameter) -> Iterator[Any]:
    """Values that are not in its domain."""
    yield None
    yield [] if parameter.kind is not list else "text"
    if parameter.kind is int:
        yield True
    if parameter.values and parameter.kind is str:
        yield "no such value"
    if parameter.numbers:
        low, high = parameter.numbers
        step = (lambda end, to: end + to) if parameter.kind is int else (lambda end, to: math.nextafter(end, to * 1e30))
        yield from (parameter.kind(step(end, to)) for end, to in ((low, -1), (high, 1)) if math.isfinite(end))


def refused(rewrite: Rewrite, parameters: Mapping[str, Any], version: int | None = None) -> bool:
    """Whether ``complete`` refuses them."""
    try:
        rewrite.complete(Transform(rewrite.name, version or rewrite.version, parameters))
    except StrategyError:
        return True
    return False


# models of unusual make


def odd_model_faults(rewrite: Rewrite) -> Iterator[str]:
    """On every one: nothing raised, the surface and the results stay, and a "no" has its reason."""
    for odd in odd_models():
        with tempfile.TemporaryDirectory() as folder:
            for fault in _faults_on(rewrite, odd, Path(folder)):
                yield f"model with {odd.name}: {fault}"


def _faults_on(rewrite: Rewrite, odd: OddModel, folder: Path) -> list[str]:
    file = odd.save(folder)
    untouched = _bytes_beside(file)
    graph = describe(file)
    if blocker(graph) is not None:
        return []
    objection = rewrite.objection(graph, Context(folder, graph, odd.feeds))
    if objection is not None and not (isinstance(objection, str) and objection.strip()):
        return [f"the objection is no reason: {objection!r}"]
    try:
        applied = apply(rewrite, file, folder / "out", graph, odd.feeds)
    except Exception as error:  # noqa: BLE001 (whatever it raises is the fault)
        return [f"raised {type(error).__name__}: {error}"]
    faults = outcome_faults(applied.outcome)
    if _bytes_beside(file) != untouched:
        faults.append("the original was written to")
    faults += broken_surface(onnx.load(str(file), load_external_data=False), applied.model, rewrite)
    if not applied.outcome.changed:
        faults += _changes(file, applied.file, folder)
    elif objection is not None:
        faults.append(f"it changes what it objects to ({objection})")
    return faults + _result_faults(rewrite, odd, applied.file)


def outcome_faults(outcome: Any) -> list[str]:
    """An Outcome that says nothing, or what no Outcome says."""
    if not isinstance(outcome, Outcome) or type(outcome.changed) is not int or outcome.changed < 0:
        return [f"rewrite() must give an Outcome with a count, got {outcome!r}"]
    faults = []
    if not outcome.changed and not (outcome.notes or any(site.reason for site in outcome.sites)):
        faults.append("nothing changed, and no reason given")
    if len(outcome.sites) > 100:
        faults.append(f"{len(outcome.sites)} sites; at most a hundred")
    if not all(isinstance(note, str) and note.strip() and "\n" not in note for note in outcome.notes):
        faults.append(f"notes must be one sentence each, got {outcome.notes!r}")
    return faults


def _result_faults(rewrite: Rewrite, odd: OddModel, after: Path) -> list[str]:
    places = fitting_feeds(rewrite, odd.feeds)
    expected = [odd_outputs(odd)[place] for place in places]
    try:
        got = outputs(after, [odd.feeds[place] for place in places])
    except Exception as error:  # noqa: BLE001 (onnxruntime's many classes)
        return [f"the result does not run: {error}"]
    promise = rewrite.promise
    off = difference(got, expected, promise, LOSSY_ODD_BOUND if promise == "lossy" else None)
    return [off] if off else []


@cache
def odd_outputs(odd: OddModel) -> list[list[Any]]:
    """What the model gives."""
    return outputs(odd.model.SerializeToString(), odd.feeds)


def _bytes_beside(file: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(file.parent.iterdir()) if path.is_file()}


def _changes(before: Path, after: Path, folder: Path) -> list[str]:
    """What differs in meaning from the original written by the same library without a rewrite."""
    draft = Draft(before, folder)
    draft.ir  # noqa: B018 (what is asked for is what the library makes of it)
    plain = draft.save(folder / "plain" / "plain.onnx")[0]
    old, new = (meaning(onnx.load(str(path)).graph) for path in (plain, after))
    return [f"it says it changed nothing, but changed {part}" for part in old if old[part] != new[part]]


def meaning(graph: Any) -> dict[str, Any]:
    """What a graph computes with: without node names, documentation and worked-out shapes."""
    return {
        "nodes": [_node_meaning(node) for node in graph.node],
        "weights": sorted((t.name, t.data_type, tuple(t.dims), _content(t)) for t in graph.initializer),
        "inputs": [value.name for value in graph.input],
        "outputs": [value.name for value in graph.output],
    }


def _content(tensor: Any) -> bytes:
    if tensor.data_type == onnx.TensorProto.STRING:
        return b"\0".join(tensor.string_data)
    return bytes(onnx.numpy_helper.to_array(tensor).tobytes())


def _node_meaning(node: Any) -> tuple[Any, ...]:
    def part(attribute: Any) -> Any:
        if attribute.HasField("g"):
            return attribute.name, meaning(attribute.g)
        if attribute.HasField("t"):
            return attribute.name, attribute.t.data_type, tuple(attribute.t.dims), _content(attribute.t)
        return attribute.name, str(onnx.helper.get_attribute_value(attribute))

    domain = "" if node.domain == "ai.onnx" else node.domain
    attributes = sorted((part(attribute) for attribute in node.attribute), key=lambda found: found[0])
    return domain, node.op_type, tuple(node.input), tuple(node.output), attributes


# equal bytes for equal questions


def determinism_faults(rewrite: Rewrite) -> Iterator[str]:
    """The same model twice, in other folders, gives the same bytes."""
    for seed, model, feeds in changed_graphs(rewrite):
        first, second = (_digest(rewrite, model, feeds) for _ in range(2))
        if first != second:
            yield f"the same model (random graph {seed}) gave other bytes the second time"


def digests(rewrite: Rewrite) -> list[str]:
    """What it makes of some random graphs, as SHA-256."""
    return [_digest(rewrite, model, feeds) for _, model, feeds in changed_graphs(rewrite)]


def _digest(rewrite: Rewrite, model: bytes, feeds: Any) -> str:
    return hashlib.sha256(apply_to_bytes(rewrite, model, feeds)[0]).hexdigest()


@cache
def sample(seed: int) -> tuple[bytes, Any, Graph]:
    """A random graph, its feeds and its features."""
    graph = build(random_plan(seed))
    return graph.bytes, graph.feeds, describe(graph.bytes)


def changed_graphs(rewrite: Rewrite) -> Iterator[tuple[int, bytes, Any]]:
    """Some random graphs that it changes."""
    found = 0
    for seed in range(SEARCHED):
        model, feeds, features = sample(seed)
        if rewrite.objection(features) is not None:
            continue
        try:
            changed = apply_to_bytes(rewrite, model, feeds, graph=features)[1].changed
        except Exception:  # noqa: BLE001 (the trials on random graphs report it)
            continue
        if changed:
            found += 1
            yield seed, model, feeds
        if found == WANTED:
            return
