"""The command reference: what every command and its options say of themselves, as Markdown.

python -m clinit.cli.reference > docs/commands.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from clinit.cli.main import app


def reference() -> str:
    """Return the reference of all commands, as `typer ... utils docs` writes it."""
    root: Any = typer.main.get_command(app)
    _shorten(root)
    context = root.context_class(root, info_name="clinit")
    text = get_docs_for_click(obj=root, ctx=context, name="clinit", title="Commands")
    return text.strip() + "\n"


def _shorten(command: Any) -> None:
    """Let lists of commands show first paragraphs, where typer would cut after 45 letters."""
    command.short_help = " ".join(command.help.partition("\n\n")[0].split())
    for child in getattr(command, "commands", {}).values():
        _shorten(child)


if __name__ == "__main__":
    # By way of a file of Python: a shell empties its target before the help is read.
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
