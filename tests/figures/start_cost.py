"""What a cached start costs beyond plain onnxruntime's: start_cost.py MODEL [PAIRS]. On a quiet machine.

Pairs of fresh processes in alternating order; the model is decided for first. Prints milliseconds.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

import ort_metainfer

FIRST = (
    "import time, {0}\nt = time.perf_counter()\ns = {0}.InferenceSession({1!r})\nprint((time.perf_counter() - t) * 1e3)"
)
LATER = """
import time, onnxruntime, ort_metainfer
for turn in range(9):
    took = {}
    for module in (onnxruntime, ort_metainfer)[:: 1 - 2 * (turn % 2)]:
        t = time.perf_counter()
        session = module.InferenceSession(MODEL)
        took[module] = (time.perf_counter() - t) * 1e3
        del session
    if turn:
        print(took[ort_metainfer] - took[onnxruntime])
"""
IMPORT = "import time\nt = time.perf_counter()\nimport {0}\nprint((time.perf_counter() - t) * 1e3)"


def printed(code: str) -> list[float]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def differences(template: str, model: str, pairs: int) -> tuple[list[float], list[float]]:
    """Ours minus plain, and ours over plain, pair by pair."""
    minus, over = [], []
    for pair in range(pairs):
        took = {}
        for module in ("onnxruntime", "ort_metainfer")[:: 1 - 2 * (pair % 2)]:
            took[module] = printed(template.format(module, model))[0]
        minus.append(took["ort_metainfer"] - took["onnxruntime"])
        over.append(took["ort_metainfer"] / took["onnxruntime"])
    return minus, over


def main(model: str, pairs: int = 31) -> None:
    for _ in range(2):
        session = ort_metainfer.InferenceSession(model)
    assert session.adaptation is not None and session.adaptation.cache == "hit", session.adaptation
    print(f"import: {median(differences(IMPORT, model, pairs)[0]):+.1f} ms")
    minus, over = differences(FIRST, model, pairs)
    print(f"first session of a process: {median(minus):+.2f} ms, ratio {median(over):.3f}, {pairs} pairs")
    later = [gap for _ in range(pairs) for gap in printed(LATER.replace("MODEL", repr(model)))]
    print(f"later sessions: {median(later):+.2f} ms")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
