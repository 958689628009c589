"""Shared and differing settings of runs: names in a table, groups of seeds, means over them.

The deviation over seeds is the sample deviation (n - 1). If a run of a group lacks a value, mean
and deviation are over the other runs. Copies of a run are left out, with a note.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from clinit.analysis.metrics.efficiency import GAIN
from clinit.analysis.report.measures import CONTENT, MEANS, Measure
from clinit.analysis.report.run import INIT_SETTINGS, Row, RunSummary, frame_of
from clinit.analysis.report.table import NOTHING, Cell, Column

_WORDS: Mapping[str, Mapping[str, str]] = CONTENT["setting"]
"""Heading, words and meaning of settings, if they differ from the name."""


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Differing and shared settings of runs, computed once for tables, titles and figures."""

    runs: Sequence[RunSummary]
    of_training: tuple[str, ...]
    """Differing settings of data, stream and training; such runs cannot be compared."""
    settings: tuple[str, ...]
    """The columns: `init`, `scale` and all other differing settings; `init` if nothing differs."""
    without: Collection[str]
    """Settings that neither names nor title contain."""

    @classmethod
    def of(cls, runs: Sequence[RunSummary], *, without: Collection[str] = ()) -> Names:
        """Return the names of `runs`.

        If some runs do not read a setting, only the values of the other runs count. Settings in
        `without` count as equal.
        """
        known: dict[str, set[str]] = {}
        for name, text in (pair for run in runs for pair in run.texts.items()):
            known.setdefault(name, set()).update([text] if text is not None else [])
        differing = [name for name in known if len(known[name]) > 1 and name not in without]
        own = [name for name in ("init", "scale") if name in differing]
        training = [name for name in differing if name not in INIT_SETTINGS]
        of_init = [name for name in differing if name not in (*own, *training)]
        settings = [*own, *training, *of_init] or ["init"]
        return cls(runs, tuple(training), tuple(settings), without)

    @property
    def title(self) -> str:
        """The settings that all runs share, in words."""
        return common(self.runs, (*self.settings, *self.without))

    @property
    def columns(self) -> list[Column]:
        """A column for each setting."""
        return [
            Column(_of(name, "heading", name), "run", meaning=_of(name, "meaning", ""))
            for name in self.settings
        ]

    def cells(self, run: RunSummary) -> list[str]:
        """Return the cells of a run in these columns."""
        return [shown(run, name) for name in self.settings]

    def label(self, run: RunSummary) -> str:
        """Return a short, distinct name: the initialisation and the differing settings."""
        texts = {name: shown(run, name) for name in self.settings if name != "init"}
        known = [(name, text) for name, text in texts.items() if text != NOTHING]
        parts = [text if name == "scale" else said(name, text) for name, text in known]
        return run.init + (f" ({', '.join(parts)})" if parts else "")


def labels(runs: Sequence[RunSummary], *, without: Collection[str] = ()) -> list[str]:
    """Return a short, distinct name for each run, without the settings in `without`."""
    names = Names.of(runs, without=without)
    return [names.label(run) for run in runs]


def shown(run: RunSummary, name: str) -> str:
    """Return one of the `texts` of a run as printed."""
    return run.texts.get(name) or NOTHING


def phrase(run: RunSummary, name: str) -> str:
    """Return a setting with its name: `seed 0`, `head width grow`."""
    return said(name, shown(run, name))


def said(name: str, text: str) -> str:
    """Return a setting and its value in words."""
    words = _of(name, "words", name.replace("_", " ") + " {}")
    if text == "1" and words.startswith("{} "):
        words = re.sub(r"s\b", "", words, count=1)
    return words.format(text)


def _of(name: str, what: str, otherwise: str) -> str:
    return _WORDS.get(name, {}).get(what, otherwise)


_COMMON = (
    *("measured_on", "backbone", "top_blocks", "rank", "method", "loss", "step", "head_width"),
    *("tasks", "stop_after", "iterations", "buffer", "lr", "seed"),
    *("init", "scale"),
)
"""Settings in the order in which they are printed."""


def common(runs: Sequence[RunSummary], differing: Collection[str]) -> str:
    """Return the shared settings of runs in words: data sets, tasks, iterations, loss, seed, ...

    A setting that only some runs read follows in parentheses.

    Args:
        runs: The runs of a table.
        differing: Properties that the table shows for each run: settings, `init` and `scale`.
    """
    known = [each for each in ("base", "new") if each not in differing and runs[0].texts[each]]
    of_all = [" → ".join(shown(runs[0], name) for name in known)]
    of_some: list[str] = []
    for name in (name for name in _COMMON if name not in differing):
        having = [text for run in runs if (text := shown(run, name)) != NOTHING]
        if having and (name, having[0]) not in (("top_blocks", "0"), ("step", "loss")):
            (of_all if len(having) == len(runs) else of_some).append(said(name, having[0]))
    some = f"({', '.join(of_some)})" if of_some else ""
    return " ".join(filter(None, [", ".join(filter(None, of_all)), some]))


ByData = Mapping[str, Sequence[RunSummary]]


def by_data(runs: Sequence[RunSummary]) -> ByData:
    """Return the runs of each data set in their order, runs measured on test images first.

    Runs have the same data if base and new classes, features and measured images are equal,
    whatever the paths of their caches.

    Returns:
        The runs by heading, which describes their data. A single data set has no heading.
    """
    parts: dict[str, list[RunSummary]] = {}
    for run in runs:
        parts.setdefault(run.data, []).append(run)
    ordered = sorted(parts.values(), key=lambda part: part[0].is_held_out)
    if len(ordered) < 2:
        return {"": tuple(runs)}
    found = {}
    for number, (first, *more) in enumerate(ordered, start=1):
        names = " → ".join(filter(None, first.data_names.values()))
        words = ", on ".join(filter(None, [names, first.measured_on]))
        found[f"Data {number} of {len(ordered)}: {words}"] = (first, *more)
    return found


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of one value over seeds."""

    mean: float
    deviation: float | None
    """None for a single value."""
    count: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of `values`; None without values."""
        if not values:
            return None
        deviation = None
        if len(values) > 1:  # of equal values, rounding would be left
            deviation = 0.0 if min(values) == max(values) else statistics.stdev(values)
        return cls(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True, slots=True, eq=False)
class SeedGroup:
    """Runs that differ only in their seed, with their rows of the report or of one task."""

    runs: tuple[RunSummary, ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, runs: Sequence[RunSummary]) -> SeedGroup:
        """Summarise runs of different seeds."""
        return cls(tuple(runs), tuple(run.row() for run in runs))

    @property
    def comparable(self) -> str:
        """The facts shared by groups that differ only in their initialisation."""
        return self.runs[0].facts({"seed", *self.runs[0].of_start})

    def spread(self, name: str) -> Spread | None:
        """Return mean and deviation of the value `name` of the rows; None if no run has it."""
        return Spread.of([row[name] for row in self.rows if row.get(name) is not None])

    def rank(self) -> float:
        """Return the sorting key of groups: the best A_all first."""
        best = self.spread("acc_all")
        return float("inf") if best is None else -best.mean

    def cell(self, measure: Measure) -> Cell:
        """Return a measure as printed, with ≥ before a lower and < before an upper bound."""
        name, found = measure.name, self.spread(measure.name)
        below = [bound for row in self.rows if (bound := row.get(f"{name}_below"))]
        if found is None:
            return Cell(f"<{max(below)}" if below else None)
        bound = "≥" * any(row.get(f"{name}_bounded") for row in self.rows)
        counts = [(row.get("gain_tasks_reached"), row.get("gain_tasks")) for row in self.rows]
        partial = name == GAIN and (bool(below) or any(some != every for some, every in counts))
        deviation = None if found.deviation is None else measure.text(found.deviation)
        text = bound + measure.text(found.mean)
        return Cell(text, deviation, is_partial=partial, value=found.mean)


def seed_groups(runs: Sequence[RunSummary], *, ranked: bool = True) -> list[SeedGroup]:
    """Group runs that differ only in their seed; with `ranked`, the best A_all first."""
    groups = [*map(SeedGroup.of, alike(runs))]
    return sorted(groups, key=SeedGroup.rank) if ranked else groups


def alike(runs: Sequence[RunSummary]) -> list[tuple[RunSummary, ...]]:
    """Return lists of runs that differ only in their seed, in the order of the runs."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        groups.setdefault(run.facts(["seed"]), []).append(run)
    return [tuple(group) for group in groups.values()]


def known_of(groups: Sequence[SeedGroup], measures: Sequence[Measure]) -> list[Measure]:
    """Return the measures that some run has, or the first measure if no run has any."""
    known = [m for m in measures if any(group.cell(m).mean is not None for group in groups)]
    return known or [*measures[:1]]


def cells_of(
    groups: Sequence[SeedGroup], measure: Measure, key: Callable[[SeedGroup], str]
) -> list[Cell]:
    """Return the cell of each group; the best mean of comparable groups is marked.

    Groups with equal `key` are comparable, but a mean over some tasks is not comparable with a mean
    over all tasks. Means that are equal as printed are equally good. A group without a comparable
    group is not the best.
    """
    cells, keys = [group.cell(measure) for group in groups], [*map(key, groups)]
    rivals: dict[str, list[tuple[float, str]]] = {}
    for name, cell in zip(keys, cells, strict=True):
        if cell.mean is not None and cell.value is not None and not cell.is_partial:
            rivals.setdefault(name, []).append((cell.value, cell.mean))
    if measure.better == "neither":
        return cells
    choose = max if measure.better == "high" else min
    top = {name: choose(known)[1] for name, known in rivals.items() if keys.count(name) > 1}
    return [
        dataclasses.replace(cell, is_best=not cell.is_partial and cell.mean == top.get(name, ""))
        for name, cell in zip(keys, cells, strict=True)
    ]


def means(data: ByData) -> Iterator[Row]:
    """Yield one entry per group of seeds, by data, the best A_all first.

    `values` contains mean, sample deviation (None for one value) and count of each number, or None
    if no run has the number.
    """
    for group in (group for part in data.values() for group in seed_groups(part)):
        found = {name: group.spread(name) for name in MEANS}
        first, own = group.runs[0], {"seed", *_IDENTITY}
        row = {name: group.rows[0][name] for name in _IDENTITY}
        row |= {"seeds": [run.config.get("seed") for run in group.runs], "runs": len(group.runs)}
        row["values"] = {name: each and dataclasses.asdict(each) for name, each in found.items()}
        row["config"] = {k: v for k, v in first.config.items() if k != "seed"}
        row["settings"] = {k: v for k, v in first.settings.items() if k not in own}
        yield {**row, "notes": list(first.remarks)}


def means_table(runs: Sequence[RunSummary], data: ByData) -> pl.DataFrame:
    """Return one row per group: its mean under each name, then `_deviation` and `_count`.

    The settings in which the runs differ are columns.
    """
    names = [name for name in Names.of(runs).settings if name not in ("seed", *_IDENTITY)]
    lines: list[Row] = []
    for entry in means(data):
        line = {name: entry[name] for name in _IDENTITY}
        for name in names:
            value = entry["settings"].get(name)
            line[name] = value if isinstance(value, str | int | float | None) else str(value)
        line |= {"seeds": " ".join(map(str, entry["seeds"])), "runs": entry["runs"]}
        for name, found in entry["values"].items():
            line[name] = found and found["mean"]
            line[f"{name}_deviation"] = found and found["deviation"]
            line[f"{name}_count"] = found["count"] if found else 0
        lines.append(line)
    return frame_of(lines)


_IDENTITY = ("init", "scale", "loss", "head_width", "base", "new", "measured_on")
