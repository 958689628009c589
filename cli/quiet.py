"""`-q`, `--quiet`: before a command or behind its name, for every command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from clinit.cli.console import hush

HELP = "Print no progress and no notes; warnings, errors and results remain."


def take_quiet(command: Any) -> None:
    """Let a command take the option, or all commands below it where it is a group."""
    below = getattr(command, "commands", None)
    if below is None:
        command.params.append(_option())
        return
    for each in below.values():
        take_quiet(each)


def _option() -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(_any_command)
    return typer.main.get_command(app).params[0]


def _heed(wanted: bool) -> bool:
    if wanted:
        hush(wanted=True)
    return wanted


def _any_command(
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", callback=_heed, is_eager=True, expose_value=False, help=HELP),
    ] = False,
) -> None: ...
