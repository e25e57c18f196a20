"""What can be seen of one onnxruntime session from outside, as plain values that two kinds of session are compared
by."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import os
import re
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

PROPERTIES = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "enable_profiling",
    "execution_mode",
    "execution_order",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "optimized_model_filepath",
    "profile_file_prefix",
    "use_deterministic_compute",
    "use_per_session_threads",
)

CONFIG_KEYS = (
    "ep.context_embed_mode",
    "ep.context_enable",
    "ep.context_file_path",
    "ep.context_model_external_initializers_file_name",
    "ep.context_node_name_prefix",
    "ep.share_ep_contexts",
    "ep.stop_share_ep_contexts",
    "memory.enable_memory_arena_shrinkage",
    "mlas.disable_kleidiai",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.minimal_build_optimizations",
    "session.collect_node_memory_stats_to_file",
    "session.compile_only",
    "session.debug_layout_transformation",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_prepacking",
    "session.disable_quant_qdq",
    "session.dynamic_block_base",
    "session.enable_quant_qdq_cleanup",
    "session.force_spinning_stop",
    "session.graph_optimizations_loop_level",
    "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning",
    "session.intra_op_thread_affinities",
    "session.load_model_format",
    "session.model_external_initializers_file_folder_path",
    "session.node_partition_config_file",
    "session.optimized_model_external_initializers_file_name",
    "session.optimized_model_external_initializers_min_size_in_bytes",
    "session.qdqisint8allowed",
    "session.record_ep_graph_assignment_info",
    "session.save_external_prepacked_constant_initializers",
    "session.save_model_format",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers",
)

HASHED_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Call:
    """One user's way to make and run a session.

    Attributes:
        model: first argument of the constructor.
        feeds: what run() gets.
        options: the caller's SessionOptions.
        keywords: the constructor's other keywords.
        run_options: what run() gets as its third argument.
        binding: whether IOBinding is tried too (plain onnxruntime crashes on some output types).
        keep: what must stay alive as long as the call.
        shows_options: whether the session's own options must be equal too; a strategy rightly changes them.
    """

    model: Any
    feeds: Mapping[str, Any] = field(default_factory=dict)
    options: onnxruntime.SessionOptions | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    run_options: onnxruntime.RunOptions | None = None
    binding: bool = True
    keep: tuple[Any, ...] = ()
    shows_options: bool = False


Make = Callable[..., onnxruntime.InferenceSession]


def attempt(action: Callable[[], Any]) -> tuple[Any, ...]:
    """The value as plain data, or the class and message of what was raised."""
    try:
        return ("value", plain(action()))
    except Exception as error:  # noqa: BLE001 (the error is what is compared)
        return error_of(error)


def error_of(error: BaseException) -> tuple[Any, ...]:
    """Class, message without addresses in memory, and the class of the cause."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    message = re.sub(r"0x[0-9a-f]{6,}", "0x...", str(error))
    return ("error", kind, message, None if error.__cause__ is None else type(error.__cause__).__qualname__)


def plain(value: Any) -> Any:
    """Any output of a session as values that ``==`` compares bit by bit."""
    if isinstance(value, np.ndarray):
        data = tuple(value.ravel().tolist()) if value.dtype == object else hashlib.sha256(value.tobytes()).hexdigest()
        return (str(value.dtype), value.shape, data)
    if isinstance(value, onnxruntime.OrtValue):
        return (value.data_type(), attempt(value.shape), attempt(value.numpy))
    if isinstance(value, onnxruntime.SparseTensor):
        return ("sparse", tuple(value.dense_shape()), plain(value.values()))
    if isinstance(value, Mapping):
        return tuple(sorted((key, plain(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, float | np.floating):
        return float(value).hex()
    return value


def options_state(options: onnxruntime.SessionOptions | None) -> dict[str, Any]:
    """Everything that can be read from SessionOptions."""
    if options is None:
        return {}
    state: dict[str, Any] = {name: getattr(options, name) for name in PROPERTIES if hasattr(options, name)}
    for key in CONFIG_KEYS:
        with contextlib.suppress(RuntimeError):  # what a missing key raises
            state[key] = options.get_session_config_entry(key)
    return state


def files_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below the folder with its size and, if small, its content's hash."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            size = path.stat().st_size
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if size <= HASHED_BYTES_MAX else ""
            found[str(path.relative_to(folder))] = (size, digest)
    return found


def observe(make: Make, call: Call, folder: Path) -> dict[str, Any]:
    """Make a session with ``make``, use it in every way, drop it; what was seen, by name."""
    seen: dict[str, Any] = {}
    before = options_state(call.options)
    with recorded(seen), _garbage_collector_off():
        try:
            session = make(call.model, **_keywords(call))
        except Exception as error:  # noqa: BLE001 (the error is what is compared)
            seen["created"] = error_of(error)
        else:
            seen["created"] = "session"
            seen |= _described(session, call) | _ran(session, call)
            seen["set_providers"] = attempt(lambda: session.set_providers(["CPUExecutionProvider"]))
            seen |= {f"{name} after set_providers": value for name, value in _described(session, call).items()}
            seen["run after set_providers"] = attempt(lambda: session.run(None, dict(call.feeds), call.run_options))
            handles = [weakref.ref(session), weakref.ref(session._sess)] if session._sess is not None else []
            del session
            seen["freed"] = [handle() is None for handle in handles]
    seen["files"] = files_of(folder)
    seen["caller's options unchanged"] = options_state(call.options) == before
    seen["caller's options again"] = attempt(lambda: _plain_again(call))
    return seen


def _keywords(call: Call) -> dict[str, Any]:
    return {**({} if call.options is None else {"sess_options": call.options}), **call.keywords}


def _plain_again(call: Call) -> Any:
    with recorded({}):
        session = onnxruntime.InferenceSession(call.model, **_keywords(call))
        return session.run(None, dict(call.feeds), call.run_options)


def _described(session: onnxruntime.InferenceSession, call: Call) -> dict[str, Any]:
    if session._sess is None:  # a failed set_providers leaves a dead session behind
        return {"dead": (session.get_providers(), session.get_inputs(), session.get_modelmeta())}
    meta = session.get_modelmeta()
    seen = {
        name: [(arg.name, list(arg.shape), arg.type) for arg in getattr(session, name)()]
        for name in ("get_inputs", "get_outputs", "get_overridable_initializers")
    }
    fields = ("producer_name", "graph_name", "domain", "description", "graph_description", "version")
    return {
        **seen,
        "get_modelmeta": {**{name: getattr(meta, name) for name in fields}, "custom": dict(meta.custom_metadata_map)},
        "get_providers": list(session.get_providers()),
        "get_provider_options": session.get_provider_options(),
        "memory": attempt(
            lambda: [i.name for i in (*session.get_input_memory_infos(), *session.get_output_memory_infos())]
        ),
        "ep devices": attempt(lambda: [device and device.ep_name for device in session.get_input_epdevices()]),
        "model": (session._model_path, session._model_bytes == call.model),
        "options initial": session._sess_options_initial is call.options,
        "options own": session.get_session_options() is not call.options,
        "options": options_state(session.get_session_options()) if call.shows_options else None,
        "fallback": (session._fallback_providers, session._enable_fallback),
        "read_config": session._read_config_from_model,
    }


def _ran(session: onnxruntime.InferenceSession, call: Call) -> dict[str, Any]:
    names = [output.name for output in session.get_outputs()]

    def values() -> dict[str, onnxruntime.OrtValue]:
        return {name: _ort_value(value) for name, value in call.feeds.items() if value is not None}

    ways: dict[str, Callable[[], Any]] = {
        "run": lambda: session.run(None, dict(call.feeds), call.run_options),
        "run names": lambda: session.run(names[::-1], dict(call.feeds), call.run_options),
        "run missing": lambda: session.run(None, {}, call.run_options),
        "run unknown": lambda: session.run(["no such output"], dict(call.feeds)),
        "run_with_ort_values": lambda: session.run_with_ort_values(names, values(), call.run_options),
    }
    if call.binding:
        ways["run_with_iobinding"] = lambda: _bound(session, values(), names, call)
    return {way: attempt(action) for way, action in ways.items()}


def _ort_value(value: Any) -> onnxruntime.OrtValue:
    return value if isinstance(value, onnxruntime.OrtValue) else onnxruntime.OrtValue.ortvalue_from_numpy(value)


def _bound(session: onnxruntime.InferenceSession, values: Mapping[str, Any], names: list[str], call: Call) -> Any:
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding, call.run_options)
    return binding.get_outputs()


@contextlib.contextmanager
def _garbage_collector_off() -> Iterator[None]:
    """So that only reference counts free a session, as the tests on freeing demand."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def recorded(seen: dict[str, Any]) -> Iterator[None]:
    """Warnings of Python and of the package's logger, and what arrives at the standard streams, natively too.

    Of stderr the distinct lines are kept, without the time that onnxruntime's logger writes before each.
    """
    logger, said = logging.getLogger("ort_metainfer"), list[logging.LogRecord]()
    listener = logging.Handler(logging.WARNING)
    listener.emit = said.append  # type: ignore[method-assign]
    with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as streams:
        warnings.simplefilter("always")
        logger.addHandler(listener)
        streams.callback(logger.removeHandler, listener)
        files = {name: streams.enter_context(_diverted(name)) for name in ("stdout", "stderr")}
        yield
    for name, text in files.items():
        seen[name] = text[0]
    seen["stderr"] = sorted(
        {re.sub(r"\x1b\[[0-9;]*m|\d{4}-\d\d-\d\d [\d:.]+ ", "", line) for line in seen["stderr"].splitlines()}
    )
    seen["logged"] = [record.getMessage() for record in said]
    seen["warnings"] = [(warning.category.__name__, str(warning.message)) for warning in caught]


@contextlib.contextmanager
def _diverted(name: str) -> Iterator[list[str]]:
    """A list that holds what was written to a standard stream, once the block is left."""
    descriptor, text = {"stdout": 1, "stderr": 2}[name], list[str]()
    stream = getattr(sys, name)
    stream.flush()
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        try:
            with os.fdopen(os.dup(descriptor), "w") as out:
                setattr(sys, name, out)
                yield text
        finally:
            setattr(sys, name, stream)
            os.dup2(kept, descriptor)
            os.close(kept)
        file.seek(0)
        text.append(file.read().decode())
