"""The 434 numbers of the paper, and our numbers, by table and place.

Source: M. Y. Harun, C. Kanan, "A good start matters: enhancing continual learning with data-driven
weight initialization", CoLLAs 2025, tables 1 to 8 and the text on neural collapse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO

import polars as pl

from clinit.analysis.metrics.accuracy import ACCURACIES
from clinit.analysis.report.run import Row, RunSummary

Budget = tuple[int, int | None]
Values = dict[int, float]
"""Values by the seed of their runs."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Settings that identify a line of a table of the paper."""

    method: str
    loss: str
    iterations: int
    buffer: int | None
    init: str

    @property
    def group(self) -> tuple[str, str, int, int | None]:
        """The settings shared by lines that are compared."""
        return self.method, self.loss, self.iterations, self.buffer


@dataclass(frozen=True, slots=True)
class Printed:
    """A number of the paper."""

    value: float
    deviation: float | None
    """Standard deviation over data orders, if the paper prints one."""


Cells = dict[Place, dict[str, Printed]]
"""The numbers of a table by place and metric, in the order of the paper."""


def paper_cells(table: str) -> Cells:
    """Return the numbers of a table with a name such as `last_layer`."""
    found: Cells = {}
    for row in _numbers().filter(pl.col("table") == table).iter_rows(named=True):
        place = Place(
            row["method"] or "",
            row["loss"],
            row["iterations"] or 0,
            row["buffer"],
            row["init"] or "",
        )
        found.setdefault(place, {})[row["metric"]] = Printed(row["value"], row["std"])
    return found


def deviation_of(init: str, metric: str) -> float:
    """Return the paper's only deviation of a metric over class orders, of Table 6; else 0."""
    for place, printed in paper_cells("data_orders").items():
        if place.init == init and metric in printed:
            return printed[metric].deviation or 0.0
    return 0.0


@cache
def _numbers() -> pl.DataFrame:
    content = (files("clinit.analysis.paper") / "numbers.csv").read_bytes()
    return pl.read_csv(BytesIO(content), schema_overrides={"std": pl.Float64})


def runs_by_place(
    runs: Sequence[RunSummary], places: Sequence[Place]
) -> dict[Place, list[RunSummary]]:
    """Return the runs of each place of a table, by seed.

    A budget of our runs is matched with the equal budget of the paper. If no budget is equal, but
    we have as many budgets as the paper (a reduced setting), budgets are matched in order, smaller
    budgets first. Runs of other budgets get new places, which the paper lacks.
    """
    found: dict[Place, list[RunSummary]] = {place: [] for place in places}
    methods = dict.fromkeys(place.method for place in places)
    for method in methods:
        own = [run for run in runs if run.config["method"] == method]
        theirs = [place for place in places if place.method == method]
        budgets = _matched(
            sorted({_budget(run) for run in own}, key=_size),
            sorted({(each.iterations, each.buffer) for each in theirs}, key=_size),
        )
        lines = {(each.loss, each.init) for each in theirs}
        for run in sorted(own, key=lambda run: run.config["seed"]):
            if (run.config["loss"], run.init) not in lines:
                continue
            key = (run.config["loss"], *budgets[_budget(run)], run.init)
            found.setdefault(Place(method, *key), []).append(run)
    return found


def values_of(
    rows: Sequence[Row], metric: str, *, at_start: bool, random: Sequence[Row] = ()
) -> Values:
    """Return a metric of the paper for runs of one place, by seed; empty without values.

    Args:
        rows: Rows of the report for runs that differ in their seed.
        metric: Name among the paper's numbers.
        at_start: Whether the table is about the first task before any training.
        random: Rows of the report for runs with random rows, for relative metrics.
    """
    whole = {row["seed"]: row["seconds"] for row in random}
    found = {}
    for row in rows:
        value = _first_task(row, metric) if at_start else _value(row, metric)
        if metric == "overhead":
            seconds = whole.get(row["seed"])
            value = 6000 * value / seconds if seconds and value is not None else None
        if value is not None:
            found[row["seed"]] = value
    return found


def _first_task(row: Row, metric: str) -> float | None:
    names = {name: f"{name}_start" for name in ACCURACIES} | {"acc_pre": "acc_pre_alone_start"}
    value: float | None = row["tasks"][0].get(names.get(metric, ""))
    return value


def _value(row: Row, metric: str) -> float | None:
    value: float | None = None
    if metric.startswith("probe_task"):
        before = [task for task in row["tasks"] if task["task"] == int(metric[-1]) - 1]
        value = before[0]["forward_transfer"] if before else None
    elif metric in ("minutes_init", "overhead"):
        tasks = [(task["initialisation"] or {}).get("seconds") for task in row["tasks"]]
        known = [seconds for seconds in tasks if seconds is not None]
        value = sum(known) / 60 if known and row["init"] != "random" else None
    elif metric == "minutes_total":
        value = None if row["seconds"] is None else row["seconds"] / 60
    else:
        names = {"gain": "gain_equal_level", "acc_fw": "forward_transfer"}
        value = row.get(names.get(metric, metric))
    return value


def _budget(run: RunSummary) -> Budget:
    return run.config["iterations"], run.config.get("buffer")


def _size(budget: Budget) -> tuple[int, int]:
    return budget[0], budget[1] or 0


def _matched(ours: list[Budget], theirs: list[Budget]) -> dict[Budget, Budget]:
    if len(ours) == len(theirs) and not set(ours) & set(theirs):
        return dict(zip(ours, theirs, strict=True))
    return {budget: budget for budget in ours}
