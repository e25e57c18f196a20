"""The group of commands: what they share is how an error is told and with which exit status."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import IO, Any

import click

from ort_metainfer.errors import MetainferError, SettingsError

__all__ = ["application"]

COMMANDS = {  # name of the command: module of this package that holds it under the same name
    "tune": "tune",
    "bench": "bench",
    "explain": "explain",
    "devices": "devices",
    "probe": "probe",
    "estimate": "estimate",
    "cache": "cache",
    "inputs": "inputs",
    "doctor": "doctor",
    "demo": "demo",
    "compile": "compile",
    "learn": "learn",
}


class Failure(click.ClickException):
    """What went wrong, in one line on stderr, without a traceback."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        click.echo(f"error: {self.format_message()}", file=file or sys.stderr)


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Every exception class of onnxruntime: what it raises for the caller's own mistakes (a file that is no model)."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    classes = [value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)]
    return tuple(classes)


class Usage(Failure):
    """The same, where the words on the command line are at fault."""

    exit_code = 2


class Application(click.Group):
    """Loads a command's module when it is asked for, and turns the errors we know into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order a newcomer meets them; ``run`` is not a click command (see ``__main__``)."""
        return [*COMMANDS, "run"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module that holds ``cmd_name``."""
        if cmd_name == "run":
            return click.Command("run", help="Run a Python program with onnxruntime patched: run SCRIPT ARGS...")
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"ort_metainfer.cli.{COMMANDS[cmd_name]}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; 1 is its failure, 2 wrong usage, a bad setting included."""
        known: tuple[type[Exception], ...] = (MetainferError, OSError, *onnxruntime_errors())
        try:
            return super().invoke(ctx)
        except SettingsError as error:
            raise Usage(_line(error)) from error
        except BrokenPipeError:  # the reader has gone; click ends quietly
            raise
        except known as error:
            raise Failure(_line(error)) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


@click.command(
    cls=Application,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fit ONNX models to the hardware at hand; see the README for a first tour. Try: ort-metainfer demo",
)
@click.version_option(package_name="ort-metainfer")
def application() -> None:
    """All commands."""
