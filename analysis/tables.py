"""The report as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clinit.analysis.captions import gain_caption, loss_caption
from clinit.analysis.columns import Cells, Column, table_of, width_of
from clinit.analysis.efficiency import Reading, value_name
from clinit.analysis.run_names import name_cells, name_columns
from clinit.analysis.run_summary import Row, RunSummary
from clinit.analysis.settings import NOTHING, common, differences, phrase

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
            partly = row.get("gain_tasks_reached") != row.get("gain_tasks")
            return _narrow(value, below=10.0) + ("*" if partly else "")
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
    """Return one line per run, under what they have in common."""
    differing = differences(runs)
    named = [(run, run.row()) for run in runs]
    columns = _run_columns(reading, transfer=_has_transfer([row for _, row in named]))
    title = Text(common(runs, differing.names), style="bold")
    caption = _caption(runs, named, reading)

    def table(chosen: Sequence[tuple[RunSummary, Row]], extra: Sequence[str]) -> Table:
        return _table(chosen, runs, columns, extra)

    whole = table(named, differing.names)
    if not differing.of_training or width_of(whole) <= width:
        return Group(title, whole, caption)
    # Too wide: what tells the groups apart goes above them instead of into columns.
    parts: list[RenderableType] = [title]
    for _, group in groupby(named, key=lambda pair: pair[0].key):
        chosen = list(group)
        parts += [_heading(chosen[0][0], differing.of_training), table(chosen, differing.of_init)]
    return Group(*parts, caption)


def task_table(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one table per task and group of comparable runs."""
    differing = differences(runs)
    named = [(run, run.row()) for run in runs]
    tasks = [task for _, row in named for task in row["tasks"]]
    probed = _has_transfer(tasks)
    columns = [*_task_columns(reading), *([_TRANSFER_INTO] if probed else [])]
    wide = [*columns, *_INITIALISATION_COLUMNS]
    choices = [wide, columns, _task_columns(reading)]
    is_cut = False
    parts: list[RenderableType] = []
    for _, group in groupby(named, key=lambda pair: pair[0].key):
        chosen = list(group)
        for index, task in enumerate(chosen[0][1]["tasks"]):
            lines = [(run, row["tasks"][index]) for run, row in chosen]
            heading = f"Task {task['task']}" + _size(task)
            parts.append(_heading(chosen[0][0], differing.of_training, heading))
            tables = [_table(lines, runs, chosen, differing.of_init) for chosen in choices]
            parts.append(next((each for each in tables if width_of(each) <= width), tables[-1]))
            is_cut |= probed and parts[-1] is tables[-1]
    caption = (
        "start, end: A_new before the first step and after the last."
        f" {loss_caption(runs)} {gain_caption(reading)}"
    )
    if probed and not is_cut:
        caption += (
            " FWT: forward transfer into the task, top-1 of a linear probe on its classes before it"
            " is learnt; none into the first."
        )
    if is_cut:
        caption += " Not shown in this width: FWT."
    return Group(*parts, Text(caption, style="dim"))


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
        Value("A_pre", "acc_pre", "percent"),
        Value("A_new", "acc_new", "percent"),
        Value("A_old", "acc_old", "percent"),
        Value("A_all", "acc_all", "percent"),
        Value("L_new", "loss_new", "loss", "low"),
        Value("gain", value_name(reading), "gain"),
        *([_TRANSFER] if transfer else []),
        Value("time", "seconds", "time", "low"),
    ]


def _task_columns(reading: Reading) -> list[Value]:
    return [
        Value("A_pre", "acc_pre", "percent"),
        Value("start", "acc_new_start", "percent"),
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


def _table(
    lines: Sequence[tuple[RunSummary, Row]],
    runs: Sequence[RunSummary],
    values: Sequence[Value],
    extra: Sequence[str],
) -> Table:
    """Return a table of `lines`; the best value among comparable runs in bold."""

    def section(chosen: Sequence[tuple[RunSummary, Row]]) -> Iterator[Cells]:
        best = [value.best([row for _, row in chosen]) for value in values]
        for run, row in chosen:
            texts = (value.text(row) for value in values)
            numbers = (
                Text(text, style="bold green" if text == top else "")
                for text, top in zip(texts, best, strict=True)
            )
            yield [*name_cells(run, extra, runs), *numbers]

    groups = groupby(lines, key=lambda pair: pair[0].key)
    columns = [*name_columns(extra), *(value.column for value in values)]
    return table_of(columns, (section(list(group)) for _, group in groups))


def _caption(
    runs: Sequence[RunSummary], named: Sequence[tuple[RunSummary, Row]], reading: Reading
) -> Text:
    start = "left out" if runs[0].skip_start else "included"
    words = (
        "A: accuracy on test images, mean over the evaluation points"
        f" (the one before the first step of a task {start}); pre: base classes,"
        " new: current task, old: base and earlier tasks, all: all seen."
        f" {loss_caption(runs)} {gain_caption(reading)} ↑ higher is better, ↓ lower."
    )
    if _has_transfer([row for _, row in named]):
        words += (
            " FWT: forward transfer, top-1 of a linear probe on the next task's classes after"
            " each task but the last, mean over tasks."
        )
    groups = len({run.key for run in runs})
    if groups < len(runs):
        words += " Bold: the best" + (" of comparable runs." if groups > 1 else ".")
    if any(row["gain_tasks"] != row["gain_tasks_reached"] for _, row in named):
        words += " *: not in every task, see the notes."
    if "run" in differences(runs).names:
        words += "".join(f"\n# {number}: {run.path}" for number, run in enumerate(runs, 1))
    return Text(words, style="dim")


def _heading(run: RunSummary, names: Sequence[str], first: str = "") -> Text:
    words = [phrase(run, name) for name in names]
    return Text("\n" + ", ".join([first, *words] if first else words), style="bold")


def _size(task: Row) -> str:
    parts = [
        f"{task[name]:,} {words}"
        for name, words in (
            ("classes", "classes"),
            ("train_rows", "training images"),
            ("val_rows", "test images"),
        )
        if task.get(name) is not None
    ]
    return f": {', '.join(parts)}" if parts else ""
