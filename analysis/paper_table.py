"""The table of means over seeds as it goes into a paper, whatever its format.

The columns are those of the ranking, or those of the table of further metrics; there is no width
to keep to, so that all of them are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clinit.analysis.efficiency import Reading
from clinit.analysis.measures import Measure, ranked_measures
from clinit.analysis.metrics_table import bold_caption, known_measures, metrics_caption
from clinit.analysis.ranking import ranking_caption
from clinit.analysis.run_names import name_cells, name_columns
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.seeds import SeedGroup, best_of_groups, seed_groups
from clinit.analysis.settings import common, differences


@dataclass(frozen=True, slots=True)
class Entry:
    """A number of the table."""

    mean: str | None
    """As printed; None where there is none."""
    deviation: str | None
    """Over seeds; None of one seed."""
    is_best: bool
    """Among the runs that it can be compared with."""
    is_partial: bool
    """Whether it is a mean over some tasks only."""


@dataclass(frozen=True, slots=True, eq=False)
class PaperTable:
    """One line per group of runs that differ in their seed alone."""

    title: str
    """What all runs have in common."""
    caption: str
    """What the columns mean."""
    names: tuple[str, ...]
    """Headings of the columns that name the line."""
    measures: tuple[Measure, ...]
    groups: tuple[SeedGroup, ...]
    settings: tuple[str, ...]

    @classmethod
    def of(cls, runs: Sequence[RunSummary], reading: Reading, *, metrics: bool) -> PaperTable:
        """Summarise runs by the measures of the ranking, or by the further `metrics`."""
        settings = tuple(name for name in differences(runs).names if name not in ("seed", "run"))
        groups = seed_groups(runs)
        measures = tuple(known_measures(groups)) if metrics else ranked_measures(reading)
        caption = (
            metrics_caption(groups, measures)
            if metrics
            else ranking_caption(groups, measures, reading) + bold_caption(groups)
        )
        headings = tuple(column.heading for column in name_columns(settings))
        title = common(runs, (*settings, "seed"))
        return cls(title, caption, headings, measures, tuple(groups), settings)

    def lines(self) -> Iterator[tuple[list[str], int, list[Entry]]]:
        """Yield what names each line, its number of seeds and its numbers."""
        best = [best_of_groups(self.groups, measure) for measure in self.measures]
        for index, group in enumerate(self.groups):
            entries = [
                Entry(
                    group.mean(measure),
                    group.deviation(measure),
                    tops[index],
                    group.is_partial(measure),
                )
                for measure, tops in zip(self.measures, best, strict=True)
            ]
            names = name_cells(group.runs[0], self.settings, group.runs)
            yield names, len(group.runs), entries
