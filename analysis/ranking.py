"""Runs ranked, with mean and standard deviation over seeds.

Runs that differ only in their seed are one line. The deviation is that of a sample (n - 1); a
value that a run of a group lacks leaves that run out of this value.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clinit.analysis.captions import gain_caption, loss_caption
from clinit.analysis.columns import Cells, Column, table_of, width_of
from clinit.analysis.efficiency import PLACE_SETTINGS, READINGS, Reading, value_name
from clinit.analysis.run_names import name_cells, name_columns
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, common, differences


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of one value over seeds."""

    mean: float
    deviation: float | None
    """None where there is one value only."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of `values`; None where there is none."""
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation)

    def text(self, digits: int) -> str:
        """Return mean and deviation as printed."""
        mean = f"{self.mean:.{digits}f}" if abs(self.mean) < 1000 else f"{self.mean:.3g}"
        return mean if self.deviation is None else f"{mean} ±{self.deviation:.{digits}f}"


@dataclass(frozen=True, slots=True, eq=False)
class SeedGroup:
    """Runs that differ only in their seed."""

    runs: tuple[RunSummary, ...]
    values: dict[str, Spread | None]
    """By the name of the value in the rows of the report."""

    @classmethod
    def of(cls, runs: Sequence[RunSummary]) -> SeedGroup:
        """Summarise runs of different seeds."""
        rows = [run.row() for run in runs]
        found = {
            name: Spread.of([row[name] for row in rows if row[name] is not None]) for name in VALUES
        }
        return cls(tuple(runs), found)

    @property
    def gain_is_partial(self) -> bool:
        """Whether a run does not get to the level of random in every task."""
        return any(run.gain is not None and not run.gain.complete for run in self.runs)

    def text(self, value: _Value) -> str:
        """Return mean and deviation of a value as printed."""
        found = self.values[value.name]
        if found is None:
            return NOTHING
        partly = value.is_gain and self.gain_is_partial
        return found.text(value.digits) + ("*" if partly else "")


@dataclass(frozen=True, slots=True)
class _Value:
    heading: str
    name: str
    digits: int

    @property
    def is_gain(self) -> bool:
        return self.name in map(value_name, READINGS)


VALUES = ("acc_all", "acc_new", "acc_old", "acc_pre", "loss_new", *map(value_name, READINGS))
"""What is averaged over seeds, by its name in the rows of the report."""


def seed_groups(runs: Sequence[RunSummary]) -> list[SeedGroup]:
    """Group runs that differ only in their seed; the best A_all first."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        groups.setdefault(seedless_key(run), []).append(run)
    found = [SeedGroup.of(group) for group in groups.values()]
    return sorted(found, key=_rank)


def num_seeds(runs: Sequence[RunSummary]) -> int:
    """Return the number of seeds of the runs."""
    return len({run.config.get("seed") for run in runs})


def ranking(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one line per group of seeds, the best first, at most `width` columns wide."""
    names = tuple(name for name in differences(runs).names if name not in ("seed", "run"))
    groups = seed_groups(runs)
    values, left_out = _values(reading), list[_Value]()
    table = _table(groups, names, values)
    while len(values) > 1 and width_of(table) > width:
        left_out.insert(0, values.pop())
        table = _table(groups, names, values)
    title = Text(common(runs, (*names, "seed")), style="bold")
    caption = _caption(groups, values, left_out, reading)
    return Group(title, table, Text(caption, style="dim"))


def _values(reading: Reading) -> list[_Value]:
    """Return what is shown; what does not fit the width is left out from the right."""
    return [
        _Value("A_all\n%↑", "acc_all", 2),
        _Value("A_new\n%↑", "acc_new", 2),
        _Value("A_old\n%↑", "acc_old", 2),
        _Value("A_pre\n%↑", "acc_pre", 2),
        _Value("L_new\n↓", "loss_new", 3),
        _Value("gain\n×↑", value_name(reading), 2),
    ]


def _table(groups: Sequence[SeedGroup], names: Sequence[str], values: Sequence[_Value]) -> Table:
    columns = [
        Column("#", "number"),
        *name_columns(names),
        Column("seeds", "number"),
        *(Column(value.heading, "number") for value in values),
    ]
    lines: list[Cells] = [
        [
            str(number),
            *name_cells(group.runs[0], names, group.runs),
            str(len(group.runs)),
            *map(group.text, values),
        ]
        for number, group in enumerate(groups, start=1)
    ]
    return table_of(columns, [lines])


def _caption(
    groups: Sequence[SeedGroup],
    values: Sequence[_Value],
    left_out: Sequence[_Value],
    reading: Reading,
) -> str:
    words = "Ranked by A_all, on test images: mean over evaluation points and seeds"
    if any(len(group.runs) > 1 for group in groups):
        words += ", ± standard deviation over seeds"
    counts = {len(group.runs) for group in groups}
    if len(counts) > 1:
        words += f". Not all have the same number of seeds ({min(counts)} to {max(counts)})"
    words += "."
    if any(value.name == "loss_new" for value in values):
        words += f" {loss_caption([run for group in groups for run in group.runs])}"
    if any(value.is_gain for value in values):
        words += f" {gain_caption(reading)}"
        if any(group.gain_is_partial for group in groups):
            words += " *: not in every task of every run."
    if left_out:
        names = ", ".join(value.heading.split("\n")[0] for value in left_out)
        words += f" Not shown in this width: {names}."
    return words


def seedless_key(run: RunSummary) -> str:
    """Return what runs share that differ only in their seed, and in where they were made."""
    left_out = {*PLACE_SETTINGS, "seed"}
    config = {name: value for name, value in run.config.items() if name not in left_out}
    info = run.record.info
    sides: list[Mapping[str, Any]] = [info.get("base") or {}, info.get("new") or {}]
    plain = [{name: value for name, value in side.items() if name != "path"} for side in sides]
    head = (info.get("head") or {}).get("digest")
    return json.dumps([config, plain, head], sort_keys=True, default=str)


def _rank(group: SeedGroup) -> float:
    best = group.values["acc_all"]
    return float("inf") if best is None else -best.mean
