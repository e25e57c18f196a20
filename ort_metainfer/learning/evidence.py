"""What the public tables say of learned choices: every table, every split, every policy, as one document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ort_metainfer.errors import InputsError
from ort_metainfer.learning import policies
from ort_metainfer.learning.evaluate import Score, calibration, score, verdicts
from ort_metainfer.learning.held_out import HeldOut, Learner, Split, predict_held_out
from ort_metainfer.learning.public_aihub import load_aihub
from ort_metainfer.learning.public_help import gate_by_class
from ort_metainfer.learning.public_ncnn import load_ncnn
from ort_metainfer.learning.public_timm import load_timm
from ort_metainfer.learning.tasks import Tasks

__all__ = ["TABLES", "Table", "survey_tables"]


@dataclass(frozen=True)
class Table:
    """One public table and how choices in it are compared.

    Attributes:
        load: from the folder.
        file: that it needs.
        default: what somebody takes who does not choose; ``rules``: what somebody takes who knows the hardware's words.
        over: the forest learns how far off this column is, where references were measured; None: it learns all.
        groups: into how many groups models are dealt to be held out.
    """

    load: Callable[[Path], Tasks]
    file: str
    default: Learner
    rules: Mapping[str, Learner] = field(default_factory=dict)
    over: str | None = None
    groups: int = 10


MOST_THREADS = policies.in_order(
    *(f"{count}(:float)?" for count in (224, 112, 64, 56, 32, 24, 16, 12, 10, 8, 6, 4, 3, 2))
)
GPU_FIRST = policies.in_order("gpu:.*", *(f"{count}:.*" for count in (64, 32, 16, 8, 6, 4, 2)))

TABLES: Mapping[str, Table] = {
    "aihub": Table(
        load_aihub,
        "aihub.csv.gz",
        default=policies.in_order("onnx:float", "tflite:float", "qnn_dlc:float", ".*:float"),
        rules={
            "least bits": policies.in_order("qnn_dlc:w8a8", ".*:w8a8", "qnn_dlc:w8a16", ".*:w8a16", "qnn_dlc:float")
        },
    ),
    "aihub, CPU and GPU share alone": Table(
        lambda folder: load_aihub(folder, probe="share"),
        "aihub.csv.gz",
        default=policies.in_order("onnx:float", "tflite:float", "qnn_dlc:float", ".*:float"),
    ),
    "ncnn": Table(
        load_ncnn, "ncnn.csv.gz", default=MOST_THREADS, rules={"GPU if present": GPU_FIRST}, over="reference_at_size"
    ),
    "ncnn, float and int8": Table(
        lambda folder: load_ncnn(folder, with_int8=True),
        "ncnn.csv.gz",
        default=MOST_THREADS,
        rules={"GPU if present": GPU_FIRST},
        over="reference_at_size",
        groups=4,
    ),
    "timm": Table(load_timm, "timm.csv.gz", default=policies.in_order("fp32:nchw:eager", ".*:nchw:eager")),
}


def survey_tables(
    folder: Path,
    *,
    tables: Sequence[str] = ("aihub", "ncnn"),
    splits: Sequence[Split] = ("both-models", "both", "device"),
    references: Sequence[int] = (0, 3, 10),
    trees: int = 100,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Every figure, as plain values.

    Args:
        folder: with the tables (see :mod:`.public`).
        tables: of ``TABLES``.
        splits: what is held out.
        references: how many reference models describe a device.
        trees: of a forest.
        seed: of dealing and growing.
        tell: is given a line of progress now and then.

    Raises:
        InputsError: an unknown table, or one that is not there.
    """
    unknown = [name for name in tables if name not in TABLES]
    if unknown:
        raise InputsError(f"{unknown[0]!r} is no public table that is known; there are: {', '.join(TABLES)}")
    found = []
    for name in tables:
        tasks = TABLES[name].load(folder)
        for split in splits:
            tell(f"{name}: {split} unseen")
            found.append(_surveyed(name, tasks, split, references, trees, seed))
    return {"tables": found, "gate": _gate(folder)}


def _surveyed(
    name: str, tasks: Tasks, split: Split, references: Sequence[int], trees: int, seed: int
) -> dict[str, Any]:
    """One table with one kind of unseen."""
    table, scores = TABLES[name], []
    best: HeldOut | None = None
    for policy, learner, counts in _policies(table, split, references, trees, seed):
        for count in counts:
            held_out = predict_held_out(tasks, learner(count), split, references=count, groups=table.groups, seed=seed)
            default = _default_regret(scores)
            scores += score(policy, split, held_out, default)
            best = held_out if policy == "meta-model" and count == max(references) else best
    return {
        "table": name,
        "source": tasks.source,
        "split": split,
        "cases": scores[0].cases if scores else 0,
        "devices": len(set(tasks.device.tolist())),
        "models": len(set(tasks.model.tolist())),
        "configurations": len(set(tasks.configuration.tolist())),
        "scores": [each.as_dict() for each in scores],
        "verdicts": [] if best is None else [asdict(each) for count in (1, 3) for each in verdicts(best, count)],
        "calibration": [] if best is None else [asdict(each) for each in calibration(best)],
    }


def _policies(
    table: Table, split: Split, references: Sequence[int], trees: int, seed: int
) -> Iterator[tuple[str, Callable[[int], Learner], Sequence[int]]]:
    """Each policy's name, its learner for a number of references, and which numbers it is asked with."""
    yield "default", lambda count: table.default, (0,)
    for rule, learner in table.rules.items():
        yield f"rule: {rule}", lambda count, learner=learner: learner, (0,)  # type: ignore[misc]
    yield "best on average", lambda count: policies.average(), (0,)
    yield "static portfolio", lambda count: policies.portfolio(), (0,)
    described = [count for count in references if count]
    yield "best on the references", lambda count: policies.lookup("reference_at_size"), described
    if split == "device":
        yield "lookup", lambda count: policies.lookup("elsewhere"), references
    yield "meta-model", lambda count: policies.forest(trees, seed, table.over if count else None), references


def _default_regret(scores: Sequence[Score]) -> float | None:
    return next((each.mean_regret for each in scores if each.policy == "default" and each.measured == 1), None)


def _gate(folder: Path) -> list[dict[str, Any]]:
    """The gate on the archives that are there."""
    archives = [path for path in (folder / "help_nasbench201.npz", folder / "help_fbnet.npz") if path.exists()]
    return [{"archive": path.stem, **gated.as_dict()} for path in archives for gated in gate_by_class(path)]
