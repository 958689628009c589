"""Commands that run other commands: each is printed as a user would type it, then run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable

from rich.text import Text

from clinit.cli.console import is_quiet, out
from clinit.cli.context import Context
from clinit.words import visible

Run = Callable[..., None]
"""Takes the words of a command, without `clinit`."""


def runner(context: Context) -> Run:
    """Return a function that prints a command as a user would type it, then runs it."""
    clinit = context.find_root().command

    def run(*arguments: object) -> None:
        words = [str(argument) for argument in arguments]
        out.print(Text(command_line(words), style="green"), soft_wrap=True)
        typed, sys.argv = sys.argv, ["clinit", *words]  # what the records keep as their command
        try:
            clinit.main([*(["--quiet"] if is_quiet() else []), *words], standalone_mode=False)
        finally:
            sys.argv = typed

    return run


def command_line(words: list[str]) -> str:
    """Return a command as a user would type it."""
    return visible("$ " + shlex.join(["clinit", *words]))
