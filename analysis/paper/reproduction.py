"""A table of the paper with our numbers in its places."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Bool
from scipy.stats import t as student

from clinit.analysis.metrics.classes import predictions
from clinit.analysis.metrics.diagnosis import diagnose_split
from clinit.analysis.paper.commands import Places, recorded
from clinit.analysis.paper.numbers import (
    Budget,
    Cells,
    Place,
    Printed,
    Values,
    paper_cells,
    runs_by_place,
    values_of,
)
from clinit.analysis.paper.settings import Setting, settings_of_heads, settings_of_runs
from clinit.analysis.paper.tables import Table
from clinit.analysis.report.report import load_runs
from clinit.analysis.report.run import Row, RunSummary
from clinit.extract.cache.head import read_head
from clinit.extract.cache.read import open_cache
from clinit.headtrain.model.evaluation import mcnemar
from clinit.headtrain.protocol.study.study import Study
from clinit.machine import choose_device

Verdict = Literal["holds", "open", "opposite", "-"]
PAIRS = (("least-square", "random"), ("class-mean", "random"), ("least-square", "class-mean"))


@dataclass(frozen=True, slots=True)
class Effect:
    """The difference of two starts in one metric, in points."""

    place: Place
    """Place of the start `better`."""
    metric: str
    better: str
    """The start from whose value the other value is subtracted."""
    other: str
    paper: float | None
    mean: float | None
    """The difference; None if either start has no value."""
    half_width: float | None
    """Half of the 95 % interval; None without an interval."""
    over: Literal["seeds", "images", ""]
    number: int
    """Number of seeds, or of test images."""
    p_value: float | None = None
    """P-value of the t-test over seeds or the exact test over images; None for one difference."""
    adjusted: float | None = None
    """P-value adjusted for all effects of the page that are in the paper (`adjusted_by_holm`)."""

    @property
    def verdict(self) -> Verdict:
        """Whether the sign matches the paper, if the adjusted test is significant."""
        if not self.paper or self.mean is None or self.adjusted is None:
            return "-"
        if self.adjusted >= 0.05:
            return "open"
        return "holds" if self.mean * self.paper > 0 else "opposite"


def adjusted_by_holm(effects: Sequence[Effect]) -> list[Effect]:
    """Return the effects with adjusted p-values; effects of the paper are one family of tests."""
    result = list(effects)
    found = {i: e.p_value for i, e in enumerate(effects) if e.paper and e.p_value is not None}
    adjusted = 0.0
    for rank, index in enumerate(sorted(found, key=found.__getitem__)):
        adjusted = max(adjusted, min(1.0, (len(found) - rank) * found[index]))
        result[index] = replace(effects[index], adjusted=adjusted)
    return result


def over_seeds(
    better: Values, other: Values
) -> tuple[float | None, float | None, int, float | None]:
    """Return mean, half width of the 95 % interval, number and p of the differences by seed."""
    seeds = sorted(better.keys() & other.keys())
    if not seeds:
        return None, None, 0, None
    found = np.array([better[seed] - other[seed] for seed in seeds])
    mean, number = float(found.mean()), len(seeds)
    if number < 2:
        return mean, None, number, None
    error = float(found.std(ddof=1) / np.sqrt(number))
    p_value = 2 * float(student.sf(abs(mean) / error, number - 1)) if error else float(not mean)
    return mean, float(student.ppf(0.975, number - 1)) * error, number, p_value


def over_images(
    better: RunSummary, other: RunSummary, metric: str
) -> tuple[float, float, int, float] | None:
    """Return difference in points, half width, number of images and p of an exact test.

    None if the records do not list mistakes, or for metrics other than acc_new and acc_all.
    """
    mine, theirs = (_right(run, metric) for run in (better, other))
    if mine is None or theirs is None or len(mine) != len(theirs) or not len(mine):
        return None
    gained, lost = int((mine & ~theirs).sum()), int((~mine & theirs).sum())
    number, changed = len(mine), gained + lost
    difference = (gained - lost) / number
    error = np.sqrt(changed - (gained - lost) ** 2 / number) / number
    return 100 * difference, 100 * 1.96 * float(error), number, mcnemar(gained, lost)


def _right(run: RunSummary, metric: str) -> Bool[np.ndarray, " images"] | None:
    """Return whether a run classifies test images of all classes, or of new classes, correctly."""
    record = run.record
    if record.mistakes is None or metric not in ("acc_new", "acc_all"):
        return None
    found = predictions(record)
    if metric == "acc_all":
        found = found.filter(pl.col("task") == pl.col("task").max())
    else:
        own = record.classes.filter(pl.col("task") > 0).select("row", "task")
        found = found.join(own, on=["row", "task"], how="semi")
    found = found.sort("task", "row", "image")
    return (found["predicted"] == found["row"]).to_numpy()


_OF_A_HEAD = ("acc_pre", "d_ls")
Collapse = Mapping[str, Mapping[str, Any]]
"""Results of `clinit diagnose` by the loss of the head."""
OF_HEAD = ("nc1", "nc2", "nc3", "nc4", "d_ls", "d_ls_relative")


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
        effects=tuple(_effects(table, cells, found, lines)),
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
    if metric in OF_HEAD:
        value = (collapse or {}).get(place.loss, {}).get(metric)
        return {} if value is None else {0: value}
    random = rows.get(Place(*place.group, "random"), ())
    return values_of(rows[place], metric, at_start=table.name == "first-task", random=random)


def _effects(
    table: Table, cells: Cells, found: Mapping[Place, Sequence[RunSummary]], lines: Sequence[Line]
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
                values = ours[place, metric], ours[rival, metric]
                mean, width, number, p = over_seeds(*values)
                over: Literal["seeds", "images", ""] = "seeds" if number else ""
                if number == 1:
                    (seed,) = values[0].keys() & values[1].keys()
                    mine, theirs = (
                        next(run for run in found[each] if run.config["seed"] == seed)
                        for each in (place, rival)
                    )
                    if (judged := over_images(mine, theirs, metric)) is not None:
                        over, (mean, width, number, p) = "images", judged
                starts = metric, better, other
                result.append(Effect(place, *starts, paper, mean, width, over, number, p))
    return adjusted_by_holm(result)


def recorded_runs(table: Table, where: Places, studies: Sequence[Study]) -> tuple[RunSummary, ...]:
    """Return the recorded runs of studies; empty if none is recorded."""
    found = recorded(where.runs(table), studies) if table.runs else []
    return load_runs(*found).runs if found else ()


def measured(table: Table, where: Places, runs: Sequence[RunSummary]) -> Reproduction:
    """Put runs into the places of a table, and measure heads if the table has their numbers."""
    base = open_cache(where.sides(table)[0])
    split, collapse = base.split("train"), None
    if set(OF_HEAD) & set(table.metrics):
        assert base.head is not None
        aligned = read_head(where.aligned)
        collapse = {
            loss: diagnose_split(split, head, lam=0.05, device=choose_device("auto")).content()
            for loss, head in (("ce", base.head), ("mse", aligned))
        }
        collapse["mse"]["alignment"] = aligned.alignment
    return reproduction(table, runs, collapse, features=split.fingerprint.fields)
