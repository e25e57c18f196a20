"""The ways in which a session of this package must look like plain onnxruntime's."""

from __future__ import annotations

from pathlib import Path

import pytest

STRATEGY = """
[strategy.session_options]
graph_optimization_level = "extended"
intra_op_num_threads = 1

[strategy.session_config]
"session.intra_op.allow_spinning" = "0"
"""
"""A strategy that any session on the CPU can take without a bit of its outputs changing."""

MODES = ("off", "strategy")


def strategy_file(folder: Path, strategy: str = STRATEGY) -> Path:
    """A strategy as a file."""
    file = folder / "strategy.toml"
    file.write_text(strategy)
    return file


def switch_to(mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Switch by environment, so that the calls of ours and of onnxruntime are the same."""
    if mode == "off":
        monkeypatch.setenv("ORT_METAINFER_MODE", "off")
    else:
        monkeypatch.setenv("ORT_METAINFER_STRATEGY", str(strategy_file(folder)))
    return mode
