"""The runs of a sweep: a study for every combination of a grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from clinit.errors import ExperimentError
from clinit.headtrain.study import Study, refusals
from clinit.headtrain.sweep.fields import Value
from clinit.headtrain.sweep.grid import Grid, Interval, Together, values_in


def run_of(settings: Mapping[str, Any], *, top: bool = False) -> Study:
    """Return the run with these settings; all others, and those without effect, have defaults.

    Raises:
        ExperimentError: If a value is not one that its setting takes, or settings exclude each
            other.
    """
    try:
        return Study.of(settings, top=top).reduced()
    except ValueError as error:
        command = "train-top" if top else "train-head"
        raise ExperimentError(
            str(error), remedy=f"See `clinit {command} --help` for what each option takes."
        ) from error


def runs_of(grid: Grid, *, top: bool = False) -> Iterator[Study]:
    """Yield the run of every combination of values, the last field varying fastest.

    Raises:
        ExperimentError: If a field takes a range without a count, or a value is not one that
            its field takes.
    """
    for settings in _combinations(grid):
        yield run_of(settings, top=top)


def _combinations(grid: Grid) -> Iterator[dict[str, Value]]:
    choices: list[list[dict[str, Value]]] = []
    for name, choice in grid.items():
        if isinstance(choice, Interval):
            raise ExperimentError(
                f"{name}={choice} does not say how many values",
                remedy=f"Write {name}={choice}5 for five values, or search with --search optuna.",
            )
        if isinstance(choice, Together):
            rows = [dict(zip(choice.names, row, strict=True)) for row in choice.rows]
            choices.append(rows)
        else:
            choices.append([{name: value} for value in choice])
    for parts in product(*choices):
        yield {name: value for part in parts for name, value in part.items()}


def refuse_idle(grids: Iterable[Grid], asked: Iterable[str], *, top: bool = False) -> None:
    """Check that some run of some grid reads each of the fields.

    Args:
        grids: With the fields that decide what is read: method, init_rows, full_rank.
        asked: Names of the fields to check.
        top: Whether the runs are of top blocks.

    Raises:
        ExperimentError: If the method of every run ignores one of them.
    """
    studies: list[Study] = []
    try:
        for grid in grids:
            deciding = {
                name: values
                for name in ("method", "init_rows", "full_rank", "ewc_mode")
                if (values := values_in(grid, name)) is not None
            }
            studies += [Study.of(settings, top=top) for settings in _combinations(deciding)]
        found = refusals(asked, studies)
    except ValueError:  # a wrong value, which is refused when its run is made
        return
    if found:
        raise ExperimentError(found[0], remedy="Leave it out of the grid.")


def distinct(runs: Iterable[Study]) -> list[Study]:
    """Return the runs without those that are the same as an earlier one."""
    return list({run.identity: run for run in reversed(list(runs))}.values())[::-1]
