"""Lines of figures: runs grouped by start, means and ranges over seeds, scales and ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl
from jaxtyping import Float, Int
from rich.cells import cell_len, chop_cells

from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import SeedGroup, alike, labels
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

    @property
    def has_band(self) -> bool:
        """Whether seeds differ at some point."""
        return bool(np.any(self.high > self.low))

    def moved(self, by: Real) -> Line:
        """Return the line further to the right."""
        return Line(self.at + by, self.mean, self.low, self.high)

    def raised(self, floor: float | None) -> Line:
        """Return the line with lower values raised to `floor`; NaN stays."""
        if floor is None:
            return self
        return Line(
            self.at, *(np.maximum(each, floor) for each in (self.mean, self.low, self.high))
        )

    def pieces(self) -> list[Line]:
        """Return the parts between values that are not finite."""
        finite = np.isfinite(self.mean) & np.isfinite(self.low) & np.isfinite(self.high)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], finite.astype(int), [0]])))
        return [
            Line(self.at[a:b], self.mean[a:b], self.low[a:b], self.high[a:b])
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        ]

    def thinned(self, start: Real, stop: Real, columns: int) -> Line:
        """Divide start to stop into equal `columns`; keep two points of each, and both ends.

        The two are the points with the least and the greatest mean. Their range over seeds becomes
        the range of the whole column, so that no spike is lost, of the mean or of a single seed.
        """
        if len(self.at) <= 2 * columns or stop <= start:
            return self
        column = np.floor((self.at - start) * columns / (stop - start)).astype(np.int64)
        firsts = np.flatnonzero(np.diff(column, prepend=column[0] - 1))
        sizes = np.diff(firsts, append=len(column))
        low = np.repeat(np.minimum.reduceat(self.low, firsts), sizes)
        high = np.repeat(np.maximum.reduceat(self.high, firsts), sizes)
        chosen = extremes(self.mean, firsts)
        return Line(self.at[chosen], self.mean[chosen], low[chosen], high[chosen])


def extremes(values: Values, firsts: Int[np.ndarray, " spans"]) -> Int[np.ndarray, " kept"]:
    """Return the indices of the lowest and the highest value of each span, and of both ends.

    The indices include the first value of a span without numbers.
    """
    low = np.where(np.isfinite(values), values, np.inf)
    high = np.where(np.isfinite(values), values, -np.inf)
    kept = {0, len(values) - 1}
    for start, stop in pairwise([*firsts.tolist(), len(values)]):
        kept |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
    return np.array(sorted(kept))


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
    The logarithmic scale ends at a hundredth of the least peak, because the valleys of the noise
    would otherwise fill the height of the figure.
    """
    peaks = [max(finite_values([lines]), default=0.0) for lines in series]
    peaks = [peak for peak in peaks if peak > 0]
    return min(peaks) / 100 if spans_decades(peaks) else None


def finite_values(series: Iterable[Iterable[Line]], *, bands: bool = True) -> list[float]:
    """Return the finite values of lines, including their bands unless `bands` is false."""
    arrays = [
        values[np.isfinite(values)]
        for lines in series
        for line in lines
        for values in ((line.mean, line.low, line.high) if bands else (line.mean,))
    ]
    return np.concatenate(arrays).tolist() if arrays else []


LOG_RATIO = 20.0
"""Ratio of the largest to the smallest value above which a scale is logarithmic."""


def spans_decades(values: Sequence[Real]) -> bool:
    """Return whether values are positive and differ by more than a factor of `LOG_RATIO`."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_RATIO


def round_ticks(low: Real, high: Real, *, log: bool, count: int = 5) -> list[float]:
    """Return about `count` round numbers between `low` and `high`."""
    if log:
        return _round_powers(low, high, count)
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _round_powers(low: Real, high: Real, count: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= count + 2:
            return ticks
    return ticks[:: math.ceil(len(ticks) / (count + 2))]


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """A way to start new rows, with one run per seed."""

    name: str
    """Short and distinct, without control characters."""
    runs: tuple[RunSummary, ...]

    @property
    def first(self) -> RunSummary:
        """The run that represents the start if only one seed can be drawn."""
        return self.runs[0]


def starts_of(runs: Sequence[RunSummary]) -> list[Start]:
    """Return the starts of `runs`, in their order.

    Copies of a run with the same seed are separate starts.
    """
    parts = alike(runs)
    names = labels([part[0] for part in parts], without=("seed",))
    return [Start(visible(name), part) for name, part in zip(names, parts, strict=True)]


def best_of(starts: Sequence[Start], most: int) -> list[Start]:
    """Return the starts with the best mean A_all over seeds, at most `most`, in their order."""
    best = sorted(starts, key=lambda start: SeedGroup.of(start.runs).rank())[:most]
    return [start for start in starts if start in best]


def shortened(name: str, width: int) -> str:
    """Return a name in at most `width` columns, with an ellipsis if it is cut."""
    if cell_len(name) <= width:
        return name
    return chop_cells(name, max(1, width - 1))[0] + "…" if width > 1 else "…"[:width]
