"""The table of further metrics: what is asked for beside averages and the standard numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from clinit.analysis.report.captions import below
from clinit.analysis.report.measures import FURTHER_MEASURES, Measure, meanings
from clinit.analysis.report.ranking import unequal_seeds
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.seeds import SeedGroup, best_of_groups, known_of, seed_groups
from clinit.analysis.report.settings import NOTHING, RunNames
from clinit.analysis.report.table import Column, Columns, Line, fitted_table


def metrics_table(runs: Sequence[RunSummary], width: int, *, ranked: bool = True) -> RenderableType:
    """Return one line per group of seeds, deviations below means.

    All runs are on the same data. Lines are `ranked` by A_all, or in the order of their runs.
    Measures that no run has are left out at any width.
    """
    groups = seed_groups(runs, ranked=ranked)
    measures = known_of(groups, FURTHER_MEASURES)
    names = RunNames.of([group.runs[0] for group in groups], without=("seed",))
    seeded = any(len(group.runs) > 1 for group in groups)
    fitted = fitted_table(
        [[_lines(groups, measures, seeded=seeded)]],
        names,
        Columns(
            [Column(measure.column, "number") for measure in measures],
            behind=[Column("seeds", "number")] if seeded else [],
        ),
        width,
    )
    words = below(
        runs,
        f"± standard deviation over seeds{unequal_seeds(groups)}." if seeded else "",
        *_marks(groups, [measures[place] for place in fitted.shown]),
        bold=bold_caption(groups),
        fitted=fitted,
    )
    return Group(fitted.table, words)


def metrics_caption(groups: Sequence[SeedGroup], measures: Sequence[Measure]) -> str:
    """Return what the columns of a table of further metrics mean, for a text."""
    words = meanings(measures)
    if any(len(group.runs) > 1 for group in groups):
        words = f"Mean over seeds, ± standard deviation{unequal_seeds(groups)}. {words}"
    starred, unknown = _marks(groups, measures)
    return " ".join(filter(None, (words, starred, bold_caption(groups), unknown)))


def bold_caption(groups: Sequence[SeedGroup]) -> str:
    """Return what bold numbers mean; nothing where no two groups can be compared."""
    alone = len({group.comparable for group in groups}) == len(groups)
    return "" if alone else "Bold: the best of comparable runs."


def _marks(groups: Sequence[SeedGroup], measures: Sequence[Measure]) -> list[str]:
    """Return what stars mean, and which measures no run has."""
    starred = any(group.is_partial(measure) for group in groups for measure in measures)
    known = known_of(groups, FURTHER_MEASURES)
    unknown = ", ".join(each.heading for each in FURTHER_MEASURES if each not in known)
    return [
        "*: over the tasks that reach it, not all." if starred else "",
        f"In no run: {unknown}." if unknown else "",
    ]


def _lines(groups: Sequence[SeedGroup], measures: Sequence[Measure], *, seeded: bool) -> list[Line]:
    best = [best_of_groups(groups, measure) for measure in measures]
    return [
        Line(
            group.runs[0],
            [
                _cell(group, measure, is_best=tops[index])
                for measure, tops in zip(measures, best, strict=True)
            ],
            behind=[str(len(group.runs))] if seeded else [],
        )
        for index, group in enumerate(groups)
    ]


def _cell(group: SeedGroup, measure: Measure, *, is_best: bool) -> Text:
    mean, deviation = group.mean(measure), group.deviation(measure)
    if mean is None:
        return Text(NOTHING)
    star = "*" if group.is_partial(measure) else ""
    text = Text(mean + star, style="bold green" if is_best else "")
    return text if deviation is None else Text.assemble(text, (f"\n±{deviation}", "dim"))
