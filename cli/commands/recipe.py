"""`clinit recipe`: files of options for the paper's tables and for our comparison of starts."""

from __future__ import annotations

from typing import Annotated

import typer

from clinit.cli.frame.config import recipe, recipe_names
from clinit.cli.frame.console import out, say

app = typer.Typer(
    no_args_is_help=True,
    help="Settings of the paper's tables and of the comparison of starts, for --config.",
)


@app.command(name="list")
def list_() -> None:
    """List the recipes."""
    from clinit.analysis.report.table import Column, Table

    titles = [[name, recipe(name).partition("\n")[0].removeprefix("# ")] for name in recipe_names()]
    out.print(Table([Column("recipe"), Column("contents", "text")], [titles]))
    say("Commands and comments: clinit recipe show NAME")


@app.command()
def show(name: Annotated[str, typer.Argument(help="Name of the recipe.")]) -> None:
    """Print a recipe: the commands in order, ambiguities of the paper, and the settings.

    clinit recipe show table2-last-layer > mine.toml
    """
    from rich.text import Text

    out.print(Text(recipe(name)), end="", soft_wrap=True)
