"""The table of further metrics: what the field reports beside averages over evaluations."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clinit.analysis.columns import Cells, Column, table_of, width_of
from clinit.analysis.measures import FURTHER_MEASURES, Measure, meanings
from clinit.analysis.ranking import unequal_seeds
from clinit.analysis.run_names import name_cells, name_columns
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.seeds import SeedGroup, best_of_groups, seed_groups
from clinit.analysis.settings import NOTHING, differences, phrase


def metrics_table(runs: Sequence[RunSummary], width: int) -> RenderableType:
    """Return one line per group of seeds, in the order of the ranking, deviations below means.

    At most `width` columns wide: what tells apart runs that cannot be compared goes above their
    lines, and measures are left out from the right. Those that no run has are left out at any
    width.
    """
    groups = seed_groups(runs)
    measures = known_measures(groups)
    sections, names = _sections(runs, groups, width)
    seeded = any(len(group.runs) > 1 for group in groups)

    def tables() -> list[Table]:
        return [_table(section, names, measures, seeded=seeded) for section in sections.values()]

    left_out: list[Measure] = []
    while len(measures) > 1 and max(map(width_of, tables())) > width:
        left_out.insert(0, measures.pop())
    words = metrics_caption(groups, measures)
    if left_out:
        words += f" Not shown in this width: {_headings(left_out)}."
    parts: list[RenderableType] = []
    for heading, table in zip(sections, tables(), strict=True):
        above = "\n" + heading if parts else heading
        parts += [Text(above, style="bold"), table] if heading else [table]
    return Group(*parts, Text(words, style="dim"))


def metrics_caption(groups: Sequence[SeedGroup], measures: Sequence[Measure]) -> str:
    """Return what the columns of a table of further metrics mean."""
    words = meanings(measures)
    if any(len(group.runs) > 1 for group in groups):
        words = f"Mean over seeds, ± standard deviation{unequal_seeds(groups)}. {words}"
    if any(group.is_partial(measure) for group in groups for measure in measures):
        words += " *: over the tasks that reach it, not all."
    words += bold_caption(groups)
    known = known_measures(groups)
    if unknown := [measure for measure in FURTHER_MEASURES if measure not in known]:
        words += f" In no run: {_headings(unknown)}."
    return words


def bold_caption(groups: Sequence[SeedGroup]) -> str:
    """Return what bold numbers mean; nothing where no two groups can be compared."""
    alone = len({group.comparable for group in groups}) == len(groups)
    return "" if alone else " Bold: the best of comparable runs."


def known_measures(groups: Sequence[SeedGroup]) -> list[Measure]:
    """Return the further measures that a run has."""
    return [
        measure
        for measure in FURTHER_MEASURES
        if any(group.values[measure.name] is not None for group in groups)
    ]


def _sections(
    runs: Sequence[RunSummary], groups: Sequence[SeedGroup], width: int
) -> tuple[dict[str, list[SeedGroup]], list[str]]:
    """Return the groups by the heading above them, and the settings that have columns."""
    differing = differences(runs)
    of_init = [name for name in differing.of_init if name != "run"]
    of_training = [name for name in differing.of_training if name != "seed"]
    every = [*of_training, *of_init]
    whole = _table(groups, every, known_measures(groups), seeded=True)
    if not of_training or width_of(whole) <= width:
        return {"": [*groups]}, every
    sections: dict[str, list[SeedGroup]] = {}
    for group in groups:
        heading = ", ".join(phrase(group.runs[0], name) for name in of_training)
        sections.setdefault(heading, []).append(group)
    return sections, of_init


def _table(
    groups: Sequence[SeedGroup],
    names: Sequence[str],
    measures: Sequence[Measure],
    *,
    seeded: bool,
) -> Table:
    """Return a table of `groups`, with a column of the number of seeds where `seeded`."""
    columns = [
        *name_columns(names),
        *([Column("seeds", "number")] if seeded else []),
        *(Column(measure.column, "number") for measure in measures),
    ]
    best = [best_of_groups(groups, measure) for measure in measures]
    lines: list[Cells] = []
    for index, group in enumerate(groups):
        cells: list[str | Text] = [*name_cells(group.runs[0], names, group.runs)]
        cells += [str(len(group.runs))] if seeded else []
        cells += [
            _cell(group, measure, is_best=tops[index])
            for measure, tops in zip(measures, best, strict=True)
        ]
        lines.append(cells)
    return table_of(columns, [lines])


def _cell(group: SeedGroup, measure: Measure, *, is_best: bool) -> Text:
    mean, deviation = group.mean(measure), group.deviation(measure)
    if mean is None:
        return Text(NOTHING)
    star = "*" if group.is_partial(measure) else ""
    text = Text(mean + star, style="bold green" if is_best else "")
    return text if deviation is None else Text.assemble(text, (f"\n±{deviation}", "dim"))


def _headings(measures: Sequence[Measure]) -> str:
    return ", ".join(measure.heading for measure in measures)
