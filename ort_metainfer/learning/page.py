"""The evaluation as one page: curves of regret over measurements, tables beside; nothing is loaded from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import isnan
from typing import Any

__all__ = ["page"]

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 460, 260, 52, 34, 14, 12
COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8a5a9e", "#b7791f", "#4a5568", "#0f8b8d", "#a23b72", "#6b705c", "#d08c60")

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1060px;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h2{margin-top:2.2rem;border-bottom:1px solid #ccc}.pair{display:flex;flex-wrap:wrap;gap:16px}
table{border-collapse:collapse;font-size:13px;margin:.6rem 0}
td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #eee}
td:first-child,th:first-child{text-align:left}svg text{font:11px system-ui,sans-serif;fill:#333}
.done{color:#227a3b}.failed{color:#b3261e}.note{color:#555;font-size:13px}
"""

UNSEEN = {
    "device": "device unseen, model known elsewhere",
    "model": "model unseen",
    "family": "model family unseen",
    "both": "device and model family unseen",
    "both-models": "device and model unseen",
}


def page(document: Mapping[str, Any], title: str = "Choices on hardware never seen") -> str:
    """The document of an evaluation as HTML.

    Args:
        document: as :func:`.evidence.survey_tables` and ``learn evaluate --json`` give it.
        title: of the page.
    """
    body = [part for each in document["tables"] for part in _section(each)]
    gate = _gate(document.get("gate") or [])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        '<p class="note">Regret is the latency of the best candidate measured over the best known, minus 1. '
        "A policy names an order; so many of its candidates are measured on the device.</p>"
        f"{''.join(body)}{_cost_model(document.get('cost_model') or {})}{gate}</body></html>\n"
    )


def _section(table: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2>{escape(table['table'])}: {UNSEEN.get(table['split'], escape(str(table['split'])))}</h2>"
    yield (
        f'<p class="note">{table["cases"]} choices; {table["devices"]} devices, {table["models"]} models, '
        f"{table['configurations']} configurations. {escape(table.get('source', ''))}</p>"
    )
    lines = _lines(table["scores"])
    yield '<div class="pair">'
    yield _chart(
        "mean regret, %", {name: [100 * each["mean_regret"] for each in line] for name, line in lines.items()}, 40
    )
    yield _chart(
        "within 5% of the best, %",
        {name: [100 * each["within_5"] for each in line] for name, line in lines.items()},
        100,
    )
    yield "</div>"
    yield _legend(list(lines))
    yield _scores(lines)
    yield _verdicts(table.get("verdicts") or [])
    yield _calibration(table.get("calibration") or [])


def _lines(scores: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Policy with its number of references -> its scores by measurements."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for each in scores:
        more = f", {each['references']} references" if each["references"] else ""
        lines.setdefault(f"{each['policy']}{more}", []).append(each)
    return {name: sorted(line, key=lambda each: int(each["measured"])) for name, line in lines.items()}


def _chart(title: str, lines: Mapping[str, Sequence[float]], top: float) -> str:
    """Lines over the number of measurements; what lies above ``top`` is cut off at the edge."""
    most = max((len(values) for values in lines.values()), default=1)

    def x(number: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * number / max(most - 1, 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(max(value, 0.0), top) / top

    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#e3e3e3"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in (top * step / 4 for step in range(5))
    ]
    parts += [
        f'<text x="{x(number):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{number + 1}</text>'
        for number in range(most)
    ]
    for colour, (name, values) in zip(_colours(len(lines)), lines.items(), strict=True):
        points = " ".join(f"{x(number):.1f},{y(value):.1f}" for number, value in enumerate(values))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{escape(name)}</title></polyline>"
        )
    return (
        f'<svg role="img" aria-label="{escape(title)}" width="{WIDTH}" height="{HEIGHT}">'
        f'<text x="{LEFT}" y="10">{escape(title)}</text>{"".join(parts)}'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 2}" text-anchor="end">candidates measured</text></svg>'
    )


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _legend(names: Sequence[str]) -> str:
    words = (
        f'<span style="color:{colour}">&#9632; {escape(name)}</span>'
        for colour, name in zip(_colours(len(names)), names, strict=True)
    )
    return f"<p>{' &nbsp; '.join(words)}</p>"


def _scores(lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    most = max((len(line) for line in lines.values()), default=0)
    rows = [
        [name, *(f"{each['mean_regret']:.1%} / {each['within_5']:.1%}" for each in line)]
        for name, line in lines.items()
    ]
    return _table(["mean regret / within 5%", *(f"top-{number + 1}" for number in range(most))], rows)


def _verdicts(verdicts: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{each['kind']}, top-{each['measured']}",
            str(each["cases"]),
            f"{each['mean_regret']:.1%}",
            f"{each['within_5']:.1%}",
            f'<span class="{escape(each["word"])}">{escape(each["word"])}</span>',
        ]
        for each in verdicts
    ]
    return _table(["device class", "cases", "mean regret", "within 5%", "verdict"], rows, raw=4) if rows else ""


def _calibration(levels: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [f"{each['confidence']:.0%}", str(each["cases"]), _share(each["share_of_all"]), _share(each["within_5"])]
        for each in levels
    ]
    return _table(["first choice at least so sure", "cases", "of all", "ends within 5%"], rows) if rows else ""


def _cost_model(quality: Mapping[str, float]) -> str:
    if not quality:
        return ""
    names = ("median_absolute_percentage_error", "spearman")
    rows = [
        [words, *("" if isnan(value := quality[f"{name}{end}"]) else f"{value:.2f}" for name in names)]
        for words, end in (("taught by the other models' records", ""), ("taught nothing", "_unlearned"))
    ]
    head = ["cost model, on models held out", "median absolute error, %", "rank correlation within a model"]
    rests = f"{quality['trials']:.0f} trials of {quality['models']:.0f} models"
    return f'<h2>The cost model</h2><p class="note">{rests}.</p>' + _table(head, rows)


def _gate(gated: Sequence[Mapping[str, Any]]) -> str:
    if not gated:
        return ""
    rows = [
        [
            f"{each['device']} ({each['kind']})",
            each["archive"],
            each["held_out"],
            "refused" if each["refused"] else "asked",
            each["reason"] or "",
        ]
        for each in gated
    ]
    return "<h2>The gate</h2>" + _table(["device", "archive", "held out", "model is", "because"], rows)


def _share(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.1%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], raw: int = -1) -> str:
    """A table; the cells of column ``raw`` are HTML already."""
    cells = (
        "".join(f"<td>{cell if number == raw else escape(cell)}</td>" for number, cell in enumerate(row))
        for row in rows
    )
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
