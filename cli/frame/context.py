"""The context that Typer passes to a command, and helpers to run commands from other commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from clinit.cli.frame.console import is_quiet, out
from clinit.words import visible

if TYPE_CHECKING:
    from typer import Context as Context
else:
    # typer.Context is only for annotations: commands receive an object of its base class.
    Context = typer.Context.__base__

Run = Callable[..., None]
"""Runs a command; the arguments are its words without `clinit`."""


def given(context: Context, name: str) -> str | None:
    """Return the source of a parameter: `commandline`, `default_map` (a file), else None."""
    source = context.get_parameter_source(name)
    where = source.name.lower() if source else "default"
    return None if where == "default" else where


def refuse_idle(context: Context, idle: Mapping[str, str]) -> None:
    """Refuse options that have no effect; `idle` gives the reason by parameter."""
    for each in context.command.params:
        if each.name in idle and given(context, each.name) is not None:
            raise typer.BadParameter(f"{each.opts[0]} {idle[each.name]}")


def command_line() -> str:
    """Return a shell command that repeats the command line of this process from any folder."""
    return f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(['clinit', *sys.argv[1:]])}"


def runner(context: Context) -> Run:
    """Return a function that prints a command as a user would type it, then runs it."""
    clinit = context.find_root().command

    def run(*arguments: object) -> None:
        words = [str(argument) for argument in arguments]
        command = ["clinit", *words]
        out.print(Text(visible(f"$ {shlex.join(command)}"), "green"), soft_wrap=True)
        typed, sys.argv = sys.argv, command  # records store sys.argv as their command
        try:
            clinit.main([*(["--quiet"] if is_quiet() else []), *words], standalone_mode=False)
        finally:
            sys.argv = typed

    return run
