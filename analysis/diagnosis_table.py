"""Neural collapse and least-square deviation of runs at the ends of their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, SHORT, differences, shown

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
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        title=Text("At the end of every task" if per_task else "At the end of the last task"),
        title_justify="left",
        caption_justify="left",
        caption="Over buffer and new training rows. 0 is full collapse; floor: the least NC2 and"
        " NC3 of a head of this width. rel.: D_LS / size of the head's outputs.",
    )
    extra = differences(runs).names
    for name in ("init", "scale", *(SHORT.get(name, name) for name in extra), "task"):
        table.add_column(Text(name), no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        tasks = [task for task in run.record.info["tasks"] if task.get("diagnosis")]
        for task in tasks if per_task else tasks[-1:]:
            values = (task["diagnosis"].get(name) for name in COLUMNS.values())
            scale = NOTHING if run.init == "random" else run.scale
            names = (run.init, scale, *(shown(run, name, runs) for name in extra))
            table.add_row(*map(Text, names), str(task["task"]), *map(_number, values))
        if per_task:
            table.add_section()
    return table


def _number(value: Any) -> str:
    return NOTHING if value is None else f"{value:.3g}".replace("e+0", "e")
