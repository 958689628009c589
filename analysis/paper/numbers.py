"""The numbers that the paper prints, 434 of them, and ours, by table and place.

Source: M. Y. Harun, C. Kanan, "A good start matters: enhancing continual learning with data-driven
weight initialization", CoLLAs 2025, tables 1 to 8 and the text on neural collapse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any

import polars as pl

from clinit.analysis.paper.tables import WITH_ALONE
from clinit.analysis.report.run import Row, RunSummary

Budget = tuple[int, int | None]
Values = dict[int, float]
"""A value by the seed of its run."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """What tells the lines of a table of the paper apart."""

    method: str
    loss: str
    iterations: int
    buffer: int | None
    init: str

    @property
    def group(self) -> tuple[str, str, int, int | None]:
        """What the lines that are compared share."""
        return self.method, self.loss, self.iterations, self.buffer


@dataclass(frozen=True, slots=True)
class Printed:
    """A number of the paper."""

    value: float
    deviation: float | None
    """Standard deviation over data orders, where the paper prints one."""


Cells = dict[Place, dict[str, Printed]]
"""The numbers of a table by place and metric, in the order of the paper."""


def paper_cells(table: str) -> Cells:
    """Return the numbers of a table; `table` is a name such as `last_layer`."""
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


@cache
def _numbers() -> pl.DataFrame:
    content = (files("clinit.analysis.paper") / "numbers.csv").read_bytes()
    return pl.read_csv(BytesIO(content), schema_overrides={"std": pl.Float64})


def runs_by_place(
    runs: Sequence[RunSummary], places: Sequence[Place]
) -> dict[Place, list[RunSummary]]:
    """Return the runs of each place of a table, by seed.

    A budget of ours stands for the one of the paper that it equals. Where none does and there are
    as many of both, ours stand for the paper's in their order, the smaller one first: that is a
    reduced setting. Any other is not in the paper, and its runs have places of their own.
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
    """Return a metric of the paper for runs of one place, by seed; empty where there is none.

    Args:
        rows: Those of the runs, which differ in their seed.
        metric: Its name among the paper's numbers.
        at_start: Whether the table is of the first task before any training.
        random: The same of runs with random rows, for what is relative to these.
    """
    read = _FIRST_TASK if at_start else _READERS
    if metric not in read:
        return {}
    found = {row["seed"]: read[metric](row) for row in rows}
    if metric == "overhead":
        whole = {row["seed"]: row["seconds"] for row in random}
        found = {
            seed: None if part is None or not whole.get(seed) else 6000 * part / whole[seed]
            for seed, part in found.items()
        }
    return {seed: value for seed, value in found.items() if value is not None}


def _budget(run: RunSummary) -> Budget:
    return run.config["iterations"], run.config.get("buffer")


def _size(budget: Budget) -> tuple[int, int]:
    return budget[0], budget[1] or 0


def _matched(ours: list[Budget], theirs: list[Budget]) -> dict[Budget, Budget]:
    if len(ours) == len(theirs) and not set(ours) & set(theirs):
        return dict(zip(ours, theirs, strict=True))
    return {budget: budget for budget in ours}


def _initialisation(row: Row) -> float | None:
    """Return the minutes that the starts of a run took; none for random rows."""
    if row["init"] == "random":
        return None
    seconds = [(task["initialisation"] or {}).get("seconds") for task in row["tasks"]]
    known = [each for each in seconds if each is not None]
    return sum(known) / 60 if known else None


def _probe(number: int) -> Callable[[Row], float | None]:
    def read(row: Row) -> float | None:
        for task in row["tasks"]:
            if task["task"] == number - 1:
                value: float | None = task["forward_transfer"]
                return value
        return None

    return read


def _plain(name: str) -> Callable[[Row], float | None]:
    return lambda row: row[name]


def _first(name: str) -> Callable[[Row], float | None]:
    return lambda row: row["tasks"][0][name]


_READERS: Mapping[str, Callable[[Row], Any]] = {
    **{name: _plain(name) for name in ("loss_new", *WITH_ALONE)},
    "gain": _plain("gain_equal_level"),
    "acc_fw": _plain("forward_transfer"),
    **{f"probe_task{number}": _probe(number) for number in (2, 3, 4, 5)},
    "minutes_total": lambda row: None if row["seconds"] is None else row["seconds"] / 60,
    "minutes_init": _initialisation,
    "overhead": _initialisation,
}
_FIRST_TASK: Mapping[str, Callable[[Row], Any]] = {
    "acc_pre": _first("acc_pre_alone_start"),
    **{name: _first(f"{name}_start") for name in ("acc_new", "acc_old", "acc_all")},
}
