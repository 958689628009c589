"""The measures of a run: name, heading, unit, and the one caption that everything prints.

`measures.toml` lists them. A caption names the data, the split, and for neural collapse also the
weights and whether groups of repeated images count as one image.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import msgspec

from clinit.analysis.metrics.efficiency import GAIN
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.table import Better, Column
from clinit.errors import RecordError
from clinit.words import duration, nearest


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run."""

    name: str
    """Name in the rows of the report."""
    heading: str
    meaning: str
    """Caption; {tested}, {sample} and {statistics} stand for the images of the runs."""
    unit: str = "%"
    better: Better = "high"
    digits: int = 2
    """Number of digits after the decimal point."""
    significant: bool = False
    """Whether three significant digits are printed instead."""
    factor: float = 1.0
    """Factor from the value in the row to the printed unit."""

    def text(self, value: float) -> str:
        """Return a value of a row as printed, without its unit."""
        if self.name == "seconds":
            return duration(value)
        if self.significant:
            return f"{value:.3g}".replace("e+0", "e")
        return number(self.factor * value, self.digits)

    def axis(self, runs: Sequence[RunSummary]) -> str:
        """Return the name of an axis: heading, images and unit."""
        on = " and ".join(dict.fromkeys(run.measured_on for run in runs))
        images = on if self.unit == "%" else "training images" if "{sample}" in self.meaning else ""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.heading}{images and f' on {images}'}{unit}"

    def column(self, runs: Sequence[RunSummary], need: int) -> Column:
        """Return the column of the measure; a column with a higher `need` is dropped sooner."""
        words = self.caption(runs)
        meaning = f"{words[:1].upper()}{words[1:]}."
        return Column(self.heading, "number", self.unit, self.better, need, meaning)

    def caption(self, runs: Sequence[RunSummary], statistics: str = "") -> str:
        """Return the meaning of the measure for some runs on the same data.

        `statistics` are the images of neural collapse in words; by default, of the runs.
        """
        sizes = [run.record.info.get("loss_sample_rows") for run in runs]
        known = [size for size in sizes if size is not None]
        most = f"at most {max(known):,} " if known and len(known) == len(sizes) else ""
        return self.meaning.format(
            tested=" and ".join(dict.fromkeys(run.measured_on for run in runs)),
            sample=f"{most}training images",
            statistics=statistics or diagnosed_on(runs),
        )


def diagnosed_on(runs: Sequence[RunSummary]) -> str:
    """Return the images, weights and groups of neural collapse in words."""
    return "; ".join(dict.fromkeys(run.diagnosed_on for run in runs))


def number(value: float, digits: int) -> str:
    """Return a number with `digits` digits after the point, fewer if the number is large."""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    rounded = round(value, 0 if abs(value) >= 1000 else digits) + 0.0  # no -0.00
    return f"{rounded:,.0f}" if abs(value) >= 1000 else f"{rounded:.{digits}f}"


CONTENT: dict[str, Any] = tomllib.loads(
    (files("clinit.analysis.report") / "measures.toml").read_text(encoding="utf-8")
)
MEASURES = {m.name: m for m in msgspec.convert(CONTENT["measure"], tuple[Measure, ...])}
TABLES: Mapping[str, Sequence[str]] = CONTENT["tables"]
"""Columns of the tables."""
MEANS = tuple(name for name in MEASURES if name not in TABLES["of_tasks_alone"])
"""Measures of whole runs, which are averaged over seeds."""


def words_of(names: str | Iterable[str]) -> list[str]:
    """Return names that are a list, or separated by commas, with underscores."""
    words = names.split(",") if isinstance(names, str) else names
    return [name for word in words if (name := word.strip().replace("-", "_"))]


def measures_of(names: str | Iterable[str], others: Sequence[str] = ()) -> list[Measure]:
    """Return measures by their names; `gain` is the gain at equal level.

    Args:
        names: The names.
        others: Further names that may have been meant.

    Raises:
        RecordError: If there is no measure of a name.
    """
    found = []
    for name in words_of(names):
        key = GAIN if name == "gain" else name
        if key not in MEASURES:
            raise RecordError(
                f"there is no column {name!r}",
                remedy=f"{nearest(name, [*others, *MEASURES, 'gain'])} docs/metrics.md defines"
                " them.",
            )
        found.append(MEASURES[key])
    return found


def captions(measures: Sequence[Measure], runs: Sequence[RunSummary], statistics: str = "") -> str:
    """Return the captions of measures; words that several share appear once."""
    found: dict[str, list[str]] = {}
    for each in measures:
        found.setdefault(each.caption(runs, statistics), []).append(each.heading)
    words = " ".join(f"{', '.join(headings)}: {each}." for each, headings in found.items())
    if not (images := statistics or diagnosed_on(runs)):
        return words
    first, seen, others = words.partition(images)
    return first + seen + others.replace(images, "likewise")
