"""InferenceSession, and patch() for code nobody may edit: intercept creation, decide, hand over to onnxruntime.

Only ``_create_inference_session`` is hooked: it is called by the constructor, by its fallback and by ``set_providers``,
after the model and the options are set, and it has not changed from onnxruntime 1.18 to 1.32. ``run`` stays
onnxruntime's own.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxruntime import __version__ as _version
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as _Base

from ort_metainfer import options as _options
from ort_metainfer.places import config_place

if TYPE_CHECKING:
    from ort_metainfer.compiled import Compiled
    from ort_metainfer.decision import Decision
    from ort_metainfer.problem import SessionSpec
    from ort_metainfer.settings import Settings
    from ort_metainfer.strategy import Strategy

__all__ = ["InferenceSession", "patch", "unpatch"]

log = logging.getLogger("ort_metainfer")

# Bound once: looked up at call time, an application that replaces onnxruntime.InferenceSession would recurse for ever.
_plain_create = _Base._create_inference_session
_HOOK_FITS = list(inspect.signature(_plain_create).parameters) == [
    "self",
    "providers",
    "provider_options",
    "disabled_optimizers",
]

_options.watch()


class _Told:
    """An attribute of a session that a shortcut of a cached start leaves to be worked out when somebody asks.

    Reading it puts the value into the instance, which hides this from then on.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, session: Any, owner: type | None = None) -> Any:
        if session is None:
            return self
        start = getattr(session, "_metainfer_start", None)
        if start is None:
            return None
        decision = start.decision()
        _tell(session, decision)
        return decision if self.name == "adaptation" else decision.strategy


def _tell(session: Any, decision: Decision) -> None:
    session.adaptation, session.strategy, session._metainfer_is_told = decision, decision.strategy, True


class InferenceSession(_Base):  # type: ignore[misc]  # noqa: D101 (onnxruntime's own docstring; it ships no types)
    __doc__ = _Base.__doc__

    adaptation = _Told("adaptation")
    """The Decision: who decided what for this session, what was tried, and why."""

    strategy = _Told("strategy")
    """The Strategy that is applied to this session."""

    _metainfer_is_told = False

    def __init__(self, *args: Any, metainfer: Settings | None = None, **keywords: Any) -> None:
        _check_keyword(metainfer)
        self._metainfer_settings = metainfer
        super().__init__(*args, **keywords)

    __init__.__doc__ = _Base.__init__.__doc__
    __init__.__signature__ = inspect.signature(_Base.__init__)  # type: ignore[attr-defined]

    def _create_inference_session(self, providers: Any, provider_options: Any, disabled_optimizers: Any = None) -> None:
        _create(self, providers, provider_options, disabled_optimizers)


def _check_keyword(metainfer: Any) -> None:
    if metainfer is None:
        return
    from ort_metainfer.settings import Settings

    if not isinstance(metainfer, Settings):
        raise TypeError(f"metainfer must be ort_metainfer.Settings, got {type(metainfer).__name__}")


def _create(self: Any, providers: Any, provider_options: Any, disabled_optimizers: Any = None) -> None:
    """Make the C session: with a strategy where one is decided, in onnxruntime's own way otherwise.

    ``_metainfer_stage`` tells the calls of one session apart: after a creation that failed onnxruntime calls again with
    its fallback, which is left alone; after one that succeeded it is ``set_providers``, which only looks up.
    """
    # Never through self.__dict__: asking for it makes CPython build one, and every later run() 2% slower (of 3.4 us).
    stage = getattr(self, "_metainfer_stage", "new")
    self._metainfer_stage = "creating"
    self._metainfer_failure = None
    plan = None
    if stage == "created" and getattr(self, "_metainfer_async", None) is not None:
        from ort_metainfer.asynchronous import forget_asynchronous

        forget_asynchronous(self)
    if stage != "creating" and _HOOK_FITS:
        plan = _plan(self, providers, provider_options, disabled_optimizers, may_decide=stage == "new")
    if plan is None or not _create_planned(self, plan, providers):
        _plain_create(self, providers, provider_options, disabled_optimizers)
        _tell_failure(self)
    self._metainfer_stage = "created"
    if stage != "creating":
        _capture(self)


def _capture(self: Any) -> None:
    """Have the session's runs looked at for inputs to keep, where the setting ``capture`` may ask for it."""
    keyword = getattr(self, "_metainfer_settings", None)
    if keyword is not None and keyword.capture is not None:
        is_asked = bool(keyword.capture)
    else:
        is_asked = bool(os.environ.get("ORT_METAINFER_CAPTURE")) or config_place().exists()
    if is_asked:
        from ort_metainfer.capturing import begin

        begin(self, keyword)


class _Plan(NamedTuple):
    """What is given to onnxruntime in place of what the caller gave; ``strategy`` is what it was made from."""

    spec: SessionSpec
    strategy: Strategy
    options: Any
    providers: Any
    provider_options: Any
    compiled: Compiled | None
    fixes_shapes: bool
    buckets: int


class _Known(NamedTuple):
    """A strategy that is to be applied, with the model's hash and the name of what is compiled, where known."""

    strategy: Any
    model_hash: str | None = None
    compiled: str | None = None


def _plan(self: Any, providers: Any, provider_options: Any, disabled_optimizers: Any, may_decide: bool) -> _Plan | None:
    """The decision for this session, ready to apply; None for plain onnxruntime. What fails of ours ends here."""
    keyword = getattr(self, "_metainfer_settings", None)
    try:
        spec = _unusual(self, disabled_optimizers) or _options.spec_of(self._sess_options, providers, provider_options)
        known = _recalled(self, spec, keyword) or _decided(self, spec, keyword, may_decide)
        if isinstance(spec, str):
            return None
        compiled = None
        if known.compiled is not None or known.strategy.transforms:
            from ort_metainfer.compiled_start import find

            source = self._model_path if self._model_path is not None else self._model_bytes
            compiled = find(keyword, source, known.model_hash, spec, known.strategy, known.compiled)
        buckets = _buckets_asked(keyword)
        if compiled is None and known.strategy.is_default and not buckets:
            return None
        return _planned(spec, known.strategy, compiled, providers, provider_options, buckets)
    except Exception as error:
        if _is_strict(self):
            _refuse_fallback(self)
            raise
        _fail_open(self, error)
        return None


def _buckets_asked(keyword: Settings | None) -> int:
    """The setting ``buckets``; where it cannot have been made, no settings are resolved."""
    if keyword is not None and keyword.buckets is not None:
        return keyword.buckets
    if not os.environ.get("ORT_METAINFER_BUCKETS") and not config_place().exists():
        return 0
    from ort_metainfer.adapt import settings_for

    return settings_for(keyword)[0].buckets or 0


def _planned(
    spec: Any, strategy: Any, compiled: Compiled | None, providers: Any, provider_options: Any, buckets: int
) -> _Plan:
    """What to give onnxruntime for a strategy."""
    if strategy is _NO_CHANGE:
        from ort_metainfer.strategy import Strategy

        strategy = Strategy()
    planned, applied = _options.options_of(spec), strategy
    if compiled is not None:
        from ort_metainfer.compiled_key import loading_strategy

        applied = loading_strategy(strategy, compiled.form)
    chosen = _options.apply(planned, applied)
    given = None
    if strategy.provider is None:
        chosen, given = providers, provider_options
    fixes_shapes = bool(strategy.static_shapes or strategy.transforms)
    return _Plan(spec, strategy, planned, chosen, given, compiled, fixes_shapes, buckets)


def _decided(self: Any, spec: SessionSpec | str, keyword: Settings | None, may_decide: bool) -> _Known:
    """What the full look-up, or a decision made now, says."""
    from ort_metainfer import adapt

    settings, problems = adapt.settings_for(keyword)
    for problem in problems:
        if settings.strict:
            raise problem
        warn_once(f"{problem}; this setting is ignored")
    source = self._model_path if self._model_path is not None else self._model_bytes
    decision = adapt.decide(adapt.Request(source, spec, settings, may_decide))
    _tell(self, decision)
    if not problems and isinstance(source, str) and not isinstance(spec, str):
        from ort_metainfer.start import record

        record(source, spec, keyword, decision)
    return _Known(decision.strategy, decision.key.model if decision.key else None, decision.compiled)


def _is_strict(self: Any) -> bool:
    """Whether what failed is raised. Asked only then: a cached start resolves no settings."""
    keyword = getattr(self, "_metainfer_settings", None)
    try:
        from ort_metainfer.adapt import settings_for

        return bool(settings_for(keyword)[0].strict)
    except Exception:  # noqa: BLE001 (what failed may be the settings themselves)
        return keyword is not None and bool(keyword.strict)


def _recalled(self: Any, spec: SessionSpec | str, keyword: Settings | None) -> _Known | None:
    """The strategy of a start that was made before, the decision left to be told when asked; None where it is new."""
    if isinstance(spec, str) or not isinstance(self._model_path, str):
        return None
    from ort_metainfer.start import recall

    start = recall(self._model_path, spec, keyword)
    if start is None:
        return None
    self._metainfer_start = start
    if not isinstance(self, InferenceSession) or self._metainfer_is_told:
        _tell(self, start.decision())  # onnxruntime's own class has nowhere to work it out later; nor what hides it
    if not start.entry["strategy"] and start.compiled is None:
        return _Known(_NO_CHANGE)
    from ort_metainfer.strategy import Strategy

    strategy = Strategy.from_dict(start.entry["strategy"])
    return _Known(strategy) if start.compiled is None else _Known(strategy, start.model_hash, start.compiled)


class _NoChange:
    """Stands for the empty strategy without importing what a strategy is made of."""

    is_default = True
    transforms = ()


_NO_CHANGE = _NoChange()


def _unusual(self: Any, disabled_optimizers: Any) -> str | None:
    """Why this session is left to plain onnxruntime whatever the model is, or None."""
    if disabled_optimizers:
        return "disabled_optimizers is given"
    if self._read_config_from_model or os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL", "0") != "0":
        return "onnxruntime reads the session's configuration from the model"
    return None


def _create_planned(self: Any, plan: _Plan, providers: Any) -> bool:
    """Make the session as planned; False, with everything put back, where onnxruntime refuses it."""
    caller_options = self._sess_options
    try:
        if plan.compiled is not None:
            from ort_metainfer.compiled_start import create

            reason = create(self, plan, _plain_create)
            if reason is not None:  # what lies in the cache does not do: as if it were not there
                warn_once(reason)
                if plan.strategy.is_default:
                    self._sess_options = caller_options
                    return False
                plan = _planned(plan.spec, plan.strategy, None, plan.providers, plan.provider_options, plan.buckets)
        if plan.compiled is None:
            self._sess_options = plan.options
            _plain_create(self, plan.providers, plan.provider_options)
        _guard_shapes(self, plan)
        _keep_asynchronous(self, plan)
    except Exception as error:
        self._sess_options = caller_options
        if _is_strict(self):
            _refuse_fallback(self)
            raise
        _fail_open(self, error)
        return False
    if plan.strategy.provider is not None:  # else onnxruntime has just told it from the caller's own
        self._fallback_providers = _fallback_of(providers)
    return True


def _guard_shapes(self: Any, plan: _Plan) -> None:
    """Let calls with other shapes run on the general session, where the strategy fixed some, or on one of their own."""
    if not plan.fixes_shapes and not plan.buckets:
        return
    from ort_metainfer.static_shapes import guard

    model = self._model_path if self._model_path is not None else self._model_bytes
    decision = self.adaptation
    if plan.buckets and decision.graph is None and decision.key is not None:
        from ort_metainfer.adapt import with_graph

        decision = with_graph(decision, getattr(self, "_metainfer_settings", None))
    if decision.graph is None and not plan.fixes_shapes:
        return  # nothing is known of the model, and nothing of it was fixed: no session stands behind this one
    guard(self, model, plan.spec, decision, plan.buckets)


def _keep_asynchronous(self: Any, plan: _Plan) -> None:
    """Let ``run_async`` work where the strategy leaves the session no pool of threads for it."""
    if plan.options.intra_op_num_threads != 1 or getattr(self, "_metainfer_general", None) is not None:
        return
    from ort_metainfer.asynchronous import keep_asynchronous, lacks_pool

    if lacks_pool(plan.options, plan.spec):
        model = self._model_path if self._model_path is not None else self._model_bytes
        keep_asynchronous(self, model, plan.spec)


def _available() -> set[str]:
    import onnxruntime

    return set(onnxruntime.get_available_providers())


def _fallback_of(providers: Any) -> list[str]:
    """Where onnxruntime itself would fall back to from the caller's providers."""
    names = [entry[0] if isinstance(entry, tuple) else entry for entry in providers or ()]
    tensorrt = {"TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"} & set(names) & _available()
    cuda = ["CUDAExecutionProvider"] if tensorrt and "CUDAExecutionProvider" in names else []
    return [*cuda, "CPUExecutionProvider"]


def _refuse_fallback(self: Any) -> None:
    """Keep onnxruntime from printing and retrying: with ``strict`` the caller sees our error as it is."""
    self._enable_fallback, self._fallback_providers = False, []


def _fail_open(self: Any, error: Exception) -> None:
    """Note why this session is plain onnxruntime's; keeps no reference to ``error``."""
    from ort_metainfer.decision import Decision
    from ort_metainfer.strategy import Strategy

    model = self._model_path if self._model_path is not None else "a model given as bytes"
    reason = f"{type(error).__name__}: {error}"
    _tell(self, Decision(Strategy(), "pass-through", reason))
    self._metainfer_failure = f"{model} runs on plain onnxruntime: {reason}"
    log.debug("the failure behind it", exc_info=error)


def _tell_failure(self: Any) -> None:
    """Warn of what failed, once onnxruntime has made the session: where it refuses too, its own error says enough."""
    if self._metainfer_failure is not None:
        warn_once(self._metainfer_failure)


_said: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning the first time it is said in this process."""
    if message not in _said:
        _said.add(message)
        log.warning("%s", message)


_patch_lock = threading.Lock()
_patches = 0


class _Patch:
    """What :func:`patch` returns: the patch is in force already; as a context manager it ends with the block."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        unpatch()


def patch() -> _Patch:
    """Adapt every session that is created from now on through onnxruntime itself, by code nobody may edit.

    The class is hooked in place, so it does not matter whether ``InferenceSession`` was imported before or is imported
    later, nor whether it was subclassed. Calls nest: each needs its :func:`unpatch`.

    Returns:
        A context manager that undoes it: ``with ort_metainfer.patch(): ...``.
    """
    global _patches
    with _patch_lock:
        _patches += 1
        if _HOOK_FITS:
            _Base._create_inference_session = _create
        else:
            warn_once(f"onnxruntime {_version} makes sessions in a way that is not known here; nothing is adapted")
    return _Patch()


def unpatch() -> None:
    """Undo one :func:`patch`; the last one puts onnxruntime back as it was. Without a patch it does nothing."""
    global _patches
    with _patch_lock:
        _patches = max(0, _patches - 1)
        if not _patches and _Base._create_inference_session is _create:
            _Base._create_inference_session = _plain_create
