"""Paired comparisons of seeds, and the choice of settings for tables of each method at its best.

Runs of one seed share class order, images and batches, so their difference has less noise than
either value. With n differences of mean m and sample deviation s,

    t = m / sqrt((s^2 + q^2 / 6) / n),     n - 1 degrees of freedom,

where q is the change of the metric by one test image. An accuracy is rounded to whole images, and
the difference of two rounded numbers has the variance q^2 / 6; without this term, equal differences
would have the p-value 0. P-values are adjusted by Holm for all tests of a table. Fewer than
`FEWEST` seeds give numbers and no p-value: two of them find no effect, whatever its size.

Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of
Statistics 6(2), 1979.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl
from scipy.stats import t as student

from clinit.analysis.report.measures import TABLES, Measure, captions, measures_of, words_of
from clinit.analysis.report.notes import remarks_of
from clinit.analysis.report.run import Row, RunSummary, frame_of
from clinit.analysis.report.settings import Names, SeedGroup, phrase, said, seed_groups
from clinit.analysis.report.table import Cell, Cells, Column, Table
from clinit.errors import RecordError
from clinit.words import did_you_mean, listed, number_of

FEWEST = 3
"""Least number of seeds with a p-value."""
LEVEL = 0.05
Result = Literal["higher", "lower", "open", "-"]
Values = Mapping[Any, float]
"""Values by seed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired differences of one metric over seeds."""

    mean: float | None = None
    """None without a common seed."""
    half_width: float | None = None
    """Half of the 95 % interval of this difference; None for fewer than two seeds."""
    number: int = 0
    p_value: float | None = None
    adjusted: float | None = None
    """P-value adjusted for all tests of a table."""

    @classmethod
    def of(cls, values: Values, others: Values, *, step: float = 0.0) -> Difference:
        """Return the differences of the seeds that both have; `step` is q."""
        found = [values[seed] - others[seed] for seed in sorted(values.keys() & others.keys())]
        if not found:
            return cls()
        mean, n = statistics.fmean(found), len(found)
        if n < 2:
            return cls(mean, None, n)
        error = math.sqrt((statistics.variance(found) + step**2 / 6) / n)
        half = float(student.ppf(0.975, n - 1)) * error
        # Equal differences without rounding: there is no deviation to test with.
        tested = n >= FEWEST and error > 1e-9 * max(1.0, abs(mean))
        p_value = 2 * float(student.sf(abs(mean) / error, n - 1)) if tested else None
        return cls(mean, half, n, p_value)

    @property
    def result(self) -> Result:
        """Whether the adjusted test finds a difference."""
        if self.adjusted is None or self.mean is None:
            return "-"
        if self.adjusted >= LEVEL:
            return "open"
        return "higher" if self.mean > 0 else "lower"


def adjusted_by_holm(found: Sequence[Difference]) -> list[Difference]:
    """Return differences with adjusted p-values; those with a p-value are one family of tests."""
    result = list(found)
    known = {n: each.p_value for n, each in enumerate(found) if each.p_value is not None}
    adjusted = 0.0
    for rank, index in enumerate(sorted(known, key=known.__getitem__)):
        adjusted = max(adjusted, min(1.0, (len(known) - rank) * known[index]))
        result[index] = replace(found[index], adjusted=adjusted)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The runs with other values of a setting less those with a baseline, seed by seed."""

    title: str
    names: Names
    """Names of the runs with other values."""
    lines: Sequence[tuple[RunSummary, str, Measure, int, Difference]]
    """The first run of a group, its baseline in words, a measure, the number of seeds in which the
    group is better, and its differences."""
    left_out: Sequence[str]
    """Groups that differ from every baseline in more than the setting, with why."""

    def frame(self) -> pl.DataFrame:
        """Return one row per group and measure."""
        rows = []
        for run, baseline, measure, wins, found in self.lines:
            row: Row = {name: run.texts.get(name) for name in self.names.settings}
            row |= {"baseline": baseline, "measure": measure.name, "seeds": found.number}
            row |= {"difference": found.mean, "half_width": found.half_width, "wins": wins}
            row |= {"p_value": found.p_value, "p_adjusted": found.adjusted, "result": found.result}
            rows.append(row)
        return frame_of(rows)

    def table(self) -> Table:
        """Return the same as a table for readers."""
        lines: list[Cells] = []
        for run, _, measure, wins, found in self.lines:
            half = None if found.half_width is None else measure.text(found.half_width)
            value = Cell(signed(found.mean, measure), half, value=found.mean)
            told = [f"{wins} of {found.number}", p_text(found.adjusted), found.result]
            lines.append([*self.names.cells(run), measure.heading, value, *told])
        heads = ("difference", "wins", "p", "result")
        columns = [*self.names.columns, Column("measure"), *(Column(n, "number") for n in heads)]
        words = "Differences of equal seeds, ± half of the 95 % interval"
        if tests := sum(found.adjusted is not None for *_, found in self.lines):
            words += "; p: t-test with the rounding of one test image, adjusted by Holm for "
            words += number_of(tests, "test")
        words += "."
        if any(found.number < FEWEST for *_, found in self.lines):
            words += f" Fewer than {FEWEST} seeds have no p-value."
        if self.left_out:
            words += f" Left out: {'; '.join(self.left_out)}."
        runs, measures = [run for run, *_ in self.lines], [line[2] for line in self.lines]
        meanings = captions([*dict.fromkeys(measures)], runs)
        caption = f"{words} {meanings} {remarks_of(runs)}".rstrip()
        return Table(columns, [lines], True, self.title, caption=caption, remarks=[words])


def compare(
    runs: Sequence[RunSummary],
    field: str,
    baseline: str,
    *,
    columns: str | Sequence[str] = "",
    chosen: Collection[str] = (),
) -> Comparison:
    """Compare the runs with other values of a setting with a baseline, seed by seed.

    Settings that only one of two runs reads, such as the scale of computed rows next to random
    rows, do not count as differences.

    Args:
        runs: Runs, possibly on several data.
        field: The setting, such as `init`.
        baseline: Its value in the baseline, as printed.
        columns: Names of the measures to compare.
        chosen: Settings that may differ too, because each value of `field` has its own best.

    Raises:
        RecordError: If no run has the baseline value, or no other run equals one but for `field`.
    """
    name = field.replace("-", "_")
    groups = seed_groups(runs)
    values = {text for run in runs if (text := run.texts.get(name)) is not None}
    baseline = next((text for text in values if _number(text) == _number(baseline)), baseline)
    rivals = [group for group in groups if group.runs[0].texts.get(name) == baseline]
    if not rivals:
        known = f"Here, {name} has {', '.join(sorted(values))}."
        if not values:
            known = f"No run reads {name}. {did_you_mean(name, {n for r in runs for n in r.texts})}"
        raise RecordError(f"no run has {name} {baseline}", remedy=known.strip())
    pairs: list[tuple[SeedGroup, SeedGroup]] = []
    left_out: list[str] = []
    for group in groups:
        if group.runs[0].texts.get(name) in (None, baseline):
            continue
        own = [each for each in rivals if each.runs[0].data == group.runs[0].data]
        more = [differing(group.runs[0], each.runs[0], {name, *chosen}) for each in own]
        pairs += [(group, rival) for rival, names in zip(own, more, strict=True) if not names]
        if all(more):
            words = [phrase(group.runs[0], each) for each in min(more, key=len, default=["data"])]
            left_out.append(f"{group.runs[0].texts[name]} ({', '.join(words)})")
    if not pairs:
        why = "; ".join(left_out) or "the others differ in nothing or in seeds"
        raise RecordError(
            f"no run differs from {name} {baseline} in {name} alone: {why}",
            remedy="Train them in one command, such as `clinit train-head --init random --init"
            " least-square`, or let `--best-of` choose the other settings for each.",
        )
    found = [(*pair, each) for pair in pairs for each in measures_of(columns or TABLES["compared"])]
    seeded = [(_values(a, each), _values(b, each)) for a, b, each in found]
    steps = [step_of(group.runs[0], each) for group, _, each in found]
    made = [Difference.of(*v, step=step) for v, step in zip(seeded, steps, strict=True)]
    compared = zip(found, seeded, adjusted_by_holm(made), strict=True)
    names, others = (
        Names.of([*{id(each): each.runs[0] for each in own}.values()], without=("seed",))
        for own in zip(*pairs, strict=True)
    )
    if name not in names.settings:
        names = replace(names, settings=(name, *names.settings))
    lines = [
        (a.runs[0], others.label(b.runs[0]), measure, _wins(*own, measure), difference)
        for (a, b, measure), own, difference in compared
        if difference.number
    ]
    title = f"{name} less {baseline}; {names.title}"
    return Comparison(title, names, lines, tuple(dict.fromkeys(left_out)))


def _wins(values: Values, others: Values, measure: Measure) -> int:
    """Return the number of seeds with a better value; with a higher one, if neither is better."""
    sign = -1 if measure.better == "low" else 1
    return sum(sign * values[seed] > sign * others[seed] for seed in values.keys() & others.keys())


def differing(run: RunSummary, other: RunSummary, left_out: Collection[str]) -> list[str]:
    """Return the settings that both runs read and in which they differ."""
    pairs = {name: (text, other.texts.get(name)) for name, text in run.texts.items()}
    left_out = {"seed", *left_out, *(["init"] if "method" in left_out else [])}
    return [n for n, (a, b) in pairs.items() if n not in left_out and None not in (a, b) and a != b]


def signed(value: float | None, measure: Measure) -> str:
    """Return a difference with its sign."""
    text = "-" if value is None else measure.text(value)
    return text if text.startswith("-") else f"+{text}"


def p_text(value: float | None) -> str:
    """Return a p-value as printed."""
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def _number(text: str) -> str | float:
    with suppress(ValueError):
        return float(text)
    return text


def _values(group: SeedGroup, measure: Measure) -> dict[Any, float]:
    found = ((row["seed"], row.get(measure.name)) for row in group.rows)
    return {seed: measure.factor * value for seed, value in found if value is not None}


def step_of(run: RunSummary, measure: Measure) -> float:
    """Return the change of an accuracy in percent by one test image."""
    is_accuracy = measure.unit == "%" and measure.factor == 1.0
    return 100 / max(1, run.images(measure.name)) if is_accuracy else 0.0


Texts = tuple[str | None, ...]


def chosen_runs(
    runs: Sequence[RunSummary], fields: str | Sequence[str], by: str | Sequence[str]
) -> tuple[tuple[RunSummary, ...], str]:
    """Return the runs with the best values of `fields` for each value of `by`, and a note.

    Raises:
        RecordError: If no run reads a setting, or no run on test images has the chosen values.
    """
    names, groups = words_of(fields), words_of(by)
    known = Names.of(runs, without=("seed",)).settings  # a choice among seeds would be luck
    if unknown := {*names} - {*known} | {*groups} - {name for run in runs for name in run.texts}:
        raise RecordError(
            f"{min(unknown)!r} is no setting to choose",
            remedy=f"Settings in which the runs differ: {', '.join(known)}.",
        )

    def values(run: RunSummary, of: Sequence[str]) -> Texts:
        return tuple(run.texts.get(name) for name in of)

    deciding = [run for run in runs if run.is_held_out]
    scores: dict[Texts, dict[Texts, list[float]]] = {}
    for run in deciding or runs:
        if (score := run.row()["acc_all"]) is not None:
            own = scores.setdefault(values(run, groups), {})
            own.setdefault(values(run, names), []).append(score)
    best = {key: max(own, key=lambda n: statistics.fmean(own[n])) for key, own in scores.items()}
    told = "; ".join(f"{_words(groups, key)}: {_words(names, v)}" for key, v in best.items())
    words = f"For each {listed(groups)}, {listed(names)} with the best A_all"
    note = f"{words} on {(deciding or runs)[0].measured_on} ({told})."
    if not deciding:
        note += (
            " The same images measure the accuracies of this table, which are therefore too high:"
            " choose on held-out training images (`clinit sweep --held-out 0.1`)."
        )
    tested = [run for run in runs if not run.is_held_out]
    kept = [run for run in tested if values(run, names) == best.get(values(run, groups))]
    missing = best.keys() - {values(run, groups) for run in kept}
    if missing:
        raise RecordError(
            f"no run on test images has the settings that held-out images chose: {told}",
            remedy="Train them with `clinit train-head`, and give their records too.",
        )
    return tuple(replace(run, remarks=(note,)) for run in kept), note


def _words(names: Sequence[str], values: Texts) -> str:
    pairs = zip(names, values, strict=True)
    return ", ".join(said(name, value) for name, value in pairs if value is not None)
