"""Neural collapse and least-square deviation of runs at the ends of their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from clinit.analysis.report.captions import below
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import NOTHING, RunNames
from clinit.analysis.report.table import Column, Columns, Line, fitted_table

COLUMNS = {
    "NC1": "nc1",
    "NC2": "nc2",
    "NC3": "nc3",
    "floor": "nc2_floor",
    "NC4": "nc4",
    "D_LS": "d_ls",
    "rel.": "d_ls_relative",
}


def diagnosis_table(runs: Sequence[RunSummary], width: int, *, per_task: bool) -> RenderableType:
    """Return one line per run: its head at the end of the last task, or of every task."""
    found = [_lines(run, per_task=per_task) for run in runs]
    names = RunNames.of(runs)
    fitted = fitted_table(
        [found if per_task else [[*chain.from_iterable(found)]]],
        names,
        Columns([Column(name, "number") for name in COLUMNS], behind=[Column("task")]),
        width,
    )
    title = "At the end of every task" if per_task else "At the end of the last task"
    words = below(
        runs,
        "On buffer and new training images; 0: full collapse.",
        fitted=fitted,
    )
    return Group(Text(title, style="italic"), fitted.table, words)


def _lines(run: RunSummary, *, per_task: bool) -> list[Line]:
    tasks = [task for task in run.record.info["tasks"] if task.get("diagnosis")]
    lines = []
    for task in tasks if per_task else tasks[-1:]:
        found: Mapping[str, Any] = task["diagnosis"] or {}
        numbers = [_number(found.get(name)) for name in COLUMNS.values()]
        lines.append(Line(run, numbers, behind=[str(task["task"])]))
    return lines


def _number(value: Any) -> str:
    return NOTHING if value is None else f"{value:.3g}".replace("e+0", "e")
