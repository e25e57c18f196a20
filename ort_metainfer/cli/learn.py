"""``learn``: what trials taught: records out and in, what people change, and further commands."""

from __future__ import annotations

from importlib import import_module

import click

__all__ = ["learn"]

COMMANDS = {  # name of the command: module of this package that holds it, as a function of this name
    "export": ("learn_records", "export_records"),
    "import": ("learn_records", "import_records"),
    "clear": ("learn_records", "clear_records"),
    "exceptions": ("learn_exceptions", "exceptions"),
    "train": ("learn_train", "train"),
    "evaluate": ("learn_evaluate", "evaluate"),
}


class Lessons(click.Group):
    """Loads a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module that holds ``cmd_name``."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"ort_metainfer.cli.{module}"), name)
        return command


@click.command(cls=Lessons)
def learn() -> None:
    """Carry records of trials from machine to machine, and see what they teach."""
