"""The command reference: the help of every command and its options, as Markdown.

python -m clinit.cli.reference docs/commands.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from clinit.cli.main import app


def reference() -> str:
    """Return the reference of all commands, in the words of their help."""
    root: Any = typer.main.get_command(app)
    context = root.context_class(root, info_name="clinit", **root.context_settings)
    text = get_docs_for_click(obj=root, ctx=context, name="clinit", title="Commands")
    # Markdown sees no tags and no emphasis outside of code.
    parts = re.split(r"(```.*?```|`[^`]*`)", text.strip() + "\n", flags=re.DOTALL)
    return "".join(
        part if part.startswith("`") else re.sub(r"(?<!\*)\*(?![* ])|[<>]", r"\\\g<0>", part)
        for part in parts
    )


if __name__ == "__main__":
    # By way of a file of Python: a shell empties its target before the help is read.
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
