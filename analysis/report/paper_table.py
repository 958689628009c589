"""The table of means over seeds as it goes into a paper, whatever its format.

The columns are those of the ranking, or those of the table of further metrics; there is no width
to keep to, so that all of them are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clinit.analysis.metrics.efficiency import Reading
from clinit.analysis.report.measures import FURTHER_MEASURES, Measure, ranked_measures
from clinit.analysis.report.metrics_table import bold_caption, metrics_caption
from clinit.analysis.report.ranking import ranking_caption
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.seeds import SeedGroup, best_of_groups, known_of, seed_groups
from clinit.analysis.report.settings import RunNames


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
    run_names: RunNames

    @classmethod
    def of(cls, runs: Sequence[RunSummary], reading: Reading, *, metrics: bool) -> PaperTable:
        """Summarise runs on the same data by the ranking's measures, or by further `metrics`."""
        groups = seed_groups(runs)
        names = RunNames.of([group.runs[0] for group in groups], without=("seed",))
        measures = tuple(
            known_of(groups, FURTHER_MEASURES if metrics else ranked_measures(reading))
        )
        caption = (
            metrics_caption(groups, measures)
            if metrics
            else f"{ranking_caption(groups, measures, reading)} {bold_caption(groups)}".rstrip()
        )
        headings = tuple(column.heading for column in names.columns)
        return cls(names.title, caption, headings, measures, tuple(groups), names)

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
            yield self.run_names.cells(group.runs[0]), len(group.runs), entries
