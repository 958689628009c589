"""Runs ranked, with mean and standard deviation over seeds; those of one seed are one line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from clinit.analysis.metrics.efficiency import Reading
from clinit.analysis.report.captions import (
    AT_LEAST,
    below,
    gain_caption,
    loss_caption,
    reading_caption,
)
from clinit.analysis.report.measures import Measure, by_need, meanings, ranked_measures
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.seeds import SeedGroup, known_of, seed_groups
from clinit.analysis.report.settings import NOTHING, RunNames
from clinit.analysis.report.table import Column, Columns, Line, fitted_table


def ranking(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one line per group of seeds, the best first, at most `width` columns wide.

    All runs are on the same data. Deviations stand below the means where they do not fit beside
    them.
    """
    groups = seed_groups(runs)
    measures = known_of(groups, ranked_measures(reading))
    names = RunNames.of([group.runs[0] for group in groups], without=("seed",))
    is_seeded = any(len(group.runs) > 1 for group in groups)
    fitted = fitted_table(
        [[_lines(groups, measures, between, is_seeded=is_seeded)] for between in (" ", "\n")],
        names,
        Columns(
            [Column(measure.column, "number") for measure in measures],
            before=[Column("#", "number")],
            behind=[Column("seeds", "number")] if is_seeded else [],
            needed=by_need([measure.name for measure in measures]),
        ),
        width,
    )
    shown = [measures[place] for place in fitted.shown]
    words = below(
        runs,
        "Ranked by A_all"
        + (", ± standard deviation over seeds" if is_seeded else "")
        + unequal_seeds(groups)
        + ".",
        *_marks(groups, shown),
        reading_caption(reading),
        fitted=fitted,
    )
    return Group(Text(names.title, style="bold"), fitted.table, words)


def ranking_caption(
    groups: Sequence[SeedGroup], measures: Sequence[Measure], reading: Reading
) -> str:
    """Return what the columns of a ranking mean, for a text."""
    words = f"Ranked by A_all, on {groups[0].runs[0].measured_on}: mean over evaluation points"
    words += " and seeds"
    if any(len(group.runs) > 1 for group in groups):
        words += ", ± standard deviation over seeds"
    words += f"{unequal_seeds(groups)}. {meanings(measures)}"
    if any(measure.name == "loss_new" for measure in measures):
        words += f" {loss_caption([run for group in groups for run in group.runs])}"
    for measure in measures:
        if measure.is_gain:
            words = " ".join([words, gain_caption(reading), *_marks(groups, [measure])])
    return words


def _marks(groups: Sequence[SeedGroup], measures: Sequence[Measure]) -> list[str]:
    """Return what the marks mean that numbers of these measures have."""
    bounded = any(each.name in group.bounded for each in measures for group in groups)
    partly = any(group.is_partial(each) for each in measures for group in groups)
    found = [AT_LEAST] if bounded else []
    return [*found, "*: not in every task of every run."] if partly else found


def unequal_seeds(groups: Sequence[SeedGroup]) -> str:
    """Return the words of a caption where groups have different numbers of runs."""
    counts = {len(group.runs) for group in groups}
    if len(counts) < 2:
        return ""
    return f". Not all have the same number of seeds ({min(counts)} to {max(counts)})"


def _lines(
    groups: Sequence[SeedGroup], measures: Sequence[Measure], between: str, *, is_seeded: bool
) -> list[Line]:
    return [
        Line(
            group.runs[0],
            [_cell(group, measure, between) for measure in measures],
            before=[str(number)],
            behind=[str(len(group.runs))] if is_seeded else [],
        )
        for number, group in enumerate(groups, start=1)
    ]


def _cell(group: SeedGroup, measure: Measure, between: str) -> Text:
    mean, deviation = group.mean(measure), group.deviation(measure)
    if mean is None:
        return Text(NOTHING)
    star = "*" if group.is_partial(measure) else ""
    if deviation is None:
        return Text(mean + star)
    if between == " ":
        return Text(f"{mean} ±{deviation}{star}")
    return Text.assemble(f"{mean}{star}", (f"\n±{deviation}", "dim"))
