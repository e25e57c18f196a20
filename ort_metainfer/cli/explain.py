"""``explain``: what the cache holds for a model, and why it answers or does not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ort_metainfer.cli.arguments import as_json, model_argument, settings_options
from ort_metainfer.cli.learn_exceptions import exception_lines
from ort_metainfer.cli.output import console, only_json, print_json
from ort_metainfer.cli.report import decision_lines, key_lines, refusal_lines, rule_lines, trial_lines
from ort_metainfer.problem import CacheKey, SessionSpec
from ort_metainfer.settings import Settings

__all__ = ["explain"]

STORY = ("proposals", "refusals", "rules", "trials", "manifest", "state", "decided_in_s")
"""Fields of a stored decision that tell how it was reached; the others are as the cache answers today."""


@click.command()
@model_argument
@settings_options
@as_json
def explain(model: Path, settings: Settings, as_json: bool) -> None:
    """Show what is cached for MODEL: key, hit or why not, every trial with its gates, what was refused."""
    with only_json(as_json):
        document, others = look_up(model, settings)
        document["exceptions"] = list(exception_lines(document, settings))
    if as_json:
        print_json(document)
        return
    console().print("\n".join(explanation(document, others)))


def look_up(model: Path, settings: Settings) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The decision for ``model`` as the cache has it now, nothing decided; and the other keys of the same model."""
    from ort_metainfer.adapt import Request, decide, key_of, settings_for
    from ort_metainfer.model.fingerprint import fingerprint, known_graph
    from ort_metainfer.places import cache_directory
    from ort_metainfer.session import warn_once
    from ort_metainfer.strategy_cache.store import open_cache

    resolved, problems = settings_for(settings)
    for problem in problems:  # a session says so too, and goes on
        warn_once(f"{problem}; this setting is ignored")
    spec = SessionSpec()
    document = decide(Request(str(model), spec, resolved, may_decide=False)).as_dict()
    store = open_cache(cache_directory(resolved))
    identity = fingerprint(str(model), store)
    graph = known_graph(store, identity.hash)
    if graph is None:
        return document, []
    key = key_of(identity, graph, resolved, spec)
    stored = store.get("decisions", str(key)) or {}
    return merged({**document, "key": asdict(key)}, stored), same_model(key, store.keys("decisions"))


def merged(today: dict[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """What is in force today, with the story of how it was decided; who decided, where nobody has edited it since."""
    names = (*STORY, "origin", "reason") if today["origin"] == "cache" else STORY
    return {**today, **{name: stored[name] for name in names if name in stored}}


def same_model(key: CacheKey, texts: Iterable[str]) -> list[dict[str, str]]:
    """Keys of the same model that differ in device, shapes or policy."""
    keys = (CacheKey.parse(text) for text in texts)
    return [asdict(other) for other in keys if other and other.model == key.model and other != key]


def explanation(document: Mapping[str, Any], others: list[dict[str, str]]) -> Iterator[str]:
    """The whole story, in the order it happened."""
    if document["key"]:
        yield "key"
        yield from key_lines(document["key"], others)
    yield from ("", *decision_lines(document))
    parts = {"trials": trial_lines, "refused": refusal_lines, "rules": rule_lines}
    for title, lines_of in parts.items():
        yield from ("", title, *(f"    {line}" for line in list(lines_of(document)) or ["none"]))
    if document.get("exceptions"):
        yield from ("", "people changed this before", *(f"    {line}" for line in document["exceptions"]))
