"""Does an effect of the paper hold in our runs: which start is better, by how many points.

Over several seeds, whose orders, images and batches are shared by the runs that are compared: the
mean of the differences with the 95 % interval of Student's t. With one seed, over test images:
those that one run has right and the other has wrong (Q. McNemar, "Note on the sampling error of the
difference between correlated proportions or percentages", Psychometrika 12, 1947), with the
interval of the difference of paired proportions; these are counted at the ends of the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float
from scipy.stats import binomtest
from scipy.stats import t as student

from clinit.analysis.paper.ours import Values
from clinit.analysis.run_summary import RunSummary

Verdict = Literal["holds", "open", "opposite", "-"]
PAIRS = (("least-square", "random"), ("class-mean", "random"), ("least-square", "class-mean"))
_KEY = ("row", "image")


@dataclass(frozen=True, slots=True)
class Effect:
    """The difference of two starts in one metric, in points."""

    metric: str
    better: str
    """The start whose value the other's is subtracted from."""
    other: str
    paper: float | None
    mean: float | None
    """None where one of the two has no value."""
    half_width: float | None
    """Half of the 95 % interval; None where there is none."""
    over: Literal["seeds", "images", ""]
    number: int
    """Number of seeds, or of test images."""
    p_value: float | None = None
    """Probability of the exact test over images; None over seeds."""

    @property
    def verdict(self) -> Verdict:
        """Whether the sign is that of the paper, beyond the interval, or by the exact test."""
        if self.paper is None or self.mean is None or self.half_width is None or not self.paper:
            return "-"
        is_open = (
            abs(self.mean) <= self.half_width if self.p_value is None else self.p_value >= 0.05
        )
        if is_open:
            return "open"
        return "holds" if self.mean * self.paper > 0 else "opposite"


def over_seeds(better: Values, other: Values) -> tuple[float | None, float | None, int]:
    """Return mean, half width of the 95 % interval and number of the differences by seed."""
    seeds = sorted(better.keys() & other.keys())
    if not seeds:
        return None, None, 0
    found = np.array([better[seed] - other[seed] for seed in seeds])
    return float(found.mean()), _half_width(found), len(seeds)


def over_images(
    better: RunSummary, other: RunSummary, metric: str
) -> tuple[float, float, int, float] | None:
    """Return difference in points, half width, number of images and p of an exact test.

    None where the records do not list mistakes, or the metric is none of acc_new and acc_all.
    """
    mine, theirs = (_right(run, metric) for run in (better, other))
    if mine is None or theirs is None or len(mine) != len(theirs) or not len(mine):
        return None
    gained, lost = int((mine & ~theirs).sum()), int((~mine & theirs).sum())
    number, changed = len(mine), gained + lost
    difference = (gained - lost) / number
    error = np.sqrt(changed - (gained - lost) ** 2 / number) / number
    p_value = float(binomtest(gained, changed).pvalue) if changed else 1.0
    return 100 * difference, 100 * 1.96 * float(error), number, p_value


def _half_width(found: Float[np.ndarray, " seeds"]) -> float | None:
    if len(found) < 2:
        return None
    error = found.std(ddof=1) / np.sqrt(len(found))
    return float(student.ppf(0.975, len(found) - 1) * error)


def _right(run: RunSummary, metric: str) -> Bool[np.ndarray, " images"] | None:
    """Mark which test images a run labels right: of all classes at the end, or of new ones."""
    record = run.record
    if record.mistakes is None or metric not in ("acc_new", "acc_all"):
        return None
    last = max(task["task"] for task in record.info["tasks"])
    if metric == "acc_all":
        classes = record.classes.filter(pl.col("task") <= last)
        wrong = record.mistakes.filter(pl.col("task") == last)
    else:
        classes = record.classes.filter(pl.col("task").is_between(1, last))
        own = classes.select("row", "task")
        wrong = record.mistakes.join(own, on=["row", "task"], how="semi")
    totals = classes["val_rows"].to_numpy()
    start = dict(zip(classes["row"], np.cumsum(totals) - totals, strict=True))
    right = np.ones(int(totals.sum()), dtype=bool)
    right[[int(start[row]) + image for row, image in wrong.select(*_KEY).iter_rows()]] = False
    return right


def ordering(values: Mapping[str, Sequence[float]]) -> str:
    """Return the starts from the lowest to the highest mean, `random < class-mean`.

    Those that are equal as they are printed have a = between them.
    """
    means = {name: round(float(np.mean(each)), 2) for name, each in values.items() if len(each)}
    names = sorted(means, key=lambda name: means[name])
    signs = [" = " if means[a] == means[b] else " < " for a, b in pairwise(names)]
    return "".join(sign + name for sign, name in zip(["", *signs], names, strict=False))
