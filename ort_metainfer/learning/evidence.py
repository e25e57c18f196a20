"""What the public tables say of learned choices: every table, every split, every policy, as one document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ort_metainfer.deciders.cost_quality import cost_quality
from ort_metainfer.errors import InputsError
from ort_metainfer.learning import policies
from ort_metainfer.learning.evaluate import Score, calibration, score, verdicts
from ort_metainfer.learning.held_out import HeldOut, Learner, Split, predict_held_out
from ort_metainfer.learning.public_aihub import load_aihub
from ort_metainfer.learning.public_help import gate_by_class
from ort_metainfer.learning.public_ncnn import load_ncnn
from ort_metainfer.learning.public_timm import load_timm
from ort_metainfer.learning.record import Record
from ort_metainfer.learning.record_tasks import DEFAULT, Hold, tasks_of
from ort_metainfer.learning.tasks import Tasks

__all__ = ["TABLES", "Policy", "Table", "survey_records", "survey_tables", "surveyed"]


Policy = tuple[str, Callable[[int], Learner], Sequence[int]]
"""Its name, its learner for a number of references, and with which numbers it is asked."""


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


def survey_records(
    records: Iterable[Record],
    *,
    hold: Hold = "hardware",
    splits: Sequence[Split] = ("device", "both"),
    references: Sequence[int] = (0, 3, 10),
    rules: Mapping[str, Learner] | None = None,
    trees: int = 100,
    seed: int = 0,
    simulated: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The same of records of trials: how well what was learned on other hardware would have chosen.

    And how well the cost model predicts models held out (:func:`~ort_metainfer.deciders.cost_quality.cost_quality`).

    Args:
        records: any; verdicts are taken.
        hold: what counts as one piece of hardware.
        splits: what is held out.
        references: how many other models' records on the device describe it.
        rules: name -> what rules would have chosen.
        trees: of a forest.
        seed: of dealing and growing.
        simulated: take simulated figures instead of measured ones.
        tell: is given a line of progress now and then.
    """
    records = list(records)
    tasks = tasks_of(records, hold, simulated=simulated)
    table = Table(lambda folder: tasks, "", default=policies.in_order(DEFAULT), rules=rules or {})
    found = []
    for split in splits if len(tasks) else ():
        tell(f"records: {split} unseen, {hold} held out")
        found.append(surveyed("records", tasks, split, _policies(table, split, references, trees, seed), seed=seed))
    own = [record for record in records if record.simulated == simulated]
    return {"hold": hold, "rows": len(tasks), "tables": found, "cost_model": cost_quality(own)}


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
    table = TABLES[name]
    named = _policies(table, split, references, trees, seed)
    return surveyed(name, tasks, split, named, groups=table.groups, seed=seed)


def surveyed(
    name: str, tasks: Tasks, split: Split, named: Iterable[Policy], *, groups: int = 10, seed: int = 0
) -> dict[str, Any]:
    """One table with one kind of unseen, as plain values.

    Args:
        name: of the table.
        tasks: the table.
        split: what is held out.
        named: policies, the default first; verdicts are those of the last.
        groups: into how many groups models are dealt.
        seed: of dealing.
    """
    scores: list[Score] = []
    last: HeldOut | None = None
    for policy, learner, counts in named:
        for count in counts:
            last = predict_held_out(tasks, learner(count), split, references=count, groups=groups, seed=seed)
            scores += score(policy, split, last, _default_regret(scores))
    return {
        "table": name,
        "source": tasks.source,
        "split": split,
        "cases": max((each.cases for each in scores), default=0),
        "devices": len(set(tasks.hardware.tolist())),
        "models": len(set(tasks.model.tolist())),
        "configurations": len(set(tasks.configuration.tolist())),
        "scores": [each.as_dict() for each in scores],
        "verdicts": [] if last is None else [asdict(each) for count in (1, 3) for each in verdicts(last, count)],
        "calibration": [] if last is None else [asdict(each) for each in calibration(last)],
    }


def _policies(table: Table, split: Split, references: Sequence[int], trees: int, seed: int) -> Iterator[Policy]:
    """Each policy's name, its learner for a number of references, and which numbers it is asked with."""
    yield "default", lambda count: table.default, (0,)
    for rule, learner in table.rules.items():
        yield f"rule: {rule}", lambda count, learner=learner: learner, (0,)  # type: ignore[misc]
    yield "best on average", lambda count: policies.average(), (0,)
    yield "static portfolio", lambda count: policies.portfolio(), (0,)
    described = [count for count in references if count]
    yield "best on the references", lambda count: policies.lookup("reference_at_size", "reference"), described
    if split == "device":
        yield "lookup", lambda count: policies.lookup("elsewhere"), references
    over = "elsewhere" if split == "device" else table.over
    yield "meta-model", lambda count: policies.forest(trees, seed, over), references


def _default_regret(scores: Sequence[Score]) -> float | None:
    return next((each.mean_regret for each in scores if each.policy == "default" and each.measured == 1), None)


def _gate(folder: Path) -> list[dict[str, Any]]:
    """The gate on the archives that are there."""
    archives = [path for path in (folder / "help_nasbench201.npz", folder / "help_fbnet.npz") if path.exists()]
    return [{"archive": path.stem, **gated.as_dict()} for path in archives for gated in gate_by_class(path)]
