"""ncnn's published benchmark: networks on processors of many kinds and on GPUs, with several numbers of threads."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ort_metainfer.learning.public import family_of, number, read_rows
from ort_metainfer.learning.tasks import Floats, Tasks, Words, case_mean, case_min, table

__all__ = ["load_ncnn"]

SOURCE = "Tencent/ncnn, benchmark/README.md, BSD-3-Clause"

FAMILIES = (
    ("^squeezenet", "squeezenet"),
    ("^mobilenet_v3|^mnasnet|^proxyless|^efficientnet", "searched"),
    ("^mobilenet", "mobilenet"),
    ("^shufflenet|^nanodet|^FastestDet|^yolo-fastestv2", "shufflenet"),
    ("^resnet|^regnet", "resnet"),
    ("^yolo", "yolo"),
)
"""By backbone: the detectors named are known to sit on the network whose family they are given."""

SAME_CHIP = (
    ("(?i)rk3588", "RK3588"),
    ("(?i)rk3568", "RK3568"),
    ("(?i)rk3566", "RK3566"),
    ("(?i)rk3399", "RK3399"),
    ("BCM2712", "BCM2712"),
)
"""Boards around one chip are held out together."""

DEPTHWISE = "mobile|shuffle|mnas|proxyless|efficient|fastest|nanodet|blaze"
LARGE = "vgg|resnet50|alexnet|vision_transformer|yolov4"

GMACS = {
    "squeezenet": 0.35,
    "mobilenet": 0.57,
    "mobilenet_v2": 0.30,
    "mobilenet_v3": 0.22,
    "shufflenet": 0.14,
    "shufflenet_v2": 0.15,
    "mnasnet": 0.32,
    "proxylessnasnet": 0.32,
    "efficientnet_b0": 0.39,
    "efficientnetv2_b0": 0.72,
    "regnety_400m": 0.40,
    "blazeface": 0.03,
    "googlenet": 1.5,
    "resnet18": 1.8,
    "alexnet": 0.71,
    "vgg16": 15.5,
    "resnet50": 4.1,
    "squeezenet_ssd": 1.2,
    "mobilenet_ssd": 1.2,
    "mobilenet_yolo": 2.4,
    "mobilenetv2_yolov3": 1.0,
    "yolov4-tiny": 3.4,
    "nanodet_m": 0.36,
    "yolo-fastest-1.1": 0.12,
    "yolo-fastestv2": 0.11,
    "FastestDet": 0.13,
    "vision_transformer": 17.5,
}
"""Multiply-accumulates of one run, in units of 1e9, to about two digits, as their authors state them; those of
the SSD and YOLO detectors are estimates. The table itself says nothing of the networks."""

VENDORS = {
    "phone_soc": "Snapdragon|SM\\d|Kirin|Dimensity|QRB|Adreno",
    "rockchip": "Rockchip|RK3",
    "raspberry": "Raspberry|Broadcom",
    "nvidia": "NVIDIA|nVIDIA|RTX|GTX|Jetson|Tesla",
    "x86": "Intel|AMD|Xeon|Celeron|Atom|c5\\.4x|D64a?s v[67] Inst|Ryzen|EPYC",
    "apple": "Apple|MacBook|iPhone",
    "loongson": "Loongson",
    "risc_v": "riscv|C90|X60|TH1520",
    "server": "EPYC|KunPeng|Kunpeng|Threadripper|Xeon|AWS|Azure|FT-2000",
    "little": "A53|A55|A7 |A5 |A35",
    "gpu": "Mali|Immorta|Adreno|Radeon|GeForce|RTX|GTX|PowerVR|VideoCore|UHD|Jetson|Quadro|Tesla|M1,|M3,|BXM|MacBook",
}
"""Words in a device's own description."""


def load_ncnn(folder: Path, *, with_int8: bool = False) -> Tasks:
    """The table as tasks: how many threads, or the GPU; with int8 also which precision.

    Of runs that differ only in which cores they were bound to, the fastest counts.

    Args:
        folder: where ``ncnn.csv.gz`` lies.
        with_int8: choose between float and int8 as well, among networks that were measured in both.

    Raises:
        InputsError: there is no readable table.
    """
    best: dict[tuple[str, str, str], float] = {}
    for row in read_rows(folder / "ncnn.csv.gz"):
        threads, name = number(row["num_threads"]), re.sub("-(?=int8|ssd|yolo$)", "_", row["model"])
        latency_ms, is_int8 = number(row["avg_ms"]), name.endswith("_int8")
        if not threads > 0 or not latency_ms > 0 or (is_int8 and not with_int8):
            continue
        where = "gpu" if number(row["gpu_device"]) >= 0 else f"{threads:.0f}"
        key = (name.removesuffix("_int8"), row["device"], f"{where}:{'int8' if is_int8 else 'float'}")
        best[key] = min(latency_ms, best.get(key, np.inf))
    if with_int8:
        both = {model for model, _, configuration in best if configuration.endswith("int8")}
        best = {key: value for key, value in best.items() if key[0] in both}
    words = [_words(*key) for key in best]
    tasks = table("ncnn-int8" if with_int8 else "ncnn", words, np.array(list(best.values())), {}, SOURCE).with_choice()
    return tasks.with_features(_features(tasks))


def _words(model: str, device: str, configuration: str) -> dict[str, str]:
    return {
        "model": model,
        "family": family_of(model, FAMILIES),
        "device": device,
        "hardware": family_of(device, SAME_CHIP),
        "kind": "gpu" if re.search(VENDORS["gpu"], device) else "cpu",
        "configuration": configuration,
    }


def _features(tasks: Tasks) -> dict[str, Floats]:
    """Words of the model's and the device's names, and the configuration against what the device has."""
    gpu = np.array([each.startswith("gpu") for each in tasks.configuration])
    threads = np.array(
        [np.nan if each.startswith("gpu") else float(each.split(":")[0]) for each in tasks.configuration]
    )
    most = -case_min(tasks.case, -threads)
    clock = np.array([_clock_ghz(device) for device in tasks.device])
    cores = np.array([_cores(device) for device in tasks.device])
    return {
        "log_size": np.log([GMACS.get(model, np.nan) for model in tasks.model]),
        "depthwise": _said(DEPTHWISE, tasks.model),
        "large": _said(LARGE, tasks.model),
        "detector": _said("ssd|yolo|det|face", tasks.model),
        **{f"device_{name}": _said(words, tasks.device) for name, words in VENDORS.items()},
        "clock_ghz": clock,
        "log2_cores": np.log2(cores),
        "gpu": gpu.astype(np.float64),
        "int8": np.array([each.endswith("int8") for each in tasks.configuration], dtype=np.float64),
        "log2_threads": np.log2(threads),
        "threads_of_cores": threads / cores,
        "threads_of_most": threads / most,
        "log2_most_threads": np.log2(most),
        "offers_gpu": case_mean(tasks.case, gpu.astype(np.float64)),
        "candidates": np.bincount(tasks.case)[tasks.case].astype(np.float64),
    }


def _said(pattern: str, words: Words) -> Floats:
    return np.array([re.search(pattern, word) is not None for word in words], dtype=np.float64)


def _clock_ghz(device: str) -> float:
    """The highest clock named in a description; NaN where none is."""
    ghz = [float(each) for each in re.findall(r"([\d.]+\d)\s*G[Hh]z", device)]
    mhz = [float(each) / 1000 for each in re.findall(r"(\d{3,4})\s*M[Hh]z", device)]
    return max([*ghz, *mhz], default=float("nan"))


def _cores(device: str) -> float:
    """The cores named in a description, over all clusters; NaN where none are."""
    found = [
        float(each)
        for each in re.findall(r"(?:Hz|Zen2[^x]*|X60|Ghz|Core X)\s*[x*]\s*(\d+)|[(]x(\d+)", device)
        for each in each
        if each
    ]
    quads = 4.0 * len(re.findall("Quad Core", device))
    return sum(found) + quads or float("nan")
