"""Scratch folders: gone afterwards, and swept where their process was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ort_metainfer.scratch import LEFT_BEHIND_S, scratch_folder, sweep

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="nothing is swept on Windows")


def test_a_folder_is_the_users_own_and_gone_afterwards() -> None:
    with scratch_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "0.npz").write_bytes(b"x")
    assert not folder.exists()


def test_what_a_dead_process_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    names = {"dead": child.pid, "alive": os.getpid()}
    folders = {name: tmp_path / f"ort_metainfer-{pid}-abc" for name, pid in names.items()}
    folders |= {"foreign": tmp_path / "ort_metainfer-notes-1", "other": tmp_path / f"other-{child.pid}-abc"}
    for folder in folders.values():
        folder.mkdir()
        (folder / "0.npz").write_bytes(b"x")
    (tmp_path / f"ort_metainfer-{child.pid}-link").symlink_to(folders["other"])
    soon, later = folders["dead"].stat().st_mtime, folders["dead"].stat().st_mtime + LEFT_BEHIND_S + 10
    assert sweep(tmp_path, now=soon) == []
    assert sweep(tmp_path, now=later) == [folders["dead"]]
    assert all(folder.exists() for name, folder in folders.items() if name != "dead")


def test_a_decision_sweeps_where_temporary_files_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[Path] = []
    monkeypatch.setattr("ort_metainfer.scratch.sweep", seen.append)
    with scratch_folder() as folder:
        assert folder.parent == tmp_path
    assert seen == [tmp_path]
