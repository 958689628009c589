"""The report as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from clinit.analysis.metrics.efficiency import Reading, value_name
from clinit.analysis.report.captions import AT_LEAST, below, reading_caption
from clinit.analysis.report.measures import by_need
from clinit.analysis.report.run import Row, RunSummary
from clinit.analysis.report.settings import NOTHING, RunNames, differences, phrase
from clinit.analysis.report.table import Column, Columns, Fitted, Line, fitted_table

_Kind = Literal["percent", "loss", "gain", "time", "factor"]
_UNIT = {"percent": "%", "loss": "", "gain": "×", "time": "", "factor": ""}


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a run: where it is in a row, and which direction is better."""

    heading: str
    name: str
    kind: _Kind
    better: Literal["high", "low", "neither"] = "high"

    @property
    def column(self) -> Column:
        """The column that it stands in."""
        arrow = {"high": "↑", "low": "↓", "neither": ""}[self.better]
        return Column(f"{self.heading}\n{_UNIT[self.kind]}{arrow}", "number")

    def text(self, row: Row) -> str:
        """Return the value as printed."""
        value = row.get(self.name)
        if value is None and self.kind == "factor":
            value = (row.get("initialisation") or {}).get(self.name)
        if value is None:
            return NOTHING
        if self.kind == "time":
            return duration(value)
        if self.kind == "gain":
            bounded = "≥" if row.get(f"{self.name}_bounded") else ""
            partly = row.get("gain_tasks_reached") != row.get("gain_tasks")
            return bounded + _narrow(value, below=10.0) + ("*" if partly else "")
        if self.kind == "percent":
            return _narrow(value, below=100.0)
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"

    def best(self, rows: Sequence[Row]) -> str | None:
        """Return the best value as printed; None where there is nothing to compare."""
        # A gain over some tasks only is not comparable with one over all of them.
        texts = {self.text(row): row[self.name] for row in rows if row.get(self.name) is not None}
        texts = {text: value for text, value in texts.items() if not text.endswith("*")}
        if self.better == "neither" or len(rows) < 2 or not texts:
            return None
        choose = max if self.better == "high" else min
        return choose(texts, key=lambda text: texts[text])


_TRANSFER = Value("FWT", "forward_transfer", "percent")
_TRANSFER_INTO = Value("FWT", "forward_transfer_into", "percent")
"""In the line of the task that was probed, as the paper's Table 7 has it."""


def run_table(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one line per run on the same data, under what they have in common."""
    named = [(run, run.row()) for run in runs]
    rows = [row for _, row in named]
    values = _known(_run_columns(reading, transfer=_has_transfer(rows)), rows)
    names = RunNames.of(runs)
    needed = by_need([value.name for value in values])
    fitted = _fitted(named, names, values, width, needed)
    shown = [values[place] for place in fitted.shown]
    words = below(
        runs,
        *_marks([value.text(row) for value in shown if value.kind == "gain" for row in rows]),
        reading_caption(reading),
        bold=_bold(runs),
        fitted=fitted,
    )
    return Group(Text(names.title, style="bold"), fitted.table, words)


def task_table(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one table per task and group of comparable runs, all on the same data."""
    of_training = differences(runs).of_training
    names = RunNames.of(runs, without=of_training)
    named = [(run, run.row()) for run in runs]
    probed = _has_transfer([task for _, row in named for task in row["tasks"]])
    values = [*_task_columns(reading), *([_TRANSFER_INTO] if probed else [])]
    parts: list[RenderableType] = []
    tables: list[Fitted] = []
    for _, group in groupby(named, key=lambda pair: pair[0].key):
        chosen = list(group)
        for index, task in enumerate(chosen[0][1]["tasks"]):
            lines = [(run, row["tasks"][index]) for run, row in chosen]
            heading = f"Task {task['task']}" + _size(task)
            fitted = _fitted(lines, names, [*values, *_INITIALISATION_COLUMNS], width)
            parts += [_heading(chosen[0][0], of_training, heading), fitted.table]
            tables.append(fitted)
    words = below(
        runs,
        "A_0, end: A_new before the first step and after the last.",
        *_marks(
            value.text(row)
            for value in values
            if value.kind == "gain"
            for _, each in named
            for row in each["tasks"]
        ),
        reading_caption(reading),
        fitted=max(tables, key=lambda fitted: len(fitted.left_out), default=None),
    )
    return Group(*parts, words)


def duration(seconds: float) -> str:
    """Return a time in at most five characters: 0.04s, 12.3s, 45.6m, 7.8h."""
    if seconds < 1:
        return f"{seconds:.2f}s"
    if seconds < 99.95:
        return f"{seconds:.1f}s"
    return f"{seconds / 60:.1f}m" if seconds < 5997 else f"{seconds / 3600:.1f}h"


def _narrow(value: float, below: float) -> str:
    # A decimal less for 100 % and for gains from 10 on: the columns must not grow by them.
    text = f"{value:.2f}"
    return text if float(text) < below else f"{value:.1f}"


def _run_columns(reading: Reading, *, transfer: bool) -> list[Value]:
    return [
        Value("A_all", "acc_all", "percent"),
        Value("A_last", "last_accuracy", "percent"),
        Value("A_inc", "average_incremental_accuracy", "percent"),
        Value("forg.", "forgetting", "percent", "low"),
        *([_TRANSFER] if transfer else []),
        Value("A_0", "acc_new_start", "percent"),
        Value("A_new", "acc_new", "percent"),
        Value("A_old", "acc_old", "percent"),
        Value("A_pre", "acc_pre", "percent"),
        Value("L_new", "loss_new", "loss", "low"),
        Value("gain", value_name(reading), "gain"),
        Value("time", "seconds", "time", "low"),
    ]


def _task_columns(reading: Reading) -> list[Value]:
    return [
        Value("A_pre", "acc_pre", "percent"),
        Value("A_0", "acc_new_start", "percent"),
        Value("A_new", "acc_new", "percent"),
        Value("end", "acc_new_end", "percent"),
        Value("A_old", "acc_old", "percent"),
        Value("A_all", "acc_all", "percent"),
        Value("L_new", "loss_new", "loss", "low"),
        Value("gain", value_name(reading), "gain"),
    ]


def _has_transfer(rows: Sequence[Row]) -> bool:
    """Return whether forward transfer was measured at all: runs of train-head have none."""
    return any(row["forward_transfer"] is not None for row in rows)


_INITIALISATION_COLUMNS = (
    Value("factor", "factor", "factor", "neither"),
    Value("shift", "shift", "factor", "neither"),
)


def _known(values: Sequence[Value], rows: Sequence[Row]) -> list[Value]:
    """Return the values that some run has; the first one where none has any."""
    known = [value for value in values if any(row.get(value.name) is not None for row in rows)]
    return known or [*values[:1]]


def _fitted(
    lines: Sequence[tuple[RunSummary, Row]],
    names: RunNames,
    values: Sequence[Value],
    width: int,
    needed: Sequence[int] | None = None,
) -> Fitted:
    """Return a table of `lines`; the best value among comparable runs in bold."""

    def section(chosen: Sequence[tuple[RunSummary, Row]]) -> list[Line]:
        best = [value.best([row for _, row in chosen]) for value in values]
        return [
            Line(
                run,
                [
                    Text(text, style="bold green" if text == top else "")
                    for text, top in zip((value.text(row) for value in values), best, strict=True)
                ],
            )
            for run, row in chosen
        ]

    groups = groupby(lines, key=lambda pair: pair[0].key)
    sections = [section(list(group)) for _, group in groups]
    if all(len(section) == 1 for section in sections):  # nothing is beside anything
        sections = [[line for section in sections for line in section]]
    columns = Columns([value.column for value in values], needed=needed)
    return fitted_table([sections], names, columns, width)


def _marks(gains: Iterable[str]) -> list[str]:
    """Return what the marks of the printed gains mean."""
    marks = "".join(gains)
    found = [AT_LEAST] if "≥" in marks else []
    return [*found, "*: not in every task, see the notes."] if "*" in marks else found


def _bold(runs: Sequence[RunSummary]) -> str:
    groups = len({run.key for run in runs})
    if groups == len(runs):
        return ""
    return "Bold: the best of comparable runs." if groups > 1 else "Bold: the best."


def _heading(run: RunSummary, names: Sequence[str], first: str) -> Text:
    words = [phrase(run, name) for name in names]
    return Text("\n" + ", ".join([first, *words]), style="bold")


def _size(task: Row) -> str:
    parts = [
        f"{task[name]:,} {one if task[name] == 1 else several}"
        for name, one, several in (
            ("classes", "class", "classes"),
            ("train_rows", "training image", "training images"),
            ("val_rows", "test image", "test images"),
        )
        if task.get(name) is not None
    ]
    return f": {', '.join(parts)}" if parts else ""
