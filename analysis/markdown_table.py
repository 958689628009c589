"""The table of means over seeds in Markdown (tables as GitHub has them)."""

from __future__ import annotations

import re

from clinit.analysis.measures import ARROWS, Measure
from clinit.analysis.paper_table import Entry, PaperTable
from clinit.extract.visible import visible

_SPECIAL = re.compile(r"[\\`*_\[\]<>|~$&#!]")


def markdown(table: PaperTable) -> str:
    """Return a title, the table and a caption; the best numbers in bold."""
    heads = [*map(escaped, table.names), "seeds", *map(_heading, table.measures)]
    rule = [*("---" for _ in table.names), *("---:" for _ in heads[len(table.names) :])]
    lines = [
        [*map(escaped, names), str(count), *map(_entry, entries)]
        for names, count, entries in table.lines()
    ]
    rows = [f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines)]
    return "\n".join([f"**{escaped(table.title)}**", "", *rows, "", escaped(table.caption), ""])


def escaped(text: str) -> str:
    """Return text that Markdown shows letter by letter, in one line."""
    return _SPECIAL.sub(r"\\\g<0>", visible(text))


def _heading(measure: Measure) -> str:
    unit = f" ({measure.unit})" if measure.unit else ""
    return f"{escaped(measure.heading)}{unit} {ARROWS[measure.better]}".rstrip()


def _entry(entry: Entry) -> str:
    if entry.mean is None:
        return "-"
    text = entry.mean if entry.deviation is None else f"{entry.mean} ± {entry.deviation}"
    text = f"**{text}**" if entry.is_best else text
    return text + (r"\*" if entry.is_partial else "")
