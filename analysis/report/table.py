"""Tables for the terminal that fit its width: names in columns or in words, some numbers left out.

No column is squeezed. What takes too much room is written closer together first; then the least
needed numbers are left out; and if too few would be left, one column of words names the runs,
broken into lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from clinit.analysis.report.run import RunSummary
    from clinit.analysis.report.settings import RunNames

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


FEWEST = 6
"""Numbers that names in columns must leave room for: with fewer, words name the runs."""
NARROWEST, WIDEST = 24, 60
"""Least and greatest width of the column of words."""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The numbers of a run, or of runs that differ only in their seed."""

    run: RunSummary
    """The first of them."""
    numbers: Cells
    before: Cells = ()
    """What stands to the left of the name."""
    behind: Cells = ()
    """What stands between the name and the numbers."""


Sections = Sequence[Sequence[Line]]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The headings above the parts of a line."""

    numbers: Sequence[Column]
    before: Sequence[Column] = ()
    behind: Sequence[Column] = ()
    needed: Sequence[int] | None = None
    """Places of the numbers, the most needed first; from left to right where it is None."""

    def fitting(self, count: int) -> tuple[int, ...]:
        """Return the places of the `count` numbers that are needed most, from left to right."""
        needed = range(len(self.numbers)) if self.needed is None else self.needed
        return tuple(sorted(needed[:count]))


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A table, and what it has no room for."""

    table: Table
    columns: Columns
    shown: tuple[int, ...]
    """Places of the numbers that are in it."""
    width: int
    """What it had to fit."""

    @property
    def left_out(self) -> str:
        """Headings of the numbers that are left out; empty where there are none."""
        headings = [column.heading.split("\n")[0] for column in self.columns.numbers]
        return ", ".join(word for place, word in enumerate(headings) if place not in self.shown)


def fitted_table(
    choices: Sequence[Sections], names: RunNames, columns: Columns, width: int
) -> Fitted:
    """Return a table that is at most `width` columns wide, if one number fits beside the names.

    Args:
        choices: The lines, in groups that are set apart; the widest way to write them first.
        names: Those of the runs of the lines.
        columns: Those of the lines.
        width: That of the terminal.
    """
    every = len(columns.numbers)

    def fitted(table: Table, shown: int) -> Fitted:
        return Fitted(table, columns, columns.fitting(shown), width)

    for sections in choices:
        for is_tight in (False, True):
            table = _in_columns(sections, names, columns, every, is_tight=is_tight)
            if width_of(table) <= width:
                return fitted(table, every)
    narrow = choices[-1]
    for shown in range(every - 1, min(FEWEST, every) - 1, -1):
        table = _in_columns(narrow, names, columns, shown, is_tight=True)
        if width_of(table) <= width:
            return fitted(table, shown)
    for shown in range(every, 0, -1):
        table = _in_words(narrow, names, columns, shown, width)
        if width_of(table) <= width or shown == 1:
            return fitted(table, shown)
    raise AssertionError("a table has at least one number")


def _in_columns(
    sections: Sections, names: RunNames, columns: Columns, shown: int, *, is_tight: bool
) -> Table:
    return _table(
        sections,
        names.columns,
        [[names.cells(line.run) for line in section] for section in sections],
        columns,
        shown,
        is_tight=is_tight,
    )


def _in_words(
    sections: Sections, names: RunNames, columns: Columns, shown: int, width: int
) -> Table:
    """Return a table whose column of words takes what the numbers leave."""
    nothing = [[[""] for _ in section] for section in sections]
    rest = _table(sections, [Column("")], nothing, columns, shown, is_tight=True)
    room = min(WIDEST, max(NARROWEST, width - width_of(rest)))
    words = [
        [["\n".join(textwrap.wrap(names.words(line.run), room))] for line in section]
        for section in sections
    ]
    return _table(sections, [Column("run")], words, columns, shown, is_tight=True)


def _table(
    sections: Sections,
    name_columns: Sequence[Column],
    name_cells: Sequence[Sequence[Sequence[str]]],
    columns: Columns,
    shown: int,
    *,
    is_tight: bool,
) -> Table:
    places = columns.fitting(shown)
    headings = [columns.numbers[place] for place in places]
    return table_of(
        [*columns.before, *name_columns, *columns.behind, *headings],
        [
            [
                [*line.before, *cells, *line.behind, *(line.numbers[place] for place in places)]
                for line, cells in zip(section, named, strict=True)
            ]
            for section, named in zip(sections, name_cells, strict=True)
        ],
        is_tight=is_tight,
    )
