"""Neural collapse and least-square deviation of runs at the ends of their tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rich.table import Table
from rich.text import Text

from clinit.analysis.columns import Cells, Column, table_of
from clinit.analysis.run_names import name_cells, name_columns
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, differences

COLUMNS = {
    "NC1": "nc1",
    "NC2": "nc2",
    "NC3": "nc3",
    "floor": "nc2_floor",
    "NC4": "nc4",
    "D_LS": "d_ls",
    "rel.": "d_ls_relative",
}


def diagnosis_table(runs: Sequence[RunSummary], *, per_task: bool) -> Table:
    """Return one line per run: its head at the end of the last task, or of every task."""
    extra = differences(runs).names

    def section(run: RunSummary) -> Iterator[Cells]:
        tasks = [task for task in run.record.info["tasks"] if task.get("diagnosis")]
        for task in tasks if per_task else tasks[-1:]:
            found: Mapping[str, Any] = task["diagnosis"] or {}
            values = (found.get(name) for name in COLUMNS.values())
            yield [*name_cells(run, extra, runs), str(task["task"]), *map(_number, values)]

    # Names in full: the table is narrow.
    names = [Column(column.heading) for column in name_columns(extra)]
    columns = [*names, Column("task"), *(Column(name, "number") for name in COLUMNS)]
    sections = map(section, runs) if per_task else [chain.from_iterable(map(section, runs))]
    return table_of(
        columns,
        sections,
        title=Text("At the end of every task" if per_task else "At the end of the last task"),
        caption="Over buffer and new training rows. 0 is full collapse; floor: the least NC2 and"
        " NC3 of a head of this width. rel.: D_LS / size of the head's outputs.",
    )


def _number(value: Any) -> str:
    return NOTHING if value is None else f"{value:.3g}".replace("e+0", "e")
