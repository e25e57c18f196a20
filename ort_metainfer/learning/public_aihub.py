"""Qualcomm AI Hub's published latencies: phones', cars' and PCs' chips under several runtimes and precisions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ort_metainfer.learning.public import family_of, number, one_hot, read_rows
from ort_metainfer.learning.tasks import Floats, Tasks, case_mean, case_min, table

__all__ = ["load_aihub"]

SOURCE = "qualcomm/ai-hub-models v0.47.0 (2026-02), perf.yaml and info.yaml files, BSD-3-Clause"

FAMILIES = (
    ("yolo", "yolo"),
    ("mediapipe", "mediapipe"),
    ("whisper", "whisper"),
    ("opus_mt", "opus_mt"),
    ("detr_|_detr", "detr"),
    ("^deeplab", "deeplab"),
    ("^resnet|resnext|wideresnet|^fcn_resnet", "resnet"),
    ("^ffnet", "ffnet"),
    ("^efficient(net|former)", "efficientnet"),
    ("^efficientvit", "efficientvit"),
    ("^mobilenet|^mnasnet|^posenet_mobilenet", "mobilenet"),
    ("stable_diffusion|controlnet", "stable_diffusion"),
    ("^centernet", "centernet"),
    ("^regnet", "regnet"),
    ("depth_anything|^midas", "depth"),
    ("hrnet", "hrnet"),
    ("bert|electra|nomic", "bert"),
    ("sam2?$|^sam|^fastsam|edgetam", "sam"),
    ("^rtm", "rtm"),
    ("^vit$|^beit|video_mae", "vit"),
    ("^convnext", "convnext"),
    ("^levit|^cvt", "levit"),
)
"""A stem in a model's name and the family it tells: they share a backbone, an author's code base or whole parts."""

SAME_CHIP = {"qualcomm-qcs8275-proxy": "qualcomm-sa7255p"}
"""Rows of the one are, figure for figure, those of the other: a proxy for it."""

KINDS = (("x2?-elite$", "compute"), ("snapdragon-", "phone"), ("qcs8450", "xr"), ("-sa[78]", "auto"))

BITS = {"float": (16.0, 16.0), "w8a8": (8.0, 8.0), "w8a16": (8.0, 16.0), "w16a16": (16.0, 16.0), "w4": (4.0, 16.0)}
"""Precision -> bits of weights and of activations; float runs as float16 on these NPUs."""

RUNTIMES = ("tflite", "qnn_dlc", "onnx", "precompiled_qnn_onnx", "qnn_context_binary")

USES = (
    "Image Classification",
    "Object Detection",
    "Semantic Segmentation",
    "Text Generation",
    "Pose Estimation",
    "Speech Recognition",
    "Video Classification",
    "Image Generation",
)


def load_aihub(folder: Path, *, probe: str = "layers") -> Tasks:
    """The table as tasks: which runtime in which precision.

    Args:
        folder: where ``aihub.csv.gz`` lies.
        probe: what compiling a candidate told: ``none``; ``share``, the share of layers on CPU and GPU; ``layers``,
            how many layers the compiled graph has besides.

    Raises:
        InputsError: there is no readable table.
    """
    rows = [row for row in read_rows(folder / "aihub.csv.gz") if number(row["latency_ms"]) > 0]
    offered = Counter(map(_case, rows))
    rows = [row for row in rows if offered[_case(row)] > 1]
    words = [_words(row) for row in rows]
    latency_ms = np.array([number(row["latency_ms"]) for row in rows])
    tasks = table("aihub", words, latency_ms, _static(rows, [word["kind"] for word in words]), SOURCE)
    tasks = tasks.with_features(_offered(tasks, rows))
    return tasks if probe == "none" else tasks.with_features(_probed(tasks, rows, with_layers=probe == "layers"))


def _case(row: Mapping[str, str]) -> tuple[str, str, str]:
    return row["model"], row["component"], row["chipset"]


def _words(row: Mapping[str, str]) -> dict[str, str]:
    return {
        "model": f"{row['model']}/{row['component']}",
        "family": family_of(row["model"], FAMILIES),
        "device": row["chipset"],
        "hardware": SAME_CHIP.get(row["chipset"], row["chipset"]),
        "kind": next((kind for stem, kind in KINDS if re.search(stem, row["chipset"])), "iot"),
        "configuration": f"{row['runtime']}:{row['precision']}",
    }


def _static(rows: Sequence[Mapping[str, str]], kinds: Sequence[str]) -> dict[str, Floats]:
    """Of the model: parameters, input elements, bytes of its float file, its use; of the candidate: its words."""
    bits = [BITS.get(re.split("_mixed|_with", row["precision"])[0], (8.0, 16.0)) for row in rows]
    return {
        "log_parameters": _log([number(row["params"]) for row in rows]),
        "log_input_elements": _log([_elements(row["resolution"]) for row in rows]),
        "log_file_bytes": _log([_bytes(row["size_float"]) for row in rows]),
        **one_hot("use", [row["use_case"] for row in rows], USES),
        **one_hot("domain", [row["domain"] for row in rows], ("Computer Vision", "Audio", "Generative AI")),
        **one_hot("runtime", [row["runtime"] for row in rows], RUNTIMES),
        **one_hot("kind", kinds, ("phone", "xr", "compute", "auto", "iot")),
        "weight_bits": np.array([pair[0] for pair in bits]),
        "activation_bits": np.array([pair[1] for pair in bits]),
        "mixed": np.array(["mixed" in row["precision"] for row in rows], dtype=np.float64),
    }


def _offered(tasks: Tasks, rows: Sequence[Mapping[str, str]]) -> dict[str, Floats]:
    """Which candidates there are to choose from, which is known before any is timed."""
    flags = {f"offers_{name}": [row["runtime"] == name for row in rows] for name in RUNTIMES[:4]}
    flags |= {f"offers_{name}": [row["precision"] == name for row in rows] for name in ("float", "w8a8", "w8a16")}
    shares = {name: case_mean(tasks.case, np.array(flag, dtype=np.float64)) for name, flag in flags.items()}
    return {"candidates": np.bincount(tasks.case)[tasks.case].astype(np.float64), **shares}


def _probed(tasks: Tasks, rows: Sequence[Mapping[str, str]], *, with_layers: bool) -> dict[str, Floats]:
    """What compiling each candidate of the case told: layers off the NPU, and how many there are."""
    total = np.array([number(row["layers_total"]) for row in rows])
    cpu = np.nan_to_num(np.array([number(row["layers_cpu"]) for row in rows])) / total
    gpu = np.nan_to_num(np.array([number(row["layers_gpu"]) for row in rows])) / total
    found = {
        "cpu_share": cpu,
        "gpu_share": gpu,
        "cpu_share_over_least": cpu - case_min(tasks.case, cpu),
        "cpu_share_of_case": case_mean(tasks.case, cpu),
    }
    return {**found, **_layers(tasks, rows, np.log(total), cpu)} if with_layers else found


def _layers(tasks: Tasks, rows: Sequence[Mapping[str, str]], layers: Floats, cpu: Floats) -> dict[str, Floats]:
    """Log layers of the compiled graph, against the case, against its float twin and its siblings in precision."""
    runtime = np.array([row["runtime"] for row in rows])
    precision = np.array([row["precision"] for row in rows])
    mean = case_mean(tasks.case, layers)
    found = {
        "log_layers": layers,
        "log_layers_of_case": mean,
        "log_layers_over_case": layers - mean,
        "log_layers_over_float": layers
        - _group_mean([tasks.case, runtime], np.where(precision == "float", layers, np.nan)),
        "log_layers_over_precision": layers - _group_mean([tasks.case, precision], layers),
    }
    for name in ("tflite", "onnx", "qnn_dlc"):
        found[f"log_layers_{name}"] = case_mean(tasks.case, np.where(runtime == name, layers, np.nan)) - mean
        found[f"cpu_share_{name}"] = case_mean(tasks.case, np.where(runtime == name, cpu, np.nan))
    for name in ("float", "w8a8", "w8a16"):
        found[f"log_layers_{name}"] = case_mean(tasks.case, np.where(precision == name, layers, np.nan)) - mean
    return found


def _group_mean(keys: Sequence[NDArray[Any]], values: Floats) -> Floats:
    words = ["\0".join(map(str, pair)) for pair in zip(*keys, strict=True)]
    return case_mean(np.unique(words, return_inverse=True)[1], values)


def _log(values: Sequence[float]) -> Floats:
    """Natural logarithm; NaN of what is not positive."""
    known = np.array(values, dtype=np.float64)
    return np.log(np.where(known > 0, known, np.nan))


def _elements(resolution: str) -> float:
    """``480x640`` as 307,200; NaN where no number stands there."""
    sizes = [float(size) for size in re.findall(r"\d+", resolution)]
    return float(np.prod(sizes)) if sizes else float("nan")


def _bytes(size: str) -> float:
    """``251M`` in bytes; NaN where no number stands there."""
    found = re.match(r"([\d.]+)\s*([KMG]?)", size)
    return float(found[1]) * {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}[found[2]] if found else float("nan")
