"""``doctor``: whether everything that deciding needs is there, and what to do where it is not."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ort_metainfer.cli.arguments import as_json
from ort_metainfer.cli.machine import state_lines
from ort_metainfer.cli.output import console, only_json, print_json
from ort_metainfer.settings import FIELDS, config_file, resolve, sources

if TYPE_CHECKING:
    from ort_metainfer.providers import Provider

__all__ = ["Check", "doctor"]

PACKAGES = (
    "ort-metainfer",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "numpy",
    "sqlitedict",
    "filelock",
    "platformdirs",
    "packaging",
    "tomli-w",
)
"""Itself, and what it demands beside onnxruntime."""

CHILD_TIMEOUT_S = 60
DEVICES_TIMEOUT_S = 30


@dataclass(frozen=True)
class Check:
    """One line: ``ok`` is False where something must be mended, None where it only informs."""

    topic: str
    name: str
    ok: bool | None
    detail: str


@click.command()
@as_json
def doctor(as_json: bool) -> None:
    """Check versions, settings, cache directory, providers, machine and child processes. Exit status 1: mend."""
    with only_json(as_json):
        checks = [check for examine in EXAMINATIONS for check in examine()]
    if as_json:
        print_json(
            {"ok": all(check.ok is not False for check in checks), "checks": [asdict(check) for check in checks]}
        )
    else:
        marks = {True: "ok", False: "MEND", None: "-"}
        lines = [f"{marks[check.ok]:<5}{check.topic:<10}{check.name:<28}{check.detail}" for check in checks]
        console().print("\n".join(line.rstrip() for line in lines))
    if any(check.ok is False for check in checks):
        sys.exit(1)


def _versions() -> Iterator[Check]:
    import onnxruntime

    yield Check("version", "python", None, f"{platform.python_version()} on {platform.platform()}")
    yield Check("version", "onnxruntime", None, f"{onnxruntime.__version__}, {onnxruntime.get_build_info()}")
    for name in PACKAGES:
        try:
            yield Check("version", name, None, version(name))
        except PackageNotFoundError:
            from_checkout = name == "ort-metainfer"
            detail = "runs from a checkout" if from_checkout else "not installed: pip install ort-metainfer brings it"
            yield Check("version", name, None if from_checkout else False, detail)


def _settings() -> Iterator[Check]:
    settings, problems = resolve()
    origin = sources()
    file = config_file()
    yield Check("settings", "file", None, f"{file}{'' if file.is_file() else ' (not there)'}")
    for name in FIELDS:
        yield Check("settings", name, None, f"{getattr(settings, name)} ({origin[name]})")
    for problem in problems:
        yield Check("settings", "not allowed", False, str(problem))


def _cache() -> Iterator[Check]:
    from ort_metainfer.places import cache_directory

    folder = cache_directory(resolve()[0])
    yield Check("cache", "directory", *_writable(folder))


def _writable(folder: Path) -> tuple[bool, str]:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            return True, f"{folder} is writable"
    except OSError as error:
        return False, f"{folder}: {error.strerror or error}; set ORT_METAINFER_CACHE_DIR to a folder of yours"


def _providers() -> Iterator[Check]:
    from ort_metainfer.providers import all_providers, without_adapter

    for provider in all_providers():
        found = provider.availability()
        name = provider.name.removesuffix("ExecutionProvider")
        failure = _why_it_does_not_load(provider.name) if found.usable and found.how == "plug-in" else None
        detail = (failure or found.reason) + _proof(provider)
        yield Check("provider", name, False if failure else True if found.usable else None, detail)
    for name in without_adapter():
        detail = "onnxruntime has it, no adapter here knows it: left as your program sets it"
        yield Check("provider", name.removesuffix("ExecutionProvider"), None, detail)


def _proof(provider: Provider) -> str:
    """What an adapter's tests ran on, where that was no such hardware."""
    if provider.run_on_hardware:
        return ""
    return f" [not run on hardware{'; run on ' + provider.proven if provider.proven else ''}]"


def _why_it_does_not_load(name: str) -> str | None:
    """What is wrong with an installed plug-in, found out in a process that it may take down; None where it loads."""
    from ort_metainfer.errors import MetainferError
    from ort_metainfer.trials.errand import run_errand

    try:
        answer = run_errand("devices", {"providers": [name]}, time.monotonic() + DEVICES_TIMEOUT_S)
    except MetainferError as error:
        return str(error)
    return next((reason for _, reason in answer["refused"]), None)


def _machine() -> Iterator[Check]:
    from ort_metainfer.hardware.accelerator_state import has_nvidia_driver, nvml
    from ort_metainfer.hardware.devices import device_string
    from ort_metainfer.hardware.state import observe

    yield Check("machine", "device", None, device_string())
    for name, detail in state_lines(observe()):
        yield Check("machine", name, None, detail)
    if has_nvidia_driver() and nvml() is None:
        hint = "NVIDIA's clocks and heat are not read: pip install 'ort-metainfer[nvidia]'"
        yield Check("machine", "accelerator", None, hint)


def _children() -> Iterator[Check]:
    """Trials run in processes of this interpreter: can one start, and import what it needs?"""
    command = [sys.executable, "-c", "import onnxruntime, ort_metainfer"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("trials", "child process", False, f"{sys.executable}: {error}; models run as plain onnxruntime")
        return
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    yield Check("trials", "child process", done.returncode == 0, "starts" if done.returncode == 0 else last)


EXAMINATIONS: tuple[Callable[[], Iterator[Check]], ...] = (
    _versions,
    _settings,
    _cache,
    _providers,
    _machine,
    _children,
)
