"""Curves of the page, thinned so that spikes survive and the page stays small.

A curve is cut at the task switches. If a task has too many points, its steps are divided into spans
of equal length. The lowest and the highest value of each span stay at their iterations, and so do
the first and the last value of the task. Curves with equal iterations share one list of iterations,
stored as differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from clinit.analysis.figures.curves import ends_of
from clinit.analysis.figures.line import extremes, spans_decades
from clinit.analysis.report.run import RunSummary

ACCURACIES = ("acc_new", "acc_old", "acc_all")
POINTS_OF_PAGE = 10_000
"""Maximum number of points of all curves of one kind: some 8 bytes each, up to five kinds."""
FEWEST, MOST = 48, 1_500
"""Least and largest bound of the number of points of one curve: no screen has more columns."""
DIGITS = 4

Curve = list[list[Any]]
"""One entry per task: the index of its iterations in `grids`, then its values."""


def curves(runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return the curves of the runs by name, with the iterations and tasks of their points."""
    most = max(FEWEST, min(MOST, POINTS_OF_PAGE // len(runs)))
    grids: dict[tuple[int, ...], int] = {}
    ends = [[*ends_of(run).values()] for run in runs]
    shares = [max(4, most // max(1, len(each))) for each in ends]  # points per task
    drawn = {
        name: [
            _curve(run.record.steps if name == "loss" else run.points, name, share, grids)
            for run, share in zip(runs, shares, strict=True)
        ]
        for name in ("loss", "loss_new", *ACCURACIES)
    }
    longest = [max(np.diff(each, prepend=0)) for each in ends]
    return {
        "ends": ends,
        "grids": [np.diff(grid, prepend=0).tolist() for grid in grids],
        "of": drawn,
        "log": {
            "loss": _is_log([run.record.steps["loss"] for run in runs]),
            "loss_new": _is_log([run.points["loss_new"] for run in runs]),
        },
        "thinned": any(steps > share for steps, share in zip(longest, shares, strict=True)),
    }


def thin(values: Float[np.ndarray, " steps"], most: int) -> Int[np.ndarray, " kept"]:
    """Return the indices of about `most` values: the lowest and the highest of each span.

    The indices include the first and the last value, and the first value of a span without numbers.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), max(1, (most - 2) // 2) + 1).astype(int)
    return extremes(values, edges[:-1])


def _curve(table: pl.DataFrame, name: str, most: int, grids: dict[tuple[int, ...], int]) -> Curve:
    found: Curve = []
    for (_,), part in table.sort("task", "iteration").group_by("task", maintain_order=True):
        values = part[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        kept = thin(values, most)
        iterations = tuple(part["iteration"].to_numpy()[kept].tolist())
        place = grids.setdefault(iterations, len(grids))
        digits = [None if not np.isfinite(v) else _rounded(name, v) for v in values[kept]]
        found.append([place, digits])
    return found


def _rounded(name: str, value: float) -> int | float:
    number = round(float(value), 2) if name in ACCURACIES else float(f"{value:.{DIGITS}g}")
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def _is_log(losses: Sequence[pl.Series]) -> bool:
    """Return whether losses span decades, by the same rule as for figures."""
    known = pl.concat(losses).cast(pl.Float64).drop_nulls().drop_nans()
    return spans_decades(known.filter(known.is_finite()).to_list())
