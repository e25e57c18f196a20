"""``estimate``: what a model might take on chips that are not here. Reckoned from descriptions, never measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.output import console, only_json, print_json, table
from ort_metainfer.ratios import ratio_text
from ort_metainfer.settings import Settings

if TYPE_CHECKING:
    from ort_metainfer.hardware.simulation import Estimate, Precision
    from ort_metainfer.problem import Graph
    from ort_metainfer.providers.chips import Chip

__all__ = ["estimate"]

SIMULATED = (
    "simulated: reckoned from published figures by an analytic model; nothing was measured, nothing is remembered"
)

PRECISIONS = ("as is", "float16", "bfloat16", "int8")


@click.command()
@click.argument("model", required=False, type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path))
@click.option(
    "--chip", "names", multiple=True, help="A described chip, or part of its name; several times for several."
)
@click.option("--host", help="The described processor beside the chips; by default the usual one of each.")
@click.option("--shape", "shapes", multiple=True, help="A shape it will be run with: x:1,3,224,224")
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="as is",
    help="What the model's float32 values would be turned into; its effect on accuracy is not reckoned.",
)
@click.option(
    "--descriptions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of your own in the form of the package's providers/chips.toml.",
)
@click.option("--list", "only_list", is_flag=True, help="List the described chips, each figure with its source.")
@as_json
def estimate(
    model: Path | None,
    names: Sequence[str],
    host: str | None,
    shapes: Sequence[str],
    precision: Precision,
    descriptions: Path | None,
    only_list: bool,
    as_json: bool,
) -> None:
    """Reckon how long MODEL would take on described chips, what bounds it and what falls back to the processor.

    For planning and teaching. Every figure is simulated: where a device is here, `tune` measures instead.
    """
    if model is None and not only_list:
        raise click.UsageError("give a MODEL, or --list")
    with only_json(as_json):
        chips = _chosen(names, descriptions)
        if only_list:
            document: dict[str, Any] = {"simulated": True, "note": SIMULATED, "chips": [*map(_described, chips)]}
        else:
            assert model is not None
            given = Settings(input_shapes=";".join(shapes)).input_shapes if shapes else None  # type: ignore[arg-type]  # or text
            document = survey(model, chips, _host(host, descriptions), given or {}, precision)
    if as_json:
        print_json(document)
    elif only_list:
        console().print("\n".join(line for chip in document["chips"] for line in chip_lines(chip)))
    else:
        _print_survey(document)


def _known(descriptions: Path | None) -> Mapping[str, Chip]:
    from ort_metainfer.providers.chips import all_chips, load_chips

    return all_chips() if descriptions is None else load_chips(descriptions)


def _chosen(names: Sequence[str], descriptions: Path | None) -> list[Chip]:
    from ort_metainfer.providers.chips import get_chip

    known = _known(descriptions)
    return [get_chip(name, known) for name in names] or list(known.values())


def _host(name: str | None, descriptions: Path | None) -> Chip | None:
    from ort_metainfer.providers.chips import get_chip

    if name is None:
        return None
    return get_chip(name, {chip.name: chip for chip in _known(descriptions).values() if chip.kind == "cpu"})


def survey(
    model: Path, chips: Sequence[Chip], host: Chip | None, given: Mapping[str, tuple[int, ...]], precision: Precision
) -> dict[str, Any]:
    """Everything that is reckoned, as plain values, the fastest chip first.

    Args:
        model: its file.
        chips: described chips.
        host: the processor beside all of them; None for the usual one of each.
        given: input -> shape; what it leaves open is guessed, and counts as open for chips that need fixed shapes.
        precision: what the model is taken to be converted to.

    Raises:
        ModelError: the model cannot be read.
        InputsError: a shape does not fit it.
    """
    from ort_metainfer.hardware.simulation import estimate as reckon
    from ort_metainfer.model.graph import describe
    from ort_metainfer.model.sizes import input_shapes
    from ort_metainfer.model.workload import workload
    from ort_metainfer.providers.chips import get_chip

    graph = describe(model, given)
    shapes = input_shapes(graph, given)
    work, outputs = workload(model, shapes), [spec.name for spec in graph.outputs]
    known = {origin: _known(Path(origin)) for origin in {chip.origin for chip in chips}}
    rows = []
    for chip in chips:
        beside = chip if chip.kind == "cpu" else host or get_chip(chip.host or chip.name, known[chip.origin])
        found = reckon(chip, beside, work, outputs, precision=precision, fixed_shapes=_are_fixed(graph, given))
        alone = reckon(beside, beside, work, outputs, precision=precision)
        rows.append(_row(chip, found, alone))
    return {
        "simulated": True,
        "note": SIMULATED,
        "model": str(model),
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "shapes_guessed": sorted(set(shapes) - set(given) - set(_fixed_inputs(graph))),
        "precision": precision,
        "macs": sum((node.macs or 0) * node.runs for node in work),
        "weight_bytes": graph.weight_bytes,
        "nodes_of_unknown_size": sum(not node.is_known for node in work),
        "chips": sorted(rows, key=lambda row: row["p50_ms"]),
    }


def _fixed_inputs(graph: Graph) -> list[str]:
    return [
        spec.name for spec in graph.inputs if spec.shape is not None and all(type(dim) is int for dim in spec.shape)
    ]


def _are_fixed(graph: Graph, given: Mapping[str, tuple[int, ...]]) -> bool:
    return {spec.name for spec in graph.inputs} <= {*given, *_fixed_inputs(graph)}


def _row(chip: Chip, found: Estimate, alone: Estimate) -> dict[str, Any]:
    plain = asdict(found) | {"p50_ms": found.p50_ms, "bound": found.bound}
    doubts = {name: figure.doubtful for name, figure in chip.figures().items() if figure.doubtful}
    speedup = alone.p50_ms / found.p50_ms if found.p50_ms else None  # a model of views alone takes no time
    host_ms = {"host_alone_ms": alone.p50_ms, "speedup_over_host": speedup}
    return {"title": chip.title, "kind": chip.kind, **plain, **host_ms, "doubtful": doubts}


def _print_survey(document: Mapping[str, Any]) -> None:
    shapes = ";".join(f"{name}:{','.join(map(str, shape))}" for name, shape in document["shapes"].items())
    guessed = f" (guessed: {', '.join(document['shapes_guessed'])})" if document["shapes_guessed"] else ""
    out = console()
    out.print(
        f"{document['model']}: {document['macs'] / 1e9:.3g} GMAC, {document['weight_bytes'] / 1e6:.3g} MB of weights"
    )
    out.print(f"shapes {shapes}{guessed}, precision {document['precision']}")
    if document["nodes_of_unknown_size"]:
        out.print(f"{document['nodes_of_unknown_size']} nodes are of unknown size: their work is missing below")
    grid = table("chip", "kind", "P50", "bound by", "nodes on chip", "memory", "over its processor", "remarks")
    for row in document["chips"]:
        grid.add_row(*_cells(row))
    out.print(grid)
    out.print(SIMULATED)


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    yield row["title"]
    yield row["kind"]
    yield f"{row['p50_ms']:.3g} ms simulated"
    yield row["bound"]
    yield f"{row['nodes']} of {row['nodes'] + row['nodes_on_host']}"
    yield {True: "fits", False: "too small", None: "shared or not stated"}[row["fits"]]
    is_told = row["kind"] != "cpu" and row["speedup_over_host"] is not None
    yield f"{ratio_text(row['speedup_over_host'])}x simulated" if is_told else ""
    yield "; ".join([*row["reasons"][:2], *(["figures in doubt: see --list"] if row["doubtful"] else [])])


def _described(chip: Chip) -> dict[str, Any]:
    return {
        **{name: getattr(chip, name) for name in ("name", "title", "vendor", "kind", "host", "note", "quantised")},
        "static_shapes": chip.static_shapes,
        "channel_alignment": chip.channel_alignment,
        "operators": {name: list(getattr(chip.family, name)) for name in ("operators", "missing")}
        | {"family": chip.family.name, "source": chip.family.source},
        "figures": {name: asdict(figure) for name, figure in chip.figures().items()},
    }


def chip_lines(chip: Mapping[str, Any]) -> Iterator[str]:
    """One described chip in words: its name, what it takes, then a line for each figure with its source."""
    needs = (["fixed shapes"] if chip["static_shapes"] else []) + (
        ["quantised models"] if chip["quantised"] == "required" else []
    )
    takes = f", takes {' and '.join(needs)} only" if needs else ""
    yield f"{chip['name']}  {chip['title']} ({chip['vendor']}, {chip['kind']}){takes} [described, not here: simulated]"
    if chip["note"]:
        yield f"    {chip['note']}"
    for name, figure in chip["figures"].items():
        yield f"    {name:<26}{_figure_text(figure)}"


def _figure_text(figure: Mapping[str, Any]) -> str:
    marks = ["read"] if figure["was_read"] else []
    marks += [f"DOUBTFUL: {figure['doubtful']}"] if figure["doubtful"] else []
    return f"{figure['stated']:<14}{figure['source']}" + (f"  [{'; '.join(marks)}]" if marks else "")
