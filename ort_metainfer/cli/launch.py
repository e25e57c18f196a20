"""``run``: somebody else's program, unchanged, with onnxruntime patched. Needs no click."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["launch"]

USAGE = """\
usage: ort-metainfer run SCRIPT [ARGS...]
       ort-metainfer run -m MODULE [ARGS...]

Runs a Python program as `python SCRIPT ARGS...` would, with every onnxruntime.InferenceSession it makes adapted.
Settings come from ORT_METAINFER_* variables and the settings file; `ort-metainfer doctor` shows them.
Python processes that the program starts are not patched."""


def launch(words: Sequence[str]) -> int:
    """Run a program; its own SystemExit and exceptions pass through, as they would leave ``python``.

    Returns:
        The exit status: 0 when the program ended by itself, 2 for wrong usage, 1 where a module is not found.
    """
    if list(words[:1]) in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if not words or (words[0].startswith("-") and words[0] != "-m") or (words[0] == "-m" and len(words) == 1):
        print(USAGE, file=sys.stderr)
        return 2
    return _run_module(words[1], words[2:]) if words[0] == "-m" else _run_script(words[0], words[1:])


def _run_script(script: str, arguments: Sequence[str]) -> int:
    if not os.path.exists(script):
        print(f"error: cannot open script {script!r}: no such file; name a Python file, or -m MODULE", file=sys.stderr)
        return 2
    _patch()
    sys.argv = [script, *arguments]
    if os.path.isfile(script):  # a folder or a zip file is put on sys.path by runpy itself
        _set_first_on_path(os.path.dirname(os.path.realpath(script)))
    runpy.run_path(script, run_name="__main__")
    return 0


def _run_module(module: str, arguments: Sequence[str]) -> int:
    _set_first_on_path(os.getcwd())
    _patch()
    sys.argv = [module, *arguments]
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        print(f"error: no module named {module!r} on the path; install it, or name a script file", file=sys.stderr)
        return 1
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _patch() -> None:
    from ort_metainfer.session import patch

    patch()


def _set_first_on_path(folder: str) -> None:
    """Put ``folder`` where the interpreter would have put it; its place now holds this command's own folder."""
    if not sys.flags.safe_path:
        sys.path[0] = folder
