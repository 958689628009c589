"""Runs that differ only in their seed, and mean and standard deviation over them.

The deviation is that of a sample (n - 1); a value that a run of a group lacks leaves that run out
of this value. A run that was recorded twice is not taken for two seeds: its copies belong to groups
of their own, and have numbers where nothing else tells them apart.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clinit.analysis.metrics.efficiency import (
    PLACE_SETTINGS,
    READINGS,
    bounded_name,
    comparison_key,
    data_of,
    value_name,
)
from clinit.analysis.report.measures import MEANS, Measure
from clinit.analysis.report.run import Row, RunSummary, frame_of
from clinit.analysis.report.same_data import by_data
from clinit.analysis.report.settings import differences, identity, settings
from clinit.headtrain.record.format import finite


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of one value over seeds."""

    mean: float
    deviation: float | None
    """None where there is one value only."""
    count: int = 1
    """Number of values."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of `values`; None where there is none."""
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True, slots=True, eq=False)
class SeedGroup:
    """Runs that differ only in their seed."""

    runs: tuple[RunSummary, ...]
    values: dict[str, Spread | None]
    """By the name of the value in the rows of the report."""
    shares: dict[str, float]
    """The least share, over the runs, of tasks that a value is a mean over."""
    bounded: frozenset[str] = frozenset()
    """The names of the values that are at least what they are, in some task of some run."""

    @classmethod
    def of(cls, runs: Sequence[RunSummary]) -> SeedGroup:
        """Summarise runs of different seeds."""
        rows = [run.row() for run in runs]
        found = {
            name: Spread.of([row[name] for row in rows if row[name] is not None]) for name in MEANS
        }
        bounded = {
            value_name(reading)
            for reading in READINGS
            if any(row[bounded_name(reading)] for row in rows)
        }
        return cls(tuple(runs), found, _least_shares(rows), frozenset(bounded))

    @property
    def comparable(self) -> str:
        """What groups share that differ in their initialisation alone."""
        info = self.runs[0].record.info
        return comparison_key({**info, "config": {**info["config"], "seed": None}})

    def is_partial(self, measure: Measure) -> bool:
        """Whether a run of the group has the measure in some of its tasks only."""
        return self.shares.get(measure.share_of_tasks or "", 1.0) < 1.0

    def mean(self, measure: Measure) -> str | None:
        """Return the mean of a measure as printed, ≥ before a bound; None where there is none."""
        found = self.values[measure.name]
        if found is None:
            return None
        return ("≥" if measure.name in self.bounded else "") + measure.text(found.mean)

    def deviation(self, measure: Measure) -> str | None:
        """Return the deviation of a measure as printed; None of a single value."""
        found = self.values[measure.name]
        return None if found is None or found.deviation is None else measure.text(found.deviation)


def seed_groups(runs: Sequence[RunSummary], *, ranked: bool = True) -> list[SeedGroup]:
    """Group runs that differ only in their seed; `ranked`: the best A_all first."""
    groups = [*map(SeedGroup.of, alike(runs))]
    return sorted(groups, key=_rank) if ranked else groups


def alike(runs: Sequence[RunSummary]) -> list[tuple[RunSummary, ...]]:
    """Return the runs that differ only in their seed together, all in their order."""
    groups: dict[tuple[str, int], list[RunSummary]] = {}
    copies: Counter[tuple[str, str]] = Counter()
    for run in runs:
        key, seed = seedless_key(run), str(run.config.get("seed"))
        groups.setdefault((key, copies[key, seed]), []).append(run)
        copies[key, seed] += 1
    return [tuple(group) for group in groups.values()]


def known_of(groups: Sequence[SeedGroup], measures: Sequence[Measure]) -> list[Measure]:
    """Return the measures that some run has; the first one where none has any."""
    known = [m for m in measures if any(group.values[m.name] is not None for group in groups)]
    return known or [*measures[:1]]


def num_seeds(runs: Sequence[RunSummary]) -> int:
    """Return the number of seeds of the runs."""
    return len({run.config.get("seed") for run in runs})


def best_of_groups(groups: Sequence[SeedGroup], measure: Measure) -> list[bool]:
    """Return for each group whether its mean is the best of those it can be compared with.

    Equal as printed is equally good. A mean over some tasks only is not comparable with one over
    all of them, and nothing is the best of itself.
    """
    choose = max if measure.better == "high" else min
    rivals: dict[str, list[SeedGroup]] = {}
    for group in groups:
        rivals.setdefault(group.comparable, []).append(group)
    top: dict[str, str | None] = {}
    for key, those in rivals.items():
        known = [
            (found.mean, group.mean(measure))
            for group in those
            if (found := group.values[measure.name]) is not None and not group.is_partial(measure)
        ]
        if measure.better != "neither" and len(those) > 1 and known:
            top[key] = choose(known)[1]
    return [
        not group.is_partial(measure) and group.mean(measure) == top.get(group.comparable, "")
        for group in groups
    ]


def _least_shares(rows: Sequence[Row]) -> dict[str, float]:
    gains = [
        row["gain_tasks_reached"] / row["gain_tasks"] if row["gain_tasks"] else 1.0 for row in rows
    ]
    shares = {"gain_share": min(gains)}
    for name in (name for name in MEANS if name.startswith("share_reaching_")):
        shares[name] = min(1.0 if row[name] is None else row[name] for row in rows)
    return shares


def seedless_key(run: RunSummary) -> str:
    """Return what runs share that differ only in their seed, and in where they were made."""
    left_out = {*PLACE_SETTINGS, "seed"}
    config = {name: value for name, value in run.config.items() if name not in left_out}
    info = run.record.info
    head = (info.get("head") or {}).get("digest")
    return json.dumps([config, data_of(info), head], sort_keys=True, default=str)


def _rank(group: SeedGroup) -> float:
    best = group.values["acc_all"]
    return float("inf") if best is None else -best.mean


def numbered(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs in their order; those of groups that are alike but for seeds have numbers."""
    names = dict.fromkeys(name for run in runs for name in settings(run) if name != "seed")
    groups = alike(runs)
    told = [identity(group[0], [*names]) for group in groups]
    counts = Counter(told)
    twice = {
        id(run) for group, key in zip(groups, told, strict=True) if counts[key] > 1 for run in group
    }
    chosen = [run for run in runs if id(run) in twice]
    numbers = {id(run): number for number, run in enumerate(chosen, start=1)}
    return [dataclasses.replace(run, number=numbers.get(id(run))) for run in runs]


def legend(runs: Sequence[RunSummary]) -> list[str]:
    """Return a line for each run that has a number: where its record lies."""
    return [f"run {run.number}: {run.path}" for run in runs if run.number is not None]


def mean_rows(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Return one entry per group of seeds, by data, the best A_all first.

    `values` holds mean, deviation (of a sample; None of one value) and count of each number, None
    where no run has it.
    """
    return [
        {
            **_identity(group),
            "seeds": [run.config.get("seed") for run in group.runs],
            "runs": len(group.runs),
            "ids": [run.record.info.get("id", run.path.name) for run in group.runs],
            "values": {name: _spread(found) for name, found in group.values.items()},
            "config": {k: v for k, v in group.runs[0].config.items() if k != "seed"},
        }
        for group in _groups(runs)
    ]


def means_json(runs: Sequence[RunSummary]) -> str:
    """Return these entries as JSON."""
    return json.dumps(finite(mean_rows(runs)), indent=2, ensure_ascii=False, allow_nan=False)


def means_csv(runs: Sequence[RunSummary]) -> str:
    """Return one line per group: its mean under each name, `_deviation` and `_count` beside it.

    The settings in which the runs differ are columns.
    """
    names = [name for name in differences(runs).names if name not in ("seed", "run")]
    lines: list[dict[str, Any]] = []
    for group in _groups(runs):
        told = settings(group.runs[0])
        line = _identity(group) | {name: _plain(told.get(name)) for name in names}
        line |= {
            "seeds": " ".join(str(run.config.get("seed")) for run in group.runs),
            "runs": len(group.runs),
        }
        for name, found in group.values.items():
            line[name] = None if found is None else found.mean
            line[f"{name}_deviation"] = None if found is None else found.deviation
            line[f"{name}_count"] = 0 if found is None else found.count
        lines.append(finite(line))
    return frame_of(lines).write_csv()


def _identity(group: SeedGroup) -> dict[str, Any]:
    run = group.runs[0]
    return {
        "init": run.init,
        "scale": run.scale,
        "loss": run.config.get("loss"),
        "head_width": run.config.get("head_width"),
        "base": run.data_name("base"),
        "new": run.data_name("new"),
        "measured_on": run.measured_on,
    }


def _groups(runs: Sequence[RunSummary]) -> list[SeedGroup]:
    """Return the groups of each data, the best A_all first."""
    return [group for part in by_data(runs) for group in seed_groups(part)]


def _spread(found: Spread | None) -> dict[str, float | int | None] | None:
    if found is None:
        return None
    return {"mean": found.mean, "deviation": found.deviation, "count": found.count}


def _plain(value: object) -> object:
    is_plain = value is None or isinstance(value, str | float | bool)
    if is_plain or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return json.dumps(value, default=str)
