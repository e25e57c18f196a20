"""A session made from a compiled model: found in the cache, in the place of the caller's for the creation only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ort_metainfer.compiled import Compiled, compiled_for, discard, unsupported
from ort_metainfer.compiled_key import OPTIMISED, CompiledKey, compiled_key
from ort_metainfer.places import cache_directory, cache_place

if TYPE_CHECKING:
    from ort_metainfer.settings import Settings
    from ort_metainfer.spec import SessionSpec
    from ort_metainfer.strategy import Strategy

__all__ = ["create", "find", "with_its_weights"]

log = logging.getLogger("ort_metainfer")


def find(
    keyword: Settings | None,
    source: str | bytes,
    model_hash: str | None,
    spec: SessionSpec,
    strategy: Strategy,
    name: str | None = None,
) -> Compiled | None:
    """The compiled model for this session; None where there is none, or it is damaged, which is said once.

    A rewritten model that is gone, or that a person's strategy file asks for, is made again from the strategy.

    Args:
        keyword: the session's settings.
        source: the caller's model.
        model_hash: its hash, where known.
        spec: what the caller set.
        strategy: what is applied.
        name: the folder of the rewritten model that a decision was made with.

    Raises:
        StrategyError: the strategy rewrites the model, and the rewritten one is not there and cannot be made.
        ProviderError: the strategy's provider has no adapter here.
    """
    reason: Compiled | str = "the model is not known"
    if model_hash is not None:
        key = compiled_key(model_hash, spec, strategy)
        if not strategy.transforms:
            reason = compiled_for(_directory(keyword), key)
        else:
            reason = _rewritten(keyword, source, key, spec, strategy, name)
    if isinstance(reason, Compiled):
        return reason
    if strategy.transforms:
        from ort_metainfer.errors import StrategyError

        names = ", ".join(dict.fromkeys(transform.name for transform in strategy.transforms))
        advice = "decide anew (`ort-metainfer tune --force`)"
        if name is None:  # a person's word
            advice = "edit the strategy file, or make it again with `ort-metainfer compile` if that made it"
        raise StrategyError(
            f"the strategy wants the model rewritten ({names}), and the rewritten model is not there: {reason}; "
            f"{advice}"
        )
    if "damaged" in reason:
        from ort_metainfer.session import warn_once

        warn_once(f"{reason}; the original model is used")
    else:
        log.info("no compiled model is used: %s", reason)
    return None


def create(session: Any, plan: Any, plain_create: Callable[..., None]) -> str | None:
    """Make the native session from ``plan.compiled``; one sentence, with everything put back, where that fails.

    What a caller can ask the session is as it would be: the model's metadata and its own options are put in place.
    """
    compiled: Compiled = plan.compiled
    before = session._sess_options
    reason = unsupported(compiled)
    if reason is None:
        session._sess_options = plan.options
        try:
            with _standing_in(session, compiled, plan.options):
                plain_create(session, plan.providers, plan.provider_options)
            for name, value in compiled.metadata.items():
                setattr(session._model_meta, name, value)
            session._sess_options = _shown_options(plan, session._sess_options)
            return None
        except Exception as error:  # noqa: BLE001 (whatever a provider says to a compiled model it does not like)
            session._sess_options = before
            reason = f"{type(error).__name__}: {error}"
    discard(compiled.folder)
    return f"the compiled model in {compiled.folder} is dropped, the original is used: {reason}"


@contextmanager
def _standing_in(session: Any, compiled: Compiled, options: Any) -> Iterator[None]:
    path, content = session._model_path, session._model_bytes
    given: Path | bytes = compiled.model_file
    if compiled.referenced:
        given = _beside_its_weights(path, compiled, options)
    is_bytes = isinstance(given, bytes)
    session._model_path, session._model_bytes = (None, given) if is_bytes else (str(given), None)
    try:
        yield
    finally:
        session._model_path, session._model_bytes = path, content


def _rewritten(
    keyword: Settings | None,
    source: str | bytes,
    key: CompiledKey,
    spec: SessionSpec,
    strategy: Strategy,
    name: str | None,
) -> Compiled | str:
    """A strategy's rewritten model: the one it was decided with, else the one for today's inputs; made if need be."""
    if name is not None:
        found = with_its_weights(compiled_for(_directory(keyword), key, name), source)
        if isinstance(found, Compiled):
            return found
    from ort_metainfer.rewriting_again import rewrite_again

    return rewrite_again(keyword, source, key, spec, strategy, name)


def with_its_weights(found: Compiled | str, source: str | bytes) -> Compiled | str:
    """The same, but for a model whose weights in the caller's files are not where they were: that one is dropped."""
    if not isinstance(found, Compiled) or not found.referenced:
        return found
    from ort_metainfer.rewrites.references import folder_of

    if isinstance(source, str) and folder_of(Path(source).parent, found.referenced) is not None:
        return found
    discard(found.folder)
    return f"it refers to {', '.join(found.referenced)} of the original, which is not where it was"


def _beside_its_weights(path: str | None, compiled: Compiled, options: Any) -> Path | bytes:
    """What to give onnxruntime for a model that refers to the external data of the caller's.

    Raises:
        FileNotFoundError: that is laid out otherwise than it was.
    """
    from ort_metainfer.rewrites.references import FOLDER_KEY, folder_of, given_to_onnxruntime

    folder = None if path is None else folder_of(Path(path).parent, compiled.referenced)
    if folder is None:
        names = ", ".join(compiled.referenced)
        raise FileNotFoundError(f"external data of the original ({names}) is not where it was when it was rewritten")
    options.add_session_config_entry(FOLDER_KEY, str(folder))
    return given_to_onnxruntime(compiled.model_file)


def _shown_options(plan: Any, applied: Any) -> Any:
    """The session's options as they would be: an optimised model is loaded with the optimiser off."""
    if plan.compiled.form != OPTIMISED:
        return applied
    from ort_metainfer import options

    shown = options.options_of(plan.spec)
    options.apply(shown, replace(plan.strategy, provider=None, device=None, provider_options={}, transforms=()))
    return shown


def _directory(keyword: Settings | None) -> Path:
    place = cache_place(keyword)
    if place is None:
        from ort_metainfer.adapt import settings_for

        place = cache_directory(settings_for(keyword)[0])
    return place
