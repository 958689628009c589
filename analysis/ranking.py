"""Runs ranked, with mean and standard deviation over seeds.

Runs that differ only in their seed are one line. The deviation is that of a sample (n - 1); a
value that a run of a group lacks leaves that run out of this value.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from clinit.analysis.efficiency import PLACE_SETTINGS
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, SHORT, common, differences, shown


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
            name: Spread.of([row[name] for row in rows if row[name] is not None])
            for name in (column.name for column in COLUMNS)
        }
        return cls(tuple(runs), found)


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    name: str
    digits: int


COLUMNS = (
    _Column("A_all\n%↑", "acc_all", 2),
    _Column("A_new\n%↑", "acc_new", 2),
    _Column("A_old\n%↑", "acc_old", 2),
    _Column("A_pre\n%↑", "acc_pre", 2),
    _Column("L_new\n↓", "loss_new", 3),
    _Column("gain\n×↑", "gain", 1),
)
"""From left to right; those that do not fit the width are left out from the right."""


def seed_groups(runs: Sequence[RunSummary]) -> list[SeedGroup]:
    """Group runs that differ only in their seed; the best A_all first."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    found = [SeedGroup.of(group) for group in groups.values()]
    return sorted(found, key=_rank)


def num_seeds(runs: Sequence[RunSummary]) -> int:
    """Return the number of seeds of the runs."""
    return len({run.config.get("seed") for run in runs})


def ranking(runs: Sequence[RunSummary], width: int) -> RenderableType:
    """Return a line a group of seeds, the best first, at most `width` columns wide."""
    names = tuple(name for name in differences(runs).names if name not in ("seed", "run"))
    groups = seed_groups(runs)
    shown_columns = len(COLUMNS)
    table = _table(groups, names, shown_columns)
    while shown_columns > 1 and _width(table) > width:
        shown_columns -= 1
        table = _table(groups, names, shown_columns)
    title = Text(common(runs, (*names, "seed")), style="bold")
    return Group(title, table, Text(_caption(groups, shown_columns), style="dim"))


def _table(groups: Sequence[SeedGroup], names: Sequence[str], num_columns: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    for name in ("init", "scale"):
        table.add_column(name, no_wrap=True)
    for name in names:
        table.add_column(Text(SHORT.get(name, name)), overflow="fold")
    table.add_column("seeds", justify="right", no_wrap=True)
    for column in COLUMNS[:num_columns]:
        table.add_column(Text(column.heading, justify="right"), justify="right", no_wrap=True)
    for number, group in enumerate(groups, start=1):
        first = group.runs[0]
        scale = NOTHING if first.init == "random" else first.scale
        numbers = (
            NOTHING if (found := group.values[column.name]) is None else found.text(column.digits)
            for column in COLUMNS[:num_columns]
        )
        words = [str(number), first.init, scale, *(shown(first, name) for name in names)]
        table.add_row(*map(Text, (*words, str(len(group.runs)), *numbers)))
    return table


def _caption(groups: Sequence[SeedGroup], num_columns: int) -> str:
    words = "Ranked by A_all, on test images: mean over evaluation points and seeds"
    if any(len(group.runs) > 1 for group in groups):
        words += ", ± standard deviation over seeds"
    counts = {len(group.runs) for group in groups}
    if len(counts) > 1:
        words += f". Not all have the same number of seeds ({min(counts)} to {max(counts)})"
    if num_columns < len(COLUMNS):
        left = ", ".join(column.heading.split("\n")[0] for column in COLUMNS[num_columns:])
        words += f". Not shown in this width: {left}"
    return words + "."


def _key(run: RunSummary) -> str:
    left_out = {*PLACE_SETTINGS, "seed"}
    config = {name: value for name, value in run.config.items() if name not in left_out}
    info = run.record.info
    sides = [info.get(side) or {} for side in ("base", "new")]
    plain = [{name: value for name, value in side.items() if name != "path"} for side in sides]
    head = (info.get("head") or {}).get("digest")
    return json.dumps([config, plain, head], sort_keys=True, default=str)


def _rank(group: SeedGroup) -> float:
    best = group.values["acc_all"]
    return float("inf") if best is None else -best.mean


def _width(table: Table) -> int:
    console = Console(width=1000)
    return Measurement.get(console, console.options, table).maximum
