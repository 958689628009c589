"""A reproduced table for the terminal: ours, the paper's and the difference below one another."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from clinit.analysis.paper import words
from clinit.analysis.paper.reproduction import Line, Reproduction
from clinit.analysis.report.table import Cells, Column, Table

_COLOURS = {"holds": "green", "opposite": "red", "open": "yellow", "-": ""}


def terminal(found: Reproduction) -> RenderableType:
    """Return the table, the effects and what differs from the paper."""
    table = found.table
    heading = f"Table {table.number}: {table.title}" if table.number else table.title
    parts: list[RenderableType] = [Text(f"\n{heading}", style="bold")]
    if found.is_reduced:
        parts.append(
            Text(
                "A reduced setting, see below: its numbers are not expected to be the paper's.",
                style="yellow",
            )
        )
    for group in found.groups:
        parts += [Text(f"\n{words.title_of(found, group)}", style="bold"), _numbers(found, group)]
    parts.append(Text(words.caption(found), style="dim"))
    if found.comparisons:
        others = " The other pairs of starts are in the files."
        heading = "Do the paper's effects hold? Least-square less random rows"
        parts += [Text(f"\n{heading}", style="bold"), _effects(found)]
        parts.append(Text(words.effect_caption(found) + others, style="dim"))
    parts += list(_lists(found))
    return Group(*parts)


def _numbers(found: Reproduction, group: list[Line]) -> RichTable:
    metrics = found.table.metrics
    sections = []
    for place in dict.fromkeys(line.place for line in group):
        lines = [line for line in group if line.place == place]
        rows: list[Cells] = [[place.init or "here", *(_mean(line) for line in lines)]]
        if (seeds := max(len(line.ours) for line in lines)) > 1:
            rows.append(_dim([f"  ± {seeds} seeds", *(_deviation(line) for line in lines)]))
        if words.is_printed(group):
            rows.append(_dim(["  paper", *map(_printed, lines)]))
        if any(line.printed and line.printed.deviation for line in lines):
            rows.append(_dim(["  ± paper", *map(_printed_deviation, lines)]))
        if not found.is_reduced:
            rows.append(_dim(["  difference", *(words.signed(line.difference) for line in lines)]))
        sections.append(rows)
    columns = [Column(""), *(Column(words.HEADINGS[name], "number") for name in metrics)]
    return Table(columns, sections).rich()


def _dim(cells: list[str]) -> list[Text]:
    return [Text(cell, style="dim") for cell in cells]


def _mean(line: Line) -> str:
    return words.number(line.mean, line.metric)


def _deviation(line: Line) -> str:
    return words.number(line.deviation, line.metric)


def _printed(line: Line) -> str:
    return words.number(line.printed.value if line.printed else None, line.metric)


def _printed_deviation(line: Line) -> str:
    return words.number(line.printed.deviation if line.printed else None, line.metric)


def _effects(found: Reproduction) -> RichTable:
    lines: list[Cells] = []
    for each in found.comparisons:
        effect = each.effect
        if (effect.better, effect.other) != ("least-square", "random"):
            continue
        lines.append(
            [
                words.short_title(each.place),
                words.HEADINGS[effect.metric],
                words.signed(effect.paper),
                words.effect_words(effect),
                words.evidence_words(effect, with_p=False),
                Text(words.verdict_words(effect), style=_COLOURS[effect.verdict]),
            ]
        )
    columns = [
        Column(""),
        Column(""),
        Column("paper", "number"),
        Column("here", "number"),
        Column("over"),
        Column("the effect"),
    ]
    return Table(columns, [lines]).rich()


def _lists(found: Reproduction) -> Iterator[RenderableType]:
    if differing := [each for each in found.settings if each.differs]:
        lines = [[each.name, each.paper, each.here] for each in differing]
        columns = [Column(""), Column("paper", "setting"), Column("here", "setting")]
        yield Text("\nWhat differs from the paper here", style="bold")
        yield Table(columns, [lines]).rich()
    orders = words.order_words(found)
    named = (
        (f"The starts by {words.HEADINGS[found.table.effects[0]]}", orders) if orders else ("", []),
        ("What the paper leaves open, and how it is here", words.open_words(found)),
        ("Where the paper slips", list(found.table.slips)),
    )
    for heading, sentences in named:
        if sentences:
            yield Text(f"\n{heading}", style="bold")
        for count, sentence in enumerate(sentences, start=1):
            yield Text(f"{count}. {sentence}")
