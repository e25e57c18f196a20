"""What onnxruntime 1.23, the oldest that the tests are run with, fails at by itself; 1.32 does not."""

from __future__ import annotations

import onnxruntime

__all__ = ["IS_OLDEST", "failing_of_oldest"]

IS_OLDEST = onnxruntime.__version__.startswith("1.23.")

FAILINGS = {
    "FusedMatMul(1)": "its optimiser makes a FusedMatMul of doubles, for which it has no kernel",
    "implementation for QuantizeLinear(23)": "it has no QuantizeLinear of opset 23",
    "graph_utils::RemoveNode": "its optimiser trips over a Clip before QuantizeLinear",
    "Rank of input and output tensor should be same": "its Resize does not know sizes of some axes only",
    "Pad should be smaller than kernel": "its pools refuse a padding as large as the window",
    "Size of scale and bias (if provided) must match": "its optimiser makes norms of scales that they do not take",
    "gamma is expected to have 1 dimension": "its optimiser fuses sums into norms over several axes",
    "Missing Input: m": "its optimiser fuses sums into norms whose statistics are used",
}
"""Part of the message of onnxruntime 1.23.2 -> what that comes from."""


def failing_of_oldest(error: Exception) -> str | None:
    """Which known failing of the oldest onnxruntime an error is; None for all others, and with a newer one."""
    told = next((why for words, why in FAILINGS.items() if words in str(error)), None)
    return f"onnxruntime {onnxruntime.__version__}: {told}" if told and IS_OLDEST else None
