"""timm's published throughputs: image networks on GPUs and processors, by layout, precision, compiled or not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ort_metainfer.learning.public import number, one_hot, read_rows
from ort_metainfer.learning.tasks import Tasks, table

__all__ = ["load_timm"]

SOURCE = "huggingface/pytorch-image-models, results/benchmark-infer-*.csv, Apache-2.0"

SAME_CHIP = {"4090": "rtx4090", "5090": "rtx5090"}


def load_timm(folder: Path) -> Tasks:
    """The table as tasks: which precision, layout, and whether compiled; a device is a chip with a PyTorch version.

    Args:
        folder: where ``timm.csv.gz`` lies.

    Raises:
        InputsError: there is no readable table.
    """
    best: dict[tuple[str, str, str], Mapping[str, str]] = {}
    for row in read_rows(folder / "timm.csv.gz"):
        compiled = "compiled" if row["dyn"] == "1" else "eager"
        where = f"{SAME_CHIP.get(row['gpu'], row['gpu'])} pt{row['pt']}"
        key = (f"{row['model']}@{row['img']}", where, f"{row['prec']}:{row['lay']}:{compiled}")
        if number(row["sps"]) > number(best.get(key, {"sps": "0"})["sps"]):
            best[key] = row
    rows = list(best.values())
    words = [
        {
            "model": model,
            "family": re.split(r"[\d_@]", model.removeprefix("tf_"))[0],
            "device": device,
            "hardware": device.split()[0],
            "kind": "cpu" if device.startswith("i") else "gpu",
            "configuration": configuration,
        }
        for model, device, configuration in best
    ]
    figures = {name: np.array([number(row[name]) for row in rows]) for name in ("gmacs", "macts", "par")}
    logs = {f"log_{name}": np.log(np.where(each > 0, each, np.nan)) for name, each in figures.items()}
    features = {
        "log_size": logs["log_gmacs"],
        "log_activations": logs["log_macts"],
        "log_parameters": logs["log_par"],
        "pixels": np.array([number(row["img"]) for row in rows]),
        **one_hot("precision", [row["prec"] for row in rows], ("amp", "fp32", "amp_bf16", "bf16")),
        **one_hot("layout", [row["lay"] for row in rows], ("nchw", "nhwc")),
        **one_hot("compiled", [row["dyn"] for row in rows], ("1",)),
        **one_hot("kind", [word["kind"] for word in words], ("gpu", "cpu")),
        **one_hot("stem", [word["family"] for word in words], ("vit", "resnet", "efficientnet", "convnext", "swin")),
        "torch": np.array([number(row["pt"]) for row in rows]),
    }
    latency_ms = np.array([1000.0 / number(row["sps"]) for row in rows])
    return table("timm", words, latency_ms, features, SOURCE).with_choice()
