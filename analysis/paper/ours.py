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

    The budgets of our runs stand for those of the paper in their order, the smaller one first;
    where there are fewer, each stands for the one that it equals, or else for the smallest.

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
        by_key = {(each.loss, each.init, each.iterations, each.buffer): each for each in theirs}
        for run in sorted(own, key=lambda run: run.config["seed"]):
            place = by_key.get((run.config["loss"], run.init, *budgets[_budget(run)]))
            if place is not None:
                found[place].append(run)
    return found


def values_of(
    runs: Sequence[RunSummary], metric: str, *, at_start: bool, random: Sequence[RunSummary] = ()
) -> Values:
    """Return a metric of the paper for runs of one place, by seed; empty where there is none.

    Args:
        runs: That differ in their seed.
        metric: Its name among the paper's numbers.
        at_start: Whether the table is of the first task before any training.
        random: The runs with random rows beside them, for what is relative to these.
    """
    read = _FIRST_TASK if at_start else _READERS
    if metric not in read:
        return {}
    found = {run.config["seed"]: read[metric](run.row()) for run in runs}
    if metric == "overhead":
        whole = {run.config["seed"]: run.row()["seconds"] for run in random}
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
    if len(ours) == len(theirs):
        return dict(zip(ours, theirs, strict=True))
    return {budget: budget if budget in theirs else theirs[0] for budget in ours}


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
