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
    """Return the reference of all commands, made from their help texts."""
    root: Any = typer.main.get_command(app)
    context = root.context_class(root, info_name="clinit", **root.context_settings)
    text = get_docs_for_click(obj=root, ctx=context, name="clinit", title="Commands")
    # Escape * and <> outside of code, so that Markdown sees neither emphasis nor tags.
    parts = re.split(r"(```.*?```|`[^`]*`)", text.strip() + "\n", flags=re.DOTALL)
    return "".join(
        part if part.startswith("`") else re.sub(r"(?<!\*)\*(?![* ])|[<>]", r"\\\g<0>", part)
        for part in parts
    )


if __name__ == "__main__":
    # Not through the shell's `>`, which empties the file before the help is complete.
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
