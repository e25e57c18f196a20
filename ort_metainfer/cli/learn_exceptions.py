"""``learn exceptions``: what people change again and again in what was decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.learn_records import cache_dir, complain, record_store
from ort_metainfer.cli.output import console, print_json, table
from ort_metainfer.strategy import Strategy

if TYPE_CHECKING:
    from ort_metainfer.learning.exceptions import ExceptionRule
    from ort_metainfer.settings import Settings

__all__ = ["exception_lines", "exceptions"]


@click.command("exceptions")
@cache_dir
@as_json
def exceptions(cache_dir: str | None, as_json: bool) -> None:
    """List the changes that people made repeatedly: for two models, or twice for one.

    An override is recorded when it is used: a strategy file that was edited, or the setting `strategy`.
    """
    from ort_metainfer.learning.exceptions import exception_list

    store = record_store(cache_dir)
    records = store.read()
    complain(store)
    rules, count = exception_list(records), sum(record.replaced is not None for record in records)
    if as_json:
        print_json({"overrides": count, "exceptions": [plain_rule(rule) for rule in rules]})
        return
    console().print(f"{len(rules)} exceptions from {count} overrides")
    grid = table("setting", "decided", "changed to", "on", "models", "times", "last")
    for rule in rules:
        change = rule.change
        figures = (rule.kind, str(rule.models), str(rule.times), rule.last or "-")
        grid.add_row(change.setting, change.before, change.after, *figures)
    if rules:
        console().print(grid)


def plain_rule(rule: ExceptionRule) -> dict[str, Any]:
    """Plain values; the graphs' features are left out."""
    figures = {name: getattr(rule, name) for name in ("kind", "models", "times", "last")}
    return {**asdict(rule.change), **figures}


def exception_lines(document: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """For ``explain``: exceptions that speak about the decision in ``document``, a line each."""
    from ort_metainfer.learning.exceptions import exception_list, similar_exceptions
    from ort_metainfer.learning.features import graph_features
    from ort_metainfer.problem import Graph

    records = record_store(None if settings.cache_dir is None else str(settings.cache_dir)).read()
    rules = exception_list(records)
    if not rules or document.get("origin") == "override":
        return
    graph = graph_features(Graph.from_dict(document["graph"])) if document.get("graph") else {}
    strategy = Strategy.from_dict(document["strategy"])
    for rule in similar_exceptions(rules, strategy, _kind(strategy), graph):
        yield rule.describe()


def _kind(strategy: Strategy) -> str:
    """The kind of device that a strategy runs on, as far as its provider says."""
    from ort_metainfer.errors import ProviderError
    from ort_metainfer.learning.features import kind_named
    from ort_metainfer.providers import get_provider

    if (kind := kind_named(strategy)) is not None:
        return kind
    try:
        return "cpu" if strategy.provider is None else get_provider(strategy.provider).kinds[0]
    except ProviderError:
        return "cpu"
