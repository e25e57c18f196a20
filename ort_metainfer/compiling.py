"""The errand ``compile``: compile a model in this child, load what came out, and hold it against the original.

Also its preparation: fixed shapes and a quantised form, gated against the float model. See
:mod:`ort_metainfer.compiled` for where the results go.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ort_metainfer.compiled import MODEL_FILE, digest_folder
from ort_metainfer.compiled_key import EP_CONTEXT, OPTIMISED, loading_strategy
from ort_metainfer.decision import Gate
from ort_metainfer.errors import MetainferError
from ort_metainfer.problem import SessionSpec
from ort_metainfer.strategy import Strategy
from ort_metainfer.trials.bench import Bench, Opened, Refused, Speaker, complaint, judge, judge_outputs
from ort_metainfer.trials.channel import setup_from, thresholds_from
from ort_metainfer.trials.task import Setup, Thresholds

__all__ = ["compile_into", "serve"]

ROUNDS = 3
"""Creations of each kind that are timed, in turn, after each was created once."""

NODES_S = 10.0
"""Seconds that looking at the nodes of a quantised model may take. A choice."""

WEIGHTS_FILE = "model.weights"
"""Weights of nodes that the provider left to the CPU; relative to the compiled model, as onnxruntime demands."""

METADATA = (
    "custom_metadata_map",
    "description",
    "domain",
    "graph_description",
    "graph_name",
    "producer_name",
    "version",
)
"""Attributes of onnxruntime.ModelMetadata."""

COMPATIBILITY = "ep_compatibility_info."
"""Prefix of the metadata entry in which a provider says what a compiled model needs."""


def serve(request: dict[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """Carry out the step that ``request["task"]`` names: ``rewrite``, ``transform`` or ``compile``.

    Raises:
        Refused: onnxruntime, or the check afterwards, says no.
        MetainferError: the model or the inputs do not do.
    """
    task = {"rewrite": _rewrite, "transform": _transform, "compile": _compile}[request["task"]]
    return task(request, channel, until)


# ---- a strategy's transforms ----------------------------------------------------------------------------------------


def _transform(request: dict[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """Rewrite the model as the strategy says; answers with the folder that holds it."""
    from ort_metainfer.model.inputs import load_feeds
    from ort_metainfer.trials.rehearsal import read_graph
    from ort_metainfer.trials.rewritten import rewritten_model

    setup, strategy = setup_from(request["setup"]), Strategy.from_dict(request["strategy"])
    channel.say("rewriting", session="model")
    if setup.graph is None:
        setup = replace(setup, graph=read_graph(setup))
    has_feeds = any(setup.feeds.glob("*.npz"))
    feeds = load_feeds(setup.feeds) if has_feeds else []
    return {"folder": str(rewritten_model(setup, strategy.transforms, feeds, until).parent)}


# ---- rewriting -------------------------------------------------------------------------------------------------------


def _rewrite(request: dict[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """Rewrite the model as the strategy says, and judge it where that loses something; answers with the new model's
    file, the gate and notes."""
    from ort_metainfer.model.inputs import load_feeds
    from ort_metainfer.rewrites.rewriting import promise_of
    from ort_metainfer.rewrites.sampling import held_back
    from ort_metainfer.trials.rewritten import notes_in, rewritten_model

    setup, strategy = setup_from(request["setup"]), Strategy.from_dict(request["strategy"])
    channel.say("rewriting", session="model")
    feeds = load_feeds(setup.feeds)
    made = rewritten_model(setup, strategy.transforms, feeds, until, is_whole=True)
    notes = list(notes_in(made.parent))
    if promise_of(strategy.transforms) != "lossy":
        return {"model": str(made), "gate": None, "notes": notes}
    calibrated, judged = held_back(feeds)
    apart = "held back from calibration" if len(judged) < len(feeds) else "the ones calibrated on, too few to spare"
    notes.append(f"calibrated on {len(calibrated)} inputs, judged on {len(judged)}, {apart}")
    gate = _judge_rewrite(setup, made, judged, thresholds_from(request["thresholds"]), channel, until)
    notes.append(_worst_nodes(setup, strategy, channel, until))
    return {"model": str(made), "gate": asdict(gate), "notes": notes}


def _worst_nodes(setup: Setup, strategy: Strategy, channel: Speaker, until: float) -> str:
    """The nodes that cost a quantised model most, on the CPU provider; or why they were not looked at."""
    from ort_metainfer.rewrites.precision_report import report_on

    channel.say("checking", session="nodes")
    soon = min(until, time.monotonic() + NODES_S)
    try:
        nodes, note = report_on(setup, Strategy(transforms=strategy.transforms), soon)
    except MetainferError as error:
        return f"its nodes were not looked at: {error}"
    return f"worst nodes: {'; '.join(part for part in (', '.join(node.describe() for node in nodes), note) if part)}"


def _judge_rewrite(
    setup: Setup, rewritten: Path, feeds: Sequence[Any], thresholds: Thresholds, channel: Speaker, until: float
) -> Gate:
    """The rewritten model against the original, both on the CPU provider."""
    reference = _reference(setup, feeds, channel, until)
    bench = Bench(_on(setup, rewritten), feeds, channel, until)
    opened = bench.open("rewritten", Strategy(), keep=False, cpu_only=True)
    names = [output.name for output in opened.session.get_outputs()]
    return judge(names, reference, bench.outputs(opened), thresholds, graph=setup.graph)[0]


def _reference(setup: Setup, feeds: Sequence[Any], channel: Speaker, until: float) -> list[Sequence[Any]]:
    """Outputs of the caller's model on the CPU provider."""
    bench = Bench(setup, feeds, channel, until)
    return bench.outputs(bench.open("baseline", Strategy(), keep=False, cpu_only=True))


def _on(setup: Setup, model: Path) -> Setup:
    return replace(setup, model_file=model, as_bytes=False)


# ---- compiling -------------------------------------------------------------------------------------------------------


def _compile(request: dict[str, Any], channel: Speaker, until: float) -> dict[str, Any]:
    """Compile into ``folder``, load, compare, time; answers with what the record of a compiled model holds."""
    from ort_metainfer.model.inputs import load_feeds

    setup, folder, form = setup_from(request["setup"]), Path(request["folder"]), request["form"]
    strategy, thresholds = Strategy.from_dict(request["strategy"]), thresholds_from(request["thresholds"])
    bench = Bench(setup, load_feeds(setup.feeds), channel, until)
    plain = bench.open("plain", strategy, keep=False)
    bench.announce("checking", "plain")
    reference = bench.outputs(plain)
    bench.announce("compiling", "compiled")
    started = time.perf_counter()
    compatibility = compile_into(folder, bench.model, setup.baseline, strategy, form)
    compile_ms = (time.perf_counter() - started) * 1000
    kept = Bench(_on(setup, folder / MODEL_FILE), bench.feeds, channel, until)
    loading = loading_strategy(strategy, form)
    opened = kept.open("compiled", loading, keep=False)
    _check_declared(plain.session, opened.session)
    kept.announce("checking", "compiled")
    found, comparison = judge_outputs(kept, opened, reference, thresholds, None)
    failed = next((gate for gate in found if not gate.passed), None)
    if failed is not None:
        raise Refused(f"the compiled model is not the original: {failed.detail}")
    figures = {"compile_ms": compile_ms, "error": comparison.error if comparison else 0.0}
    if request.get("original") is not None:
        original = _on(setup, Path(request["original"]))
        figures |= _judge_whole(original, kept, opened, thresholds, channel, until)
    answer = {
        "metadata": _metadata(plain.session),
        "compatibility": compatibility,
        "placement": None if plain.placement is None else asdict(plain.placement),
    }
    first = {"first_creation_ms": plain.creation_ms, "first_load_ms": opened.creation_ms}
    del plain, opened
    return {**answer, "figures": figures | first | _time_creation(bench, kept, strategy, loading, folder)}


def _judge_whole(
    original: Setup, kept: Bench, opened: Opened, thresholds: Thresholds, channel: Speaker, until: float
) -> dict[str, float]:
    """What the device answers against the caller's own model on the CPU provider: rewriting and provider together.

    Raises:
        Refused: they are too far apart.
    """
    reference = _reference(original, kept.feeds, channel, until)
    names = [output.name for output in opened.session.get_outputs()]
    gate, _ = judge(names, reference, kept.outputs(opened), thresholds)
    if not gate.passed:
        raise Refused(f"what the device computes is not the original model: {gate.detail}")
    return {f"whole_{name}": value for name, value in gate.figures.items()}


def compile_into(folder: Path, model: str | bytes, spec: SessionSpec, strategy: Strategy, form: str) -> dict[str, str]:
    """Write the compiled model and its blobs to ``folder``.

    Returns:
        Provider -> what it says the compiled model needs.

    Raises:
        Refused: onnxruntime refuses, or the provider compiled nothing.
        MetainferError: the strategy's provider cannot be used here.
    """
    target, save = folder / MODEL_FILE, _save_optimised if form == OPTIMISED else _save_contexts
    try:
        save(target, model, spec, strategy)
    except MetainferError:
        raise
    except Exception as error:
        raise Refused(f"it does not compile: {_gist(error)}") from error
    return _told_by(target, form)


def _gist(error: Exception) -> str:
    """onnxruntime's words without the place in its sources, which would fill the line."""
    text = " ".join(str(error).split())
    return complaint(RuntimeError(text[text.rfind("[ONNXRuntimeError]") :] if "[ONNXRuntimeError]" in text else text))


def _save_optimised(target: Path, model: str | bytes, spec: SessionSpec, strategy: Strategy) -> None:
    """The graph as onnxruntime's optimiser leaves it; weights beside it, since protobuf refuses 2 GB."""
    from ort_metainfer.options import open_session

    properties = {**spec.properties, "optimized_model_filepath": str(target), "log_severity_level": 3}
    extra = {
        "session.optimized_model_external_initializers_file_name": WEIGHTS_FILE,
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    }
    open_session(model, spec._replace(properties=properties), strategy, extra)


def _save_contexts(target: Path, model: str | bytes, spec: SessionSpec, strategy: Strategy) -> None:
    """Through onnxruntime's compiler; before 1.22 by the session configuration that it replaced."""
    import onnxruntime

    from ort_metainfer import options as _options

    options = _options.options_of(spec)
    providers = _options.apply(options, strategy)
    if hasattr(onnxruntime, "ModelCompiler"):
        for name, given in providers or ():
            options.add_provider(name, given)
        compiler = onnxruntime.ModelCompiler(
            options,
            model,
            embed_compiled_data_into_model=False,
            external_initializers_file_path=WEIGHTS_FILE,
            graph_optimization_level=options.graph_optimization_level,
        )
        compiler.compile_to_file(str(target))
        return
    extra = {
        "ep.context_enable": "1",
        "ep.context_file_path": str(target),
        "ep.context_embed_mode": "0",
        "ep.context_model_external_initializers_file_name": WEIGHTS_FILE,
    }
    _options.open_session(model, spec, strategy, extra)


def _told_by(target: Path, form: str) -> dict[str, str]:
    """What a compiled model says of itself.

    Raises:
        Refused: it is not there, or holds nothing compiled.
    """
    import onnx

    if not target.exists():
        raise Refused("onnxruntime wrote no compiled model")
    compiled = onnx.load(str(target), load_external_data=False)
    if form == EP_CONTEXT and not any(node.op_type == "EPContext" for node in compiled.graph.node):
        raise Refused("the provider compiled no node of it")
    entries = {entry.key: entry.value for entry in compiled.metadata_props}
    return {key.removeprefix(COMPATIBILITY): text for key, text in entries.items() if key.startswith(COMPATIBILITY)}


def _check_declared(plain: Any, compiled: Any) -> None:
    """Inputs and outputs, as a caller sees them.

    Raises:
        Refused: one has another name, type or shape.
    """
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        before, after = (
            [(value.name, value.type, list(value.shape)) for value in getattr(session, ask)()]
            for session in (plain, compiled)
        )
        if before != after:
            what = ask.removeprefix("get_").replace("_", " ")
            raise Refused(f"the compiled model declares other {what}: {after} in place of {before}")


def _metadata(session: Any) -> dict[str, Any]:
    told = session.get_modelmeta()
    return {name: getattr(told, name) for name in METADATA}


def _time_creation(bench: Bench, kept: Bench, strategy: Strategy, loading: Strategy, folder: Path) -> dict[str, float]:
    """Medians of creating the one and the other, in turn; with the compiled one, checking its digests."""
    took: dict[str, list[float]] = {"creation_ms": [], "load_ms": []}
    for _ in range(ROUNDS):
        if took["load_ms"] and bench.left_s() < 2 * (took["creation_ms"][-1] + took["load_ms"][-1]) / 1000:
            break
        took["creation_ms"].append(bench.open("plain", strategy, keep=False).creation_ms)
        started = time.perf_counter()
        digest_folder(folder)
        checked_ms = (time.perf_counter() - started) * 1000
        took["load_ms"].append(checked_ms + kept.open("compiled", loading, keep=False).creation_ms)
    return {name: statistics.median(values) for name, values in took.items()} | {"rounds": float(len(took["load_ms"]))}
