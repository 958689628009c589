"""The tables of a report: runs, means over seeds, further metrics, tasks, neural collapse.

The terminal, Markdown and the page show the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table as RichTable

from clinit.analysis.metrics.efficiency import Reading
from clinit.analysis.report.measures import (
    FURTHER_MEASURES,
    MOST_NEEDED,
    Measure,
    meanings,
    ranked_measures,
    run_measures,
    task_measures,
)
from clinit.analysis.report.run import Row, RunSummary
from clinit.analysis.report.seeds import SeedGroup, cells_of, known_of, seed_groups
from clinit.analysis.report.settings import Names, phrase
from clinit.analysis.report.table import Cell, Cells, Column, Table
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.analysis.metrics.diagnosis import Diagnosis

_GAIN: dict[Reading, str] = {
    "equal-level": "iterations of random / iterations of the run, both to 95 % of random's best"
    " new-task accuracy; 1 for random itself",
    "random-best": "iterations of random to its best new-task accuracy / iterations of the run to"
    " 95 % of this accuracy; above 1 for random itself if it reaches 95 % before its best",
}
_CLASSES = {
    "acc_all": "all classes seen",
    "acc_new": "the current task",
    "acc_old": "the base and earlier tasks",
    "acc_pre": "the base classes",
}
COLLAPSE = {
    "NC1": "nc1",
    "NC2": "nc2",
    "NC3": "nc3",
    "floor": "nc2_floor",
    "NC4": "nc4",
    "D_LS": "d_ls",
    "rel.": "d_ls_relative",
}
"""Metrics of neural collapse: heading, and name in a diagnosis."""
MEANING = {
    "nc1": "spread within classes / between them; 0: a class is a point",
    "nc2": "W W^T to a simplex ETF; 0: equal lengths and angles",
    "nc3": "W x class means to a simplex ETF; 0: rows are class means",
    "nc4": "|b + W mean|; 0: no class is favoured at the mean",
    "d_ls": "squared error in excess of W_LS; grows with |W|^2",
    "d_ls_relative": "D_LS / size of the outputs of W; 0: W is W_LS",
}
_FLOOR = "the least NC2 and NC3 of a head of this width"


def ranking(runs: Sequence[RunSummary]) -> Table:
    """Return one line per group of seeds on the same data, the best first."""
    groups = seed_groups(runs)
    measures = known_of(groups, ranked_measures(runs[0].reading))
    found = _table(groups, measures, without=("seed",))
    return replace(
        found,
        columns=[Column("#", "number"), *found.columns],
        sections=[[[str(at), *line] for at, line in enumerate(found.lines, start=1)]],
        beside=True,
        remarks=[f"Ranked by A_all{_over_seeds(groups)}.", *_conditions(runs, measures)],
    )


def metrics_table(runs: Sequence[RunSummary], *, ranked: bool = True) -> Table:
    """Return further metrics, one line per group of seeds on the same data."""
    groups = seed_groups(runs, ranked=ranked)
    measures = known_of(groups, FURTHER_MEASURES)
    found = _table(groups, measures, without=("seed",), key=_comparable)
    over = _over_seeds(groups)[2:]
    remarks = [f"{over}." if over else "", *_conditions(runs)]
    return replace(found, title="", remarks=remarks)


def run_table(runs: Sequence[RunSummary]) -> Table:
    """Return one line per run on the same data; the title contains the shared settings."""
    groups = [SeedGroup.of([run]) for run in runs]
    measures = known_of(groups, run_measures(runs[0].reading))
    return _table(groups, measures, key=_of_run)


def task_table(runs: Sequence[RunSummary]) -> RenderableType:
    """Return one table per task and group of comparable runs, all on the same data."""
    of_training = Names.of(runs).of_training
    rows = [(run, [_task_row(task) for task in run.row()["tasks"]]) for run in runs]
    every = [SeedGroup((run,), (task,)) for run, tasks in rows for task in tasks]
    measures = known_of(every, task_measures(runs[0].reading))
    parts: list[Table] = []
    for _, chosen in groupby(rows, key=lambda pair: pair[0].key):
        group = list(chosen)
        for index, task in enumerate(group[0][1]):
            lines = [SeedGroup((run,), (tasks[index],)) for run, tasks in group]
            settings = [phrase(group[0][0], name) for name in of_training]
            heading = ", ".join([f"Task {task['task']}{_size(task)}", *settings])
            found = _table(lines, measures, names_of=runs, without=of_training, key=_of_run)
            parts.append(replace(found, title=f"\n{heading}", remarks=None, is_bold=False))
    words = "A_0, end: A_new before the first step and after the last."
    remarks = [words, *_conditions(runs, measures)]
    return Group(*parts[:-1], *(replace(each, remarks=remarks) for each in parts[-1:]))


def diagnosis_table(runs: Sequence[RunSummary], *, per_task: bool = False) -> Table:
    """Return one line per run, at the end of the last task; or one per run and task."""
    names = Names.of(runs)
    numbers = [
        Column(heading, "number", need=place, meaning=f"{MEANING.get(name, _FLOOR)}.")
        for place, (heading, name) in enumerate(COLLAPSE.items())
    ]
    sections: list[list[Cells]] = []
    lines: list[RunSummary] = []
    for run in runs:
        tasks = [task for task in run.record.info["tasks"] if task.get("diagnosis")]
        sections.append([])
        for task in tasks if per_task else tasks[-1:]:
            found: Any = task["diagnosis"] or {}
            values = [found.get(name) for name in COLLAPSE.values()]
            cells = [
                Cell(None if value is None else f"{value:.3g}".replace("e+0", "e"), value=value)
                for value in values
            ]
            sections[-1].append([*names.cells(run), str(task["task"]), *cells])
            lines.append(run)
    if not per_task:
        sections = [[line for section in sections for line in section]]
    task_column = Column("task", meaning="The task after which the head is measured.")
    return Table(
        [*names.columns, task_column, *numbers],
        sections,
        title="At the end of every task" if per_task else "At the end of the last task",
        style="italic",
        remarks=["On buffer and new training images; 0: full collapse.", *_conditions(runs)],
        about=lines,
    )


def head_table(found: Diagnosis) -> RichTable:
    """Return the metrics of one head with the meaning of each, for `clinit diagnose`."""
    content, lines = found.content(), []
    for name, meaning in MEANING.items():
        value, floor = content[name], content.get(f"{name}_floor")
        heading = {"d_ls": "D_LS", "d_ls_relative": "D_LS rel."}.get(name, name.upper())
        shown = "-" if value is None else f"{value:.4g}"
        lines.append([heading, shown, "" if floor is None else f"{floor:.3f}", meaning])
    numbers = (Column(heading, "number") for heading in ("value", "floor"))
    return Table([Column("metric"), *numbers, Column("meaning", "text")], [lines]).rich(
        caption="Smaller is closer to collapse. floor: the least value that a head of this width"
        " can have.",
        is_framed=True,
    )


def text_table(runs: Sequence[RunSummary], *, metrics: bool = False) -> Table:
    """Return means over seeds with all columns, of the ranking or of further `metrics`."""
    groups = seed_groups(runs)
    measures = known_of(groups, FURTHER_MEASURES if metrics else ranked_measures(runs[0].reading))
    found = _table(groups, measures, without=("seed",), key=_comparable, is_seeded=True)
    first = "Mean over seeds"
    if not metrics:
        first = f"Ranked by A_all, on {runs[0].measured_on}: mean over evaluation points and seeds"
    parts = [f"{first}{_over_seeds(groups)}. {meanings(measures)}"]
    if any(measure.name == "loss_new" for measure in measures):
        parts.append(f"L_new: {_loss_meaning(runs)}.")
    if any(measure.is_gain for measure in measures):
        parts.append(f"gain, {runs[0].reading}: {_GAIN[runs[0].reading]}.")
    return replace(found, caption=" ".join(parts).strip())


def _of_run(group: SeedGroup) -> str:
    return group.runs[0].key


def _comparable(group: SeedGroup) -> str:
    return group.comparable


def _table(
    groups: Sequence[SeedGroup],
    measures: Sequence[Measure],
    *,
    without: Sequence[str] = (),
    key: Callable[[SeedGroup], str] | None = None,
    names_of: Sequence[RunSummary] = (),
    is_seeded: bool = False,
) -> Table:
    """Return one line per group: its names, its number of seeds and its measures.

    Args:
        groups: Runs of different seeds, or single runs.
        measures: Measures from left to right.
        without: Settings that names do not contain.
        key: Returns the facts shared by comparable groups, of which the best is bold. With
            `_of_run`, they also form a section.
        names_of: The runs that the names must distinguish; by default, the runs of the groups.
        is_seeded: Whether there is a column for the number of seeds even if each group has one.
    """
    runs = [group.runs[0] for group in groups]
    names = Names.of(names_of or runs, without=without)
    seeded = is_seeded or any(len(group.runs) > 1 for group in groups)
    cells = [cells_of(groups, each, key or (lambda group: str(id(group)))) for each in measures]
    lines: list[Cells] = [
        [
            *names.cells(group.runs[0]),
            *([str(len(group.runs))] if seeded else []),
            *(column[n] for column in cells),
        ]
        for n, group in enumerate(groups)
    ]
    sections = [lines]
    if key is _of_run:
        pairs = groupby(zip(runs, lines, strict=True), key=lambda pair: pair[0].key)
        apart = [[line for _, line in part] for _, part in pairs]
        if any(len(section) > 1 for section in apart):  # otherwise there is nothing to compare
            sections = apart
    every = [each.name for each in measures]
    needed = MOST_NEEDED if {*every} <= {*MOST_NEEDED} else every  # if there is no room
    columns = [
        *names.columns,
        *([Column("seeds", "number", meaning="How many runs are averaged.")] if seeded else []),
        *(each.column(needed.index(each.name), _meaning(each, runs)) for each in measures),
    ]
    return Table(
        columns,
        sections,
        title=names.title,
        remarks=["", *_conditions(runs, measures)],
        about=runs,
        is_bold=key is not None and len({key(group) for group in groups}) < len(groups),
    )


def _conditions(runs: Sequence[RunSummary], measures: Sequence[Measure] = ()) -> list[str]:
    """Return in words the conditions that differ from the default."""
    skipped = ["The points before the first step are left out."] * runs[0].skip_start
    is_other = runs[0].reading != "equal-level" and any(each.is_gain for each in measures)
    return [f"gain: {runs[0].reading}."] * is_other + skipped


def _meaning(measure: Measure, runs: Sequence[RunSummary]) -> str:
    words = measure.meaning
    if measure.name in _CLASSES:
        words = f"accuracy on {runs[0].measured_on} of {_CLASSES[measure.name]}, mean over"
        words += " evaluations"
    elif measure.is_gain:
        words = f"{runs[0].reading}: {_GAIN[runs[0].reading]}"
    elif measure.name == "loss_new":
        words = _loss_meaning(runs)
    return f"{words[:1].upper()}{words[1:]}."


def _loss_meaning(runs: Sequence[RunSummary]) -> str:
    sizes = [run.record.info.get("loss_sample_rows") for run in runs]
    known = [size for size in sizes if size is not None]
    most = f"at most {max(known):,} " if known and len(known) == len(sizes) else ""
    return f"mean loss on {most}training images of the current task"


def _over_seeds(groups: Sequence[SeedGroup]) -> str:
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return ""
    some = f" ({min(counts)} to {max(counts)})" if len(counts) > 1 else ""
    return f", ± standard deviation over seeds{some}"


def _task_row(task: Row) -> Row:
    return {**(task.get("initialisation") or {}), **task}


def _size(task: Row) -> str:
    nouns = {"classes": "class", "train_rows": "training image", "val_rows": "test image"}
    parts = [number_of(task[name], noun) for name, noun in nouns.items() if task[name] is not None]
    return f": {', '.join(parts)}" if parts else ""
