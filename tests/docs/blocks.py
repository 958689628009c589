"""The fenced blocks of the pages, and what the comment in front of a block says about it.

<!-- not run: why -->      nobody runs it; the reason is for the reader
<!-- run -->               a block of commands that is run, not only parsed
<!-- file: PATH -->        the content of a file of the source, for `docs/extend.md`
<!-- change: PATH -->      lines of such a file that change
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
GENERATED = "commands.md"
"""The command reference: its blocks are usage lines of typer."""

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^>]*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: str
    """Name of the page."""
    line: int
    language: str
    text: str
    mark: str
    """What the comment in front of it says; empty without one."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def is_left_out(self) -> bool:
        """Whether a reason is given why it is not run."""
        return self.mark.startswith("not run")


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        mark = found["mark"] or ""
        yield Block(page.name, line, found["language"], found["text"], mark)


def all_blocks() -> list[Block]:
    """Return the blocks of all pages but the command reference."""
    return [block for page in PAGES if page.name != GENERATED for block in blocks_of(page)]


RUN_IN_A_COPY = "extend.md"
"""Its blocks run in a copy of the source: tests/docs/test_extend.py."""


def is_run(block: Block) -> bool:
    """Return whether a block is run with its page: Python, and commands that say so."""
    if block.is_left_out or block.page == RUN_IN_A_COPY:
        return False
    return block.language == "python" or block.mark == "run"
