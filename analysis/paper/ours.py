"""Our numbers in the places of the paper's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clinit.analysis.paper.numbers import Place
from clinit.analysis.paper.tables import WITH_ALONE
from clinit.analysis.run_summary import Row, RunSummary
from clinit.errors import RecordError

Budget = tuple[int, int | None]
Values = dict[int, float]
"""A value by the seed of its run."""


def runs_by_place(
    runs: Sequence[RunSummary], places: Sequence[Place]
) -> dict[Place, list[RunSummary]]:
    """Return the runs of each place of a table, by seed.

    A budget of ours stands for the one of the paper that it equals. Where none does and there are
    as many of both, ours stand for the paper's in their order, the smaller one first: that is a
    reduced setting. Any other is not in the paper, and its runs have places of their own.

    Raises:
        RecordError: If the runs of a method have more budgets than the paper.
    """
    found: dict[Place, list[RunSummary]] = {place: [] for place in places}
    methods = dict.fromkeys(place.method for place in places)
    for method in methods:
        own = [run for run in runs if run.config["method"] == method]
        theirs = [place for place in places if place.method == method]
        budgets = _matched(
            sorted({_budget(run) for run in own}, key=_size),
            sorted({(each.iterations, each.buffer) for each in theirs}, key=_size),
            method,
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


def _matched(ours: list[Budget], theirs: list[Budget], method: str) -> dict[Budget, Budget]:
    if len(ours) > len(theirs):
        raise RecordError(
            f"the runs of {method} have {len(ours)} budgets of iterations and buffer, the table has"
            f" {len(theirs)}",
            remedy="Give another --out, where only runs of this table are recorded.",
        )
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
