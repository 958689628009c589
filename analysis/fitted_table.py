"""A table of runs that fits the width: names in columns or in words, some numbers left out.

No column is squeezed. What takes too much room is written closer together first; then the least
needed numbers are left out; and where too few would be left, one column of words names the runs,
broken into lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from clinit.analysis.columns import Cells, Column, table_of, width_of
from clinit.analysis.run_names import RunNames
from clinit.analysis.run_summary import RunSummary

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
