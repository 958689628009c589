"""The table of means over seeds in Markdown (tables as GitHub has them)."""

from __future__ import annotations

from clinit.analysis.report.measures import ARROWS, Measure
from clinit.analysis.report.paper_table import Entry, PaperTable
from clinit.words import escaped, lines_of_table


def markdown(table: PaperTable) -> str:
    """Return a title, the table and a caption; the best numbers in bold."""
    heads = [*map(escaped, table.names), "seeds", *map(_heading, table.measures)]
    lines = [
        [*map(escaped, names), str(count), *map(_entry, entries)]
        for names, count, entries in table.lines()
    ]
    rows = lines_of_table(heads, lines, numbers=len(heads) - len(table.names))
    return "\n".join([f"**{escaped(table.title)}**", "", *rows, "", escaped(table.caption), ""])


def _heading(measure: Measure) -> str:
    unit = f" ({measure.unit})" if measure.unit else ""
    return f"{escaped(measure.heading)}{unit} {ARROWS[measure.better]}".rstrip()


def _entry(entry: Entry) -> str:
    if entry.mean is None:
        return "-"
    text = entry.mean if entry.deviation is None else f"{entry.mean} ± {entry.deviation}"
    text = f"**{text}**" if entry.is_best else text
    return text + (r"\*" if entry.is_partial else "")
