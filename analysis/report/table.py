"""A table for the terminal, Markdown, LaTeX and the page.

If a table is too wide for the terminal, the space between columns shrinks first; then the least
needed columns of numbers are left out; if too few would remain, the settings of the runs are
wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from clinit.words import escaped, lines_of_table, visible

Better = Literal["high", "low", "neither"]
Kind = Literal["name", "run", "setting", "text", "number"]
NOTHING = "-"
"""Printed if there is no value."""
AT_LEAST = "≥: lower bound, the level is reached before the first step."
BELOW = "<: upper bound, random rows reach the level at the first evaluation too."
NOT_EVERY_TASK = "*: not in every task of every run."
BEST = "Bold: the best of comparable runs."
FEWEST = 6
"""Least number of numeric columns next to columns of settings; with fewer, settings are wrapped."""
MOST_IN_LATEX = 6
"""Number of columns that fit the page of an article."""
ARROWS: dict[Better, str] = {"high": "↑", "low": "↓", "neither": ""}


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a column, and the layout of its cells."""

    heading: str
    kind: Kind = "name"
    """Names and numbers stay on one line; numbers are aligned to the right. If there is no room,
    the settings of a run replace its name (`run`). Settings and texts are wrapped; words that are
    too long are folded in settings and shortened in texts."""
    unit: str = ""
    better: Better = "neither"
    need: int | None = None
    """If there is no room, columns with higher values are left out first; None: never."""
    meaning: str = ""
    """Explanation of the column on the page."""

    @property
    def mark(self) -> str:
        """Unit and direction, printed below the heading."""
        return self.unit + ARROWS[self.better]

    @property
    def whole(self) -> str:
        """The heading with unit and direction, on one line."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.heading}{unit} {ARROWS[self.better]}".rstrip()


@dataclass(frozen=True, slots=True)
class Cell:
    """A number with its deviation."""

    mean: str | None
    deviation: str | None = None
    is_best: bool = False
    is_partial: bool = False
    """Whether the number is a mean over only some tasks."""
    value: float | None = None
    """Value for sorting."""

    def text(self, *, beside: bool) -> Text:
        """Return the number for a terminal, its deviation next to or below it."""
        if self.mean is None:
            return Text(NOTHING)
        star = "*" if self.is_partial else ""
        style = "bold green" if self.is_best else ""
        if self.deviation is None:
            return Text(self.mean + star, style=style)
        if beside:
            return Text(f"{self.mean} ±{self.deviation}{star}", style=style)
        return Text.assemble((self.mean + star, style), (f"\n±{self.deviation}", "dim"))


Cells = Sequence[str | Text | Cell]
"""A line, one cell per column; a `str` is printed literally, without markup."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns from left to right, and lines in sections that are set apart."""

    columns: Sequence[Column]
    sections: Sequence[Sequence[Cells]]
    beside: bool = False
    """Whether deviations are next to their means if there is room."""
    title: str = ""
    remarks: Sequence[str] | None = None
    """Sentences below the table in the terminal; the meanings of the marks follow the first
    sentence. None: no sentences and no meanings."""
    caption: str = ""
    """Text below the table in Markdown."""
    is_bold: bool = False
    """Whether bold numbers mark the best of comparable runs."""
    about: Sequence[object] = ()
    """The first run in each line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn, missing = self._fitted(options.max_width)
        if self.title:
            yield Text(self.title, style="bold")
        yield drawn
        if self.remarks is None:
            return
        first, *others = self.remarks
        below = [BEST] if self.is_bold and console.color_system else []
        below += [first, *self.marks, *others]
        if numbers := ", ".join(each.heading for each in missing):
            wider = max(120, options.max_width + 40 * (options.max_width >= 120))
            below.append(
                f"Not shown in this width: {numbers} (a wider terminal, or COLUMNS={wider})."
            )
        if words := " ".join(filter(None, below)):
            yield Text(words, style="dim")

    @property
    def lines(self) -> list[Cells]:
        """The lines of all sections."""
        return [cells for section in self.sections for cells in section]

    @property
    def marks(self) -> list[str]:
        """Meanings of the marks in the table."""
        cells = [cell for line in self.lines for cell in line if isinstance(cell, Cell)]
        bounded = any((cell.mean or "").startswith("≥") for cell in cells)
        partial = any(cell.is_partial for cell in cells)
        below = any((cell.mean or "").startswith("<") for cell in cells)
        return [AT_LEAST] * bounded + [BELOW] * below + [NOT_EVERY_TASK] * partial

    @property
    def below(self) -> str:
        """The text below the table, in Markdown or on the page."""
        return " ".join(filter(None, [self.caption, *self.marks, BEST * self.is_bold]))

    def _fitted(self, width: int) -> tuple[RichTable, list[Column]]:
        """Return the table, at most `width` columns wide, and the omitted columns."""
        needs = sorted(column.need for column in self.columns if column.need is not None)
        fewer = range(len(needs), min(FEWEST, len(needs)) - 1, -1)
        console = Console(width=1000)  # nothing is shortened
        tries = [(len(needs), self.beside, False), (len(needs), False, False)]
        for shown, beside, tight in [*tries, *((shown, False, True) for shown in fewer)]:
            kept = {None, *needs[:shown]}
            places = [place for place, each in enumerate(self.columns) if each.need in kept]
            table = self._drawn(places, is_tight=tight, beside=beside)
            if Measurement.get(console, console.options, table).maximum <= width:
                break
        else:
            table = self._drawn(places, is_tight=True, beside=False, folds=True)
        return table, [each for place, each in enumerate(self.columns) if place not in places]

    def _drawn(
        self, places: Sequence[int], *, is_tight: bool, beside: bool, folds: bool = False
    ) -> RichTable:
        padding = (0, 0 if is_tight else 1, 0, 0)
        table = RichTable(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False, show_edge=False)
        has_marks = any(column.mark for column in self.columns)
        fixed = ("name", "number") if folds else ("name", "run", "number")
        for column in (self.columns[place] for place in places):
            justify: Literal["left", "right"] = "right" if column.kind == "number" else "left"
            marked = has_marks and column.need is not None
            heading = f"{column.heading}\n{column.mark}" if marked else column.heading
            table.add_column(
                Text(heading, justify=justify),
                justify=justify,
                no_wrap=column.kind in fixed,
                overflow="fold" if folds or column.kind == "setting" else "ellipsis",
            )
        for section in self.sections:
            for cells in section:
                table.add_row(*(_text(cells[place], beside) for place in places))
            table.add_section()
        return table

    def markdown(self) -> str:
        """Return title, table and caption in GitHub's Markdown."""
        heads = [escaped(column.whole) for column in self.columns]
        rows = [[_marked(cell, escaped, "**{}**") for cell in cells] for cells in self.lines]
        numbers = sum(column.kind == "number" for column in self.columns)
        above = [f"**{escaped(self.title)}**", ""] if self.title else []
        below = ["", escaped(self.below), ""] if self.below else []
        return "\n".join([*above, *lines_of_table(heads, rows, numbers=numbers), *below])

    def latex(self) -> str:
        """Return the table for LaTeX; title and text are its caption.

        It needs the package booktabs and, to fit many columns to the page, graphicx.
        """
        kinds = "".join("r" if column.kind == "number" else "l" for column in self.columns)
        heads = [in_latex(column.whole) for column in self.columns]
        sections = [
            [[_marked(cell, in_latex, r"\textbf{{{}}}") for cell in cells] for cells in section]
            for section in self.sections
        ]
        parts = ["\n".join(f"{' & '.join(cells)} \\\\" for cells in part) for part in sections]
        caption = ". ".join(filter(None, [in_latex(self.title), in_latex(self.below)]))
        above = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}"]
        rules = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", f"{' & '.join(heads)} \\\\"]
        body = [r"\midrule", "\n\\midrule\n".join(parts), r"\bottomrule", r"\end{tabular}"]
        if len(kinds) > MOST_IN_LATEX:
            rules, body = [r"\resizebox{\textwidth}{!}{%", *rules], [*body, "}"]
        return "\n".join([*above, *rules, *body, r"\end{table}", ""])


_LATEX = {
    **{mark: f"\\{mark}" for mark in "{}$&#_%"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{"λ": r"$\lambda$", "×": r"$\times$", "±": r"$\pm$", "≥": r"$\geq$", "·": r"$\cdot$"},
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}
"""Marks that LaTeX obeys or lacks."""


def in_latex(text: str) -> str:
    """Return text that LaTeX prints literally, in one line."""
    found = "".join(_LATEX.get(letter, letter) for letter in visible(text))
    return re.sub("-(?=-)", "-{}", found)  # two hyphens would be a dash


def _marked(cell: str | Text | Cell, escape: Callable[[str], str], bold: str) -> str:
    """Return a cell in a language of marks; `bold` is the format of the best number."""
    if not isinstance(cell, Cell):
        return escape(str(cell))
    if cell.mean is None:
        return NOTHING
    text = escape(cell.mean if cell.deviation is None else f"{cell.mean} ± {cell.deviation}")
    if escape is in_latex:
        text = re.sub("^-", "$-$", text)
    return (bold.format(text) if cell.is_best else text) + escape("*") * cell.is_partial


def _text(cell: str | Text | Cell, beside: bool) -> Text:
    if isinstance(cell, Cell):
        return cell.text(beside=beside)
    return Text(cell) if isinstance(cell, str) else cell
