"""`clinit recipe`: settings of the paper's tables, and of our own evidence, as files of options."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli import completion
from clinit.cli.console import out, say
from clinit.errors import ConfigFileError
from clinit.files.text import TextFileError, read_text
from clinit.words import closest

_FOLDER = files("clinit.cli") / "recipes"


def names() -> list[str]:
    """Return the names of the recipes in alphabetical order: those of tables by their numbers."""
    return sorted(path.name.removesuffix(".toml") for path in _FOLDER.iterdir())


def recipe(name: str) -> str:
    """Return the text of a recipe.

    Raises:
        ConfigFileError: If there is none of that name.
    """
    if name not in names():
        raise ConfigFileError(f"there is no recipe {name!r}", remedy=_proposal(name))
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def open_text(path: Path) -> tuple[str, str]:
    """Return how messages call a file and its text; or a recipe's where there is no such file.

    Raises:
        ConfigFileError: If there is neither.
    """
    if not path.is_file() and str(path) in names():
        return f"the recipe {path}", recipe(str(path))
    try:
        return str(path), read_text(path)
    except TextFileError as error:
        raise ConfigFileError(
            f"cannot read the options in {path}: {error}",
            remedy=_proposal(path.name.removesuffix(".toml")),
        ) from error


def _proposal(name: str) -> str:
    if (found := closest(name, names())) is not None:
        return f"Did you mean the recipe {found!r}?"
    return "Give a TOML file, or a recipe of `clinit recipe list`."


app = typer.Typer(
    no_args_is_help=True,
    help="Settings of the paper's tables and of the comparison of starts, for --config.",
)


@app.command(name="list")
def list_() -> None:
    """List the recipes."""
    from rich.table import Table
    from rich.text import Text

    table = Table("recipe", "what it is")
    for name in names():
        title = recipe(name).partition("\n")[0].removeprefix("# ")
        table.add_row(name, Text(title))
    out.print(table)
    say("Commands and comments: clinit recipe show NAME")


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(help="Name of the recipe.", autocompletion=completion.recipes),
    ],
) -> None:
    """Print a recipe: the commands in order, what the paper leaves open, the settings.

    clinit recipe show table2-last-layer > mine.toml
    """
    from rich.text import Text

    out.print(Text(recipe(name)), end="", soft_wrap=True)
