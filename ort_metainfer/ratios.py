"""Ratios in words, with digits enough also where one session is hundreds of times slower than the other."""

from __future__ import annotations

__all__ = ["ratio_text", "speedup_words"]

SMALL = 0.1
"""Below it two decimals say little, and people think in "times slower"."""


def ratio_text(ratio: float) -> str:
    """``2.54``, and ``0.0033`` for what two decimals would show as nothing."""
    return f"{ratio:.2f}" if ratio >= SMALL or ratio <= 0 else f"{ratio:.2g}"


def speedup_words(ratio: float, low: float, high: float) -> str:
    """``2.54x [2.14, 2.83]``; ``0.0033x [0.0032, 0.0034] (300 times slower)``."""
    words = f"{ratio_text(ratio)}x [{ratio_text(low)}, {ratio_text(high)}]"
    return words if not 0 < ratio < SMALL else f"{words} ({1 / ratio:.3g} times slower)"
