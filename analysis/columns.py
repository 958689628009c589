"""Tables for the terminal, built from columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Kind = Literal["name", "setting", "text", "number"]
Cells = Sequence[str | Text]
"""A line of a table, one cell per column; a `str` is shown letter by letter, without markup."""


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a column, and how its cells are set."""

    heading: str
    kind: Kind = "name"
    """Names and numbers keep to one line, numbers to the right. Settings and texts are wrapped; a
    word that is too long is folded in a setting and shortened in a text."""


def table_of(
    columns: Iterable[Column],
    sections: Iterable[Iterable[Cells]],
    *,
    title: str | Text | None = None,
    caption: str | None = None,
    is_framed: bool = False,
    is_tight: bool = False,
) -> Table:
    """Return a table.

    Args:
        columns: From left to right.
        sections: Groups of lines; they are set apart.
        title: Above the table, on the left.
        caption: Below the table, on the left.
        is_framed: Whether lines are drawn around the table and between its columns; where it is
            too wide, all columns then give way alike.
        is_tight: Whether one blank instead of two is between columns.
    """
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    if not is_framed:
        table.box, table.padding = box.SIMPLE_HEAD, (0, 0 if is_tight else 1, 0, 0)
        table.pad_edge = table.show_edge = False
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.kind == "number" else "left"
        table.add_column(
            Text(column.heading, justify=justify),
            justify=justify,
            no_wrap=column.kind in ("name", "number") and not is_framed,
            overflow="fold" if column.kind == "setting" else "ellipsis",
        )
    for section in sections:
        for cells in section:
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
        table.add_section()
    return table


def width_of(table: Table) -> int:
    """Return how many columns of a terminal a table takes where nothing is shortened."""
    console = Console(width=1000)
    return Measurement.get(console, console.options, table).maximum
