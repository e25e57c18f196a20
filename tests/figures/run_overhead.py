"""run() of a one-node model, ours over plain onnxruntime's, interleaved in one process: run_overhead.py."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ort_metainfer

BLOCKS, RUNS = 61, 3000


def block_us(session: Any, feed: dict[str, Any]) -> float:
    run, started = session.run, time.perf_counter()
    for _ in range(RUNS):
        run(None, feed)
    return (time.perf_counter() - started) / RUNS * 1e6


def show(name: str, ratios: list[float]) -> None:
    ordered = sorted(ratios)  # ranks 23 and 39 of 61 enclose the median in 95% of cases
    print(f"{name} {median(ratios):.4f} [{ordered[22]:.4f}, {ordered[38]:.4f}]")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
        path = str(Path(folder) / "one.onnx")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
        plain = [onnxruntime.InferenceSession(path) for _ in range(2)]
        settings = ort_metainfer.Settings(cache_dir=folder)
        ours = [ort_metainfer.InferenceSession(path, metainfer=settings) for _ in range(2)]
        with ort_metainfer.patch():
            patched = [onnxruntime.InferenceSession(path) for _ in range(2)]
    feed, rounds = {"x": np.ones((1, 4), np.float32)}, []
    for _ in range(BLOCKS):
        sessions = [*plain, *ours, *patched]
        took = {id(session): block_us(session, feed) for session in random.sample(sessions, len(sessions))}
        rounds.append([took[id(session)] for session in sessions])
    print(f"plain run {median(times[0] for times in rounds):.2f} us")
    show("ours/plain", [(t[2] + t[3]) / (t[0] + t[1]) for t in rounds])
    show("patched/plain", [(t[4] + t[5]) / (t[0] + t[1]) for t in rounds])
    show("plain/plain", [t[0] / t[1] for t in rounds])


if __name__ == "__main__":
    main()
