"""The command reference: what every command and its options say of themselves, as Markdown.

python -m clinit.cli.reference docs/commands.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from clinit.cli.help_entries import Panel, panels_of, paragraphs, usage
from clinit.cli.main import app

_TOP = 2
"""Level of the headings of commands."""


def reference() -> str:
    """Return the reference of all commands, in the words of their help."""
    root: Any = typer.main.get_command(app)
    sections = [section for each in _walk(root, None, "clinit") for section in _section(*each)]
    return "\n\n".join(["# Commands", *sections]) + "\n"


def _walk(command: Any, above: Any, name: str) -> Iterator[tuple[Any, Any]]:
    settings = command.context_settings if above is None else {}  # they hold below it too
    context = command.context_class(command, info_name=name, parent=above, **settings)
    yield command, context
    if hasattr(command, "commands"):
        for each in command.list_commands(context):
            yield from _walk(command.get_command(context, each), context, each)


def _section(command: Any, context: Any) -> Iterator[str]:
    path = context.command_path
    level = _TOP + max(len(path.split()) - 2, 0)
    if context.parent is not None:
        yield f"{'#' * level} `{path}`"
    for each in paragraphs(command):
        yield f"```console\n$ {each}\n```" if each.startswith("clinit ") else _plain(each)
    yield f"```console\n$ {usage(command, context)}\n```"
    for panel in panels_of(command, context):
        yield f"**{panel.title}**:"
        yield _list(panel)


def _list(panel: Panel) -> str:
    return "\n".join(f"* `{each.head}`: {_plain(each.text)}" for each in panel.entries)


def _plain(text: str) -> str:
    """Return a text in which Markdown sees no tags and no emphasis, its code as it is."""
    parts = re.split("(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<>])", r"\\\1", part) for part in parts
    )


if __name__ == "__main__":
    # By way of a file of Python: a shell empties its target before the help is read.
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
