"""The measures of a run in tables: name in a row of the report, heading and meaning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clinit.analysis.metrics.efficiency import READINGS, Reading, value_name
from clinit.analysis.report.table import Better, Column
from clinit.words import duration


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run."""

    name: str
    """Name in the rows of the report."""
    heading: str
    unit: str
    better: Better
    digits: int
    """Number of digits after the decimal point."""
    meaning: str = ""
    """Words for a caption, after the heading."""
    factor: float = 1.0
    """Factor from the value in the row to the printed unit."""

    def column(self, need: int, meaning: str = "") -> Column:
        """Return the column of the measure; a column with a higher `need` is dropped sooner."""
        return Column(self.heading, "number", self.unit, self.better, need, meaning)

    @property
    def is_gain(self) -> bool:
        """Whether it is an efficiency gain, by one of its readings."""
        return self.name in map(value_name, READINGS)

    def text(self, value: float) -> str:
        """Return a value of a row as printed, without its unit."""
        return (
            duration(value) if self.name == "seconds" else number(self.factor * value, self.digits)
        )


def number(value: float, digits: int) -> str:
    """Return a number with `digits` digits after the point, fewer if the number is large."""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    rounded = round(value, 0 if abs(value) >= 1000 else digits) + 0.0  # no -0.00
    return f"{rounded:,.0f}" if abs(value) >= 1000 else f"{rounded:.{digits}f}"


LAST = Measure("last_accuracy", "A_last", "%", "high", 2, "A_all at the end of the last task")
INCREMENTAL = Measure(
    *("average_incremental_accuracy", "A_inc", "%", "high", 2),
    meaning="A_all at the end of each task, mean over tasks",
)
FORGETTING = Measure(
    *("forgetting", "forg.", "%", "low", 2),
    meaning="forgetting, drop of earlier tasks from their best accuracy to the last",
)
START = Measure(
    *("acc_new_start", "A_0", "%", "high", 2),
    meaning="A_new before the first step of each task, mean over tasks",
)
ALL = Measure("acc_all", "A_all", "%", "high", 2)
NEW = Measure("acc_new", "A_new", "%", "high", 2)
OLD = Measure("acc_old", "A_old", "%", "high", 2)
PRE = Measure("acc_pre", "A_pre", "%", "high", 2)
LOSS = Measure("loss_new", "L_new", "", "low", 3)
TRANSFER = Measure(
    *("forward_transfer", "FWT", "%", "high", 2),
    meaning="forward transfer, top-1 of a linear probe on the next task's classes, mean",
)
TIME = Measure(
    *("seconds", "time", "", "low", 2),
    meaning="seconds (s), minutes (m) or hours (h) of this run alone",
)


def gain_measure(reading: Reading) -> Measure:
    """Return the efficiency gain by a reading."""
    return Measure(value_name(reading), "gain", "×", "high", 2)


def ranked_measures(reading: Reading) -> list[Measure]:
    """Return the measures of the ranking; `MOST_NEEDED` is the order in which they are dropped."""
    ends = (LAST, INCREMENTAL, FORGETTING, START, NEW, OLD, PRE, LOSS)
    return [ALL, *ends, gain_measure(reading)]


def run_measures(reading: Reading) -> list[Measure]:
    """Return the measures in the table of single runs."""
    ends = (LAST, INCREMENTAL, FORGETTING, TRANSFER, START, NEW, OLD, PRE, LOSS)
    return [ALL, *ends, gain_measure(reading), TIME]


def task_measures(reading: Reading) -> list[Measure]:
    """Return the measures in the tables of single tasks."""
    end = Measure("acc_new_end", "end", "%", "high", 2)
    # In the line of the probed task, as in the paper's Table 7.
    probed = Measure("forward_transfer_into", "FWT", "%", "high", 2)
    scale = (Measure(name, name, "", "neither", 3) for name in ("factor", "shift"))
    return [PRE, START, NEW, end, OLD, ALL, LOSS, gain_measure(reading), probed, *scale]


MOST_NEEDED = (
    *("acc_all", *map(value_name, READINGS), "acc_new", "acc_new_start", "last_accuracy"),
    *("forward_transfer", "acc_pre", "acc_old", "loss_new", "seconds"),
    *("forgetting", "average_incremental_accuracy"),
)
"""Columns of the default tables: if there is no room, the last is dropped first."""

FURTHER_MEASURES = (
    Measure(
        *("backward_transfer", "BWT", "%", "high", 2),
        meaning="backward transfer, change of earlier tasks since their own end",
    ),
    Measure(
        *("acc_in_task", "A_task", "%", "high", 2),
        meaning="predicted within the task of the image",
    ),
    Measure(
        *("spike_area", "spike", "L·it", "low", 1),
        meaning="area of the batch loss above its final level, loss × iterations, mean over tasks",
    ),
    Measure(
        *("initialisation_seconds", "init", "s", "neither", 2),
        meaning="seconds of initialisation, all tasks",
    ),
    Measure(
        *("initialisation_share", "share", "%", "neither", 1),
        meaning="share of initialisation in the run",
        factor=100.0,
    ),
    Measure(
        *("acc_pre_alone", "A_base", "%", "high", 2),
        meaning="base images predicted among only the base classes",
    ),
)
"""Columns of the table of further metrics, the most important columns first."""

MEANS = dict.fromkeys(
    (
        *(measure.name for reading in READINGS for measure in ranked_measures(reading)),
        *(measure.name for measure in FURTHER_MEASURES),
        *("loss_new_start", "spike_height", "seconds", "d_ls", "d_ls_relative"),
        "forward_transfer",
    )
)
"""Measures that are averaged over seeds, by their names in the rows of the report."""


def meanings(measures: Sequence[Measure]) -> str:
    """Return the meanings of measures for a caption; a meaning shared by several appears once."""
    found: dict[str, list[str]] = {}
    for each in measures:
        if each.meaning:
            found.setdefault(each.meaning, []).append(each.heading)
    return " ".join(f"{', '.join(headings)}: {words}." for words, headings in found.items())
