"""Runs ranked, with mean and standard deviation over seeds; those of one seed are one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clinit.analysis.captions import gain_caption, loss_caption
from clinit.analysis.columns import Cells, Column, table_of, width_of
from clinit.analysis.efficiency import Reading
from clinit.analysis.measures import Measure, ranked_measures
from clinit.analysis.run_names import name_cells, name_columns
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.seeds import SeedGroup, seed_groups
from clinit.analysis.settings import NOTHING, common, differences


def ranking(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one line per group of seeds, the best first, at most `width` columns wide."""
    names = tuple(name for name in differences(runs).names if name not in ("seed", "run"))
    groups = seed_groups(runs)
    measures, left_out = [*ranked_measures(reading)], list[Measure]()
    table = _table(groups, names, measures)
    while len(measures) > 1 and width_of(table) > width:
        left_out.insert(0, measures.pop())
        table = _table(groups, names, measures)
    title = Text(common(runs, (*names, "seed")), style="bold")
    words = ranking_caption(groups, measures, reading)
    if left_out:
        words += f" Not shown in this width: {', '.join(each.heading for each in left_out)}."
    return Group(title, table, Text(words, style="dim"))


def ranking_caption(
    groups: Sequence[SeedGroup], measures: Sequence[Measure], reading: Reading
) -> str:
    """Return what the columns of a ranking mean."""
    words = "Ranked by A_all, on test images: mean over evaluation points and seeds"
    if any(len(group.runs) > 1 for group in groups):
        words += ", ± standard deviation over seeds"
    words += unequal_seeds(groups) + "."
    if any(measure.name == "loss_new" for measure in measures):
        words += f" {loss_caption([run for group in groups for run in group.runs])}"
    for measure in measures:
        if measure.is_gain:
            words += f" {gain_caption(reading)}"
            if any(group.is_partial(measure) for group in groups):
                words += " *: not in every task of every run."
    return words


def unequal_seeds(groups: Sequence[SeedGroup]) -> str:
    """Return the words of a caption where groups have different numbers of runs."""
    counts = {len(group.runs) for group in groups}
    if len(counts) < 2:
        return ""
    return f". Not all have the same number of seeds ({min(counts)} to {max(counts)})"


def _table(groups: Sequence[SeedGroup], names: Sequence[str], measures: Sequence[Measure]) -> Table:
    columns = [
        Column("#", "number"),
        *name_columns(names),
        Column("seeds", "number"),
        *(Column(measure.column, "number") for measure in measures),
    ]
    lines: list[Cells] = [
        [
            str(number),
            *name_cells(group.runs[0], names, group.runs),
            str(len(group.runs)),
            *(_cell(group, measure) for measure in measures),
        ]
        for number, group in enumerate(groups, start=1)
    ]
    return table_of(columns, [lines])


def _cell(group: SeedGroup, measure: Measure) -> str:
    mean, deviation = group.mean(measure), group.deviation(measure)
    if mean is None:
        return NOTHING
    text = mean if deviation is None else f"{mean} ±{deviation}"
    return text + ("*" if group.is_partial(measure) else "")
