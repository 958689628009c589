"""A table of the paper with our numbers in its places, and whether the paper's effects hold.

An effect is the difference of two starts in a number as printed, seed by seed
(`report.compare`). It gets no verdict if there are fewer than three seeds, or if the paper's
own difference is within the deviation of the paper's numbers over class orders.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from clinit.analysis.metrics.diagnosis import diagnose_split
from clinit.analysis.paper.commands import Places, recorded
from clinit.analysis.paper.numbers import (
    Budget,
    Cells,
    Place,
    Printed,
    Values,
    deviation_of,
    paper_cells,
    runs_by_place,
    values_of,
)
from clinit.analysis.paper.settings import Setting, settings_of_heads, settings_of_runs
from clinit.analysis.paper.tables import MEASURES, Table
from clinit.analysis.report.compare import FEWEST, Difference, adjusted_by_holm, step_of
from clinit.analysis.report.measures import COLLAPSE
from clinit.analysis.report.run import Row, RunSummary
from clinit.analysis.runs import load_runs
from clinit.extract.cache.head import read_head
from clinit.extract.cache.read import open_cache
from clinit.headtrain.protocol.study.study import Study
from clinit.machine import choose_device

Verdict = Literal["holds", "open", "opposite", "within noise", "too few seeds", "-"]
PAIRS = (("least-square", "random"), ("class-mean", "random"), ("least-square", "class-mean"))


@dataclass(frozen=True, slots=True)
class Effect:
    """The difference of two starts in one metric."""

    place: Place
    """Place of the start `better`."""
    metric: str
    better: str
    """The start from whose value the other value is subtracted."""
    other: str
    paper: float | None
    noise: float
    """Deviation of the paper's difference over class orders; 0 if the paper gives none."""
    ours: Difference

    @property
    def is_tested(self) -> bool:
        """Whether the effect is one of the tests of the page."""
        return bool(self.paper) and abs(self.paper or 0.0) > self.noise

    @property
    def verdict(self) -> Verdict:
        """Whether the sign matches the paper, if the adjusted test is significant."""
        if not self.paper or self.ours.mean is None:
            return "-"
        if not self.is_tested:
            return "within noise"
        if self.ours.number < FEWEST:
            return "too few seeds"
        if self.ours.result in ("-", "open"):
            return "open"
        return "holds" if self.ours.mean * self.paper > 0 else "opposite"


Collapse = Mapping[str, Mapping[str, Any]]
"""Results of `clinit diagnose` by the loss of the head."""


@dataclass(frozen=True, slots=True)
class Line:
    """One metric in one place of the table."""

    place: Place
    metric: str
    printed: Printed | None
    ours: Values
    """Our values by seed."""

    @property
    def mean(self) -> float | None:
        """Our mean over seeds."""
        return statistics.fmean(self.ours.values()) if self.ours else None

    @property
    def deviation(self) -> float | None:
        """Our standard deviation over seeds (n - 1); None for fewer than two seeds."""
        return statistics.stdev(self.ours.values()) if len(self.ours) > 1 else None

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's number."""
        if self.mean is None or self.printed is None:
            return None
        return self.mean - self.printed.value


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A table of the paper next to our numbers."""

    table: Table
    lines: tuple[Line, ...]
    effects: tuple[Effect, ...]
    budgets: Mapping[Place, Budget]
    """Iterations and buffer of our runs in each place."""
    settings: tuple[Setting, ...]
    """All settings of the runs, next to the paper's."""
    runs: tuple[RunSummary, ...]

    @property
    def is_reduced(self) -> bool:
        """Whether a setting differs from the paper's, so that numbers need not agree."""
        return any(each.differs for each in self.settings)

    @property
    def groups(self) -> list[list[Line]]:
        """Groups of comparable lines: same method, loss and budget."""
        return [list(group) for _, group in groupby(self.lines, lambda line: line.place.group)]


def reproduction(
    table: Table,
    runs: Sequence[RunSummary],
    collapse: Collapse | None = None,
    *,
    features: Mapping[str, str] | None = None,
) -> Reproduction:
    """Put our numbers into the places of a table.

    Args:
        table: A table of the paper.
        runs: The runs that were trained for the table; other runs are left out.
        collapse: Metrics of the pretrained heads.
        features: Fingerprint of the features on which the metrics of heads were measured.
    """
    paper = _cells(table)
    found = runs_by_place(runs, list(paper)) if table.runs else {place: [] for place in paper}
    cells = _in_order({place: paper.get(place, {}) for place in found})
    rows = {place: [run.row() for run in members] for place, members in found.items()}
    lines = [
        Line(place, metric, printed.get(metric), _values(table, place, metric, rows, collapse))
        for place, printed in cells.items()
        for metric in table.metrics
    ]
    used = [run for members in found.values() for run in members]
    return Reproduction(
        table=table,
        lines=tuple(lines),
        effects=tuple(_effects(table, cells, used, lines)),
        budgets={
            place: (members[0].config["iterations"], members[0].config.get("buffer"))
            for place, members in found.items()
            if members
        },
        settings=tuple(
            settings_of_runs(table, used, paper)
            if table.runs
            else settings_of_heads(table, collapse or {}, features or {})
        ),
        runs=tuple(used),
    )


_OF_A_HEAD = ("acc_pre", "d_ls")


def _cells(table: Table) -> Cells:
    """Return the paper's numbers; numbers of a head are repeated for all starts from that head."""
    cells = paper_cells(table.source)
    if table.name == "cost":
        for place, printed in cells.items():
            if "minutes_init" in printed:
                random = cells[Place(*place.group, "random")]["minutes_total"].value
                printed["overhead"] = Printed(100 * printed["minutes_init"].value / random, None)
    if table.name in ("first-task", "neural-collapse"):
        # Table 1 prints A_pre and D_LS of the pretrained heads for class means only.
        heads: dict[str, dict[str, Printed]] = {
            place.loss: {name: each for name, each in printed.items() if name in _OF_A_HEAD}
            for place, printed in paper_cells("first_task").items()
            if "d_ls" in printed
        }
        if table.name == "neural-collapse":
            cells = {Place("", loss, 0, None, ""): {} for loss in heads} | cells
        cells = {place: {**printed, **heads[place.loss]} for place, printed in cells.items()}
    return cells


def _in_order(cells: Cells) -> Cells:
    """Return lines sorted as in the paper: by method, loss, budget and start."""
    methods = list(dict.fromkeys(place.method for place in cells))

    def rank(place: Place) -> tuple[int, ...]:
        method, loss = methods.index(place.method), LOSSES.index(place.loss)
        return method, loss, place.iterations, STARTS.index(place.init)

    return {place: cells[place] for place in sorted(cells, key=rank)}


LOSSES = ("ce", "sqen", "mse")
STARTS = ("", "random", "class-mean", "least-square")


def _values(
    table: Table,
    place: Place,
    metric: str,
    rows: Mapping[Place, Sequence[Row]],
    collapse: Collapse | None,
) -> Values:
    if metric in COLLAPSE:
        value = (collapse or {}).get(place.loss, {}).get(metric)
        return {} if value is None else {0: value}
    random = rows.get(Place(*place.group, "random"), ())
    return values_of(rows[place], metric, at_start=table.name == "first-task", random=random)


def _effects(
    table: Table, cells: Cells, runs: Sequence[RunSummary], lines: Sequence[Line]
) -> list[Effect]:
    ours = {(line.place, line.metric): line.ours for line in lines}
    result: list[Effect] = []
    for place in cells:
        for better, other in PAIRS:
            rival = Place(*place.group, other)
            if place.init != better or rival not in cells:
                continue
            for metric in table.effects:
                pair = [cells[each].get(metric) for each in (place, rival)]
                paper = pair[0].value - pair[1].value if pair[0] and pair[1] else None
                noise = math.hypot(*(deviation_of(init, metric) for init in (better, other)))
                step = step_of(runs[0], MEASURES[metric]) if runs else 0.0
                made = Difference.of(ours[place, metric], ours[rival, metric], step=step)
                result.append(Effect(place, metric, better, other, paper, noise, made))
    tested = [index for index, each in enumerate(result) if each.is_tested]
    for index, made in zip(tested, adjusted_by_holm([result[i].ours for i in tested]), strict=True):
        result[index] = replace(result[index], ours=made)
    return result


def recorded_runs(table: Table, where: Places, studies: Sequence[Study]) -> tuple[RunSummary, ...]:
    """Return the recorded runs of studies; empty if none is recorded."""
    found = recorded(where.runs(table), studies) if table.runs else []
    return load_runs(*found).runs if found else ()


def measured(table: Table, where: Places, runs: Sequence[RunSummary]) -> Reproduction:
    """Put runs into the places of a table, and measure heads if the table has their numbers."""
    base = open_cache(where.sides(table)[0])
    split, collapse = base.split("train"), None
    if set(COLLAPSE) & set(table.metrics):
        assert base.head is not None
        aligned = read_head(where.aligned)
        collapse = {
            loss: diagnose_split(split, head, lam=0.05, device=choose_device("auto")).content()
            for loss, head in (("ce", base.head), ("mse", aligned))
        }
        collapse["mse"]["alignment"] = aligned.alignment
    return reproduction(table, runs, collapse, features=split.fingerprint.fields)
