"""The runs of a sweep: a study for every combination of a grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from clinit.errors import ExperimentError
from clinit.headtrain.study import Study
from clinit.headtrain.sweep.grid import Grid, Interval


def run_of(settings: Mapping[str, Any], *, top: bool = False) -> Study:
    """Return the run with these settings, all others and those without an effect at their default.

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
    choices = []
    for name, choice in grid.items():
        if isinstance(choice, Interval):
            raise ExperimentError(
                f"{name}={choice} does not say how many values",
                remedy=f"Write {name}={choice}5 for five values, or search with --search optuna.",
            )
        choices.append(choice)
    for values in product(*choices):
        yield run_of(dict(zip(grid, values, strict=True)), top=top)


def distinct(runs: Iterable[Study]) -> list[Study]:
    """Return the runs without those that are the same as an earlier one."""
    return list({run.identity: run for run in reversed(list(runs))}.values())[::-1]
