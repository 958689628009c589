"""Lines of figures: runs grouped by start, means and ranges over seeds, scales."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float
from rich.cells import cell_len, chop_cells

from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import alike, labels
from clinit.words import visible

Real = int | float
Values = Float[np.ndarray, " points"]


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Points from left to right. If the value of a seed is not finite, neither is the mean."""

    at: Values
    mean: Values
    low: Values
    """Least value over seeds."""
    high: Values
    """Greatest value over seeds."""

    def moved(self, by: Real) -> Line:
        """Return the line further to the right."""
        return Line(self.at + by, self.mean, self.low, self.high)


def lines_of(tables: Sequence[pl.DataFrame], name: str) -> dict[int, Line]:
    """Return the line of column `name` against iterations for each task.

    Its mean and range are over `tables`, one table per seed. Points at which a seed has no value
    are left out.
    """
    value = pl.col(name).cast(pl.Float64)
    points = (
        pl.concat(table.select("task", "iteration", value) for table in tables)
        .drop_nulls()
        .group_by("task", "iteration")
        .agg(mean=value.mean(), low=value.min(), high=value.max(), seeds=pl.len())
        .filter(pl.col("seeds") == len(tables))
        .sort("task", "iteration")
    )
    found = {}
    for (task,), part in points.group_by("task", maintain_order=True):
        assert isinstance(task, int)
        at = part["iteration"].cast(pl.Float64).to_numpy()
        found[task] = Line(at, *(part[which].to_numpy() for which in ("mean", "low", "high")))
    return found


def log_floor(series: Iterable[Iterable[Line]]) -> float | None:
    """Return the lower end of a logarithmic scale of noisy lines; None if a linear scale suffices.

    On a linear scale, a line would look flat next to a line with a peak `LOG_RATIO` times as high.
    The logarithmic scale ends at a hundredth of the least peak; or lower, up to a factor of 1e5
    below that peak, if a line begins there or a quarter of its points are. A quarter, because the
    valleys of the noise would otherwise fill the height of the figure.
    """
    every = [list(lines) for lines in series]
    highs = [np.concatenate([[0.0], *(line.high for line in lines)]) for lines in every]
    peaks = [float(high[np.isfinite(high)].max()) for high in highs]
    peaks = [peak for peak in peaks if peak > 0]
    if not spans_decades(peaks):
        return None
    begins = (line.low[:1] for lines in every for line in lines)
    means = (np.sort(line.mean[line.mean > 0]) for lines in every for line in lines)
    low = np.concatenate([*begins, *(mean[len(mean) // 4 :][:1] for mean in means)])
    lowest = min(low[low > 0], default=np.inf)
    return max(min(min(peaks) / 100, lowest / 2), min(peaks) / 1e5)


LOG_RATIO = 20.0
"""Ratio of the largest to the smallest value above which a scale is logarithmic."""


def spans_decades(values: Sequence[Real]) -> bool:
    """Return whether values are positive and differ by more than a factor of `LOG_RATIO`."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_RATIO


@dataclass(frozen=True, slots=True, eq=False)
class StartRuns:
    """A way to start new rows, with one run per seed."""

    name: str
    """Short and distinct, without control characters."""
    runs: tuple[RunSummary, ...]


def starts_of(runs: Sequence[RunSummary]) -> list[StartRuns]:
    """Return the starts of `runs`, in their order.

    Copies of a run with the same seed are separate starts.
    """
    parts = alike(runs)
    names = labels([part[0] for part in parts], without=("seed",))
    return [StartRuns(visible(name), part) for name, part in zip(names, parts, strict=True)]


def shortened(name: str, width: int) -> str:
    """Return a name in at most `width` columns, with an ellipsis if it is cut."""
    if cell_len(name) <= width:
        return name
    return chop_cells(name, max(1, width - 1))[0] + "…" if width > 1 else "…"[:width]
