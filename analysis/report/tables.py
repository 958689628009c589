"""The tables of a report: runs, means over seeds, tasks, neural collapse; and of a probe.

Each is a choice of lines and measures for `table_of`; the terminal, Markdown, LaTeX and the page
show the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from clinit.analysis.report import settings
from clinit.analysis.report.measures import MEASURES, TABLES, Measure, captions, measures_of
from clinit.analysis.report.notes import remarks_of
from clinit.analysis.report.run import COLLAPSE, Row, RunSummary
from clinit.analysis.report.table import NOTHING, Cells, Column, Table
from clinit.headtrain.probe.protocol import Probe
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.analysis.metrics.diagnosis import Diagnosis


def ranking(runs: Sequence[RunSummary], columns: str | Sequence[str] = "") -> Table:
    """Return one line per group of seeds on the same data, the best A_all first.

    Args:
        runs: Runs on the same data.
        columns: Names of measures; by default those that some run has, in the default order.
    """
    groups = settings.seed_groups(runs)
    measures = measures_of(columns) or settings.known_of(groups, measures_of(TABLES["ranked"]))
    found = table_of(groups, measures, without=("seed",), key=lambda each: each.comparable)
    least, most = (choose(len(group.runs) for group in groups) for choose in (min, max))
    over = f", ± standard deviation over seeds{f' ({least} to {most})' * (least < most)}"
    ranked = f"Ranked by A_all on {runs[0].measured_on}{over * (most > 1)}."
    caption = f"{ranked} {captions(measures, runs)} {remarks_of(runs)}".rstrip()
    told = captions(measures, runs) if columns else ""
    return replace(found, caption=caption, remarks=[ranked, told])


def run_table(runs: Sequence[RunSummary], columns: str | Sequence[str] = "") -> Table:
    """Return one line per run on the same data; the title contains the shared settings."""
    groups = [settings.SeedGroup.of([run]) for run in runs]
    measures = measures_of(columns) or settings.known_of(groups, measures_of(TABLES["runs"]))
    found = table_of(groups, measures, key=_of_run)
    told = captions(measures, runs) if columns else ""
    return replace(found, remarks=[*(found.remarks or ()), told])


def collapse_table(runs: Sequence[RunSummary]) -> Table:
    """Return neural collapse at the end of the last task, one line per group of seeds."""
    groups = settings.seed_groups(runs, ranked=False)
    measures = settings.known_of(groups, [MEASURES[name] for name in COLLAPSE])
    found = table_of(groups, measures, without=("seed",))
    where = f"{runs[0].diagnosed_on[:1].upper()}{runs[0].diagnosed_on[1:]}; 0: full collapse."
    title = "Neural collapse after the last task"
    return replace(found, title=title, caption=where, remarks=[where])


def task_table(
    runs: Sequence[RunSummary], columns: Sequence[str] = TABLES["tasks"]
) -> RenderableType:
    """Return one table per task and group of comparable runs, all on the same data."""
    of_training = settings.Names.of(runs).of_training

    def tasks_of(run: RunSummary) -> list[Row]:
        tasks = run.row()["tasks"]
        return [{**(t["initialisation"] or {}), **(t["diagnosis"] or {}), **t} for t in tasks]

    rows = [(run, tasks_of(run)) for run in runs]
    every = [settings.SeedGroup((run,), (task,)) for run, tasks in rows for task in tasks]
    measures = settings.known_of(every, measures_of(columns))
    parts: list[Table] = []
    for _, chosen in groupby(rows, key=lambda pair: pair[0].key):
        group = list(chosen)
        for index, task in enumerate(group[0][1]):
            lines = [settings.SeedGroup((run,), (tasks[index],)) for run, tasks in group]
            words = [settings.phrase(group[0][0], name) for name in of_training]
            heading = ", ".join([f"Task {task['task']}{_size(task)}", *words])
            found = table_of(lines, measures, names_of=runs, without=of_training, key=_of_run)
            parts.append(replace(found, title=f"\n{heading}", remarks=None, is_bold=False))
    remarks = ["A_0, end: A_new before the first step and after the last."]
    return Group(*parts[:-1], *(replace(each, remarks=remarks) for each in parts[-1:]))


def heads_table(found: Mapping[str, Diagnosis]) -> Table:
    """Return the metrics of heads for `clinit diagnose`: of one with meanings, else a line each."""
    contents = [each.content() for each in found.values()]
    names = [name for name in COLLAPSE if any(each[name] is not None for each in contents)]
    meanings = {name: MEASURES[name].meaning.replace(", {statistics}", "") for name in names}
    cells = [["-" if each[n] is None else f"{each[n]:.4g}" for n in names] for each in contents]
    words = "Smaller is closer to collapse. floor: the least value of a head of this width."
    if len(found) > 1:
        told = [f"{MEASURES[name].heading}: {meanings[name]}." for name in names]
        columns = [Column("head", "run"), *(Column(MEASURES[n].heading, "number") for n in names)]
        lines = [[name, *line] for name, line in zip(found, cells, strict=True)]
        return Table(columns, [lines], remarks=[" ".join(told)])
    floors = [contents[0].get(f"{name}_floor") for name in names]
    rows = zip(names, cells[0], floors, strict=True)
    lines = [
        [MEASURES[n].heading, cell, "" if floor is None else f"{floor:.3f}", meanings[n]]
        for n, cell, floor in rows
        if n != "nc2_floor"
    ]
    columns = [Column("metric"), Column("value", "number"), Column("floor", "number")]
    return Table([*columns, Column("meaning", "setting")], [lines], remarks=[words])


def _of_run(group: settings.SeedGroup) -> str:
    return group.runs[0].key


def table_of(
    groups: Sequence[settings.SeedGroup],
    measures: Sequence[Measure],
    *,
    without: Sequence[str] = (),
    key: Callable[[settings.SeedGroup], str] | None = None,
    names_of: Sequence[RunSummary] = (),
) -> Table:
    """Return one line per group: its names, its number of seeds and its measures.

    Args:
        groups: Runs of different seeds, or single runs.
        measures: Measures from left to right.
        without: Settings that names do not contain; `seed`: of groups of seeds.
        key: Returns the facts shared by comparable groups, of which the best is bold. With
            `_of_run`, they also form a section.
        names_of: The runs that the names must distinguish; by default, the runs of the groups.
    """
    runs = [group.runs[0] for group in groups]
    names = settings.Names.of(names_of or runs, without=without)
    seeded = "seed" in without
    keyed = key or (lambda group: str(id(group)))
    cells = [settings.cells_of(groups, each, keyed) for each in measures]
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
    needed = TABLES["needed"] if {*every} <= {*TABLES["needed"]} else every
    columns = [
        *names.columns,
        *([Column("seeds", "number", meaning="How many runs are averaged.")] if seeded else []),
        *(each.column(runs, needed.index(each.name)) for each in measures),
    ]
    title, is_bold = names.title, key is not None and len({*map(key, groups)}) < len(groups)
    return Table(columns, sections, seeded, title, remarks=[""], about=runs, is_bold=is_bold)


def _size(task: Row) -> str:
    nouns = {"classes": "class", "train_rows": "training image", "val_rows": "test image"}
    parts = [number_of(task[name], noun) for name, noun in nouns.items() if task[name] is not None]
    return f": {', '.join(parts)}" if parts else ""


def grid_table(found: Probe) -> Table:
    """Return a table of held-out top-1 in percent, with a mark at the chosen penalty."""
    lines: list[Cells] = []
    for point in found.grid:
        steps = f"{point.iterations:,}" + ("" if point.converged else ", cut short")
        mark = " *" if point.c == found.chosen["c"] else ""
        top1 = f"{point.top1:.2f}{mark}"
        lines.append([f"{point.c:g}", top1, f"{point.held_out_loss:.3f}", steps])
    headings = ["C", "top-1", "held-out loss", "iterations"]
    title = f"Top-1 on {found.held_out_rows:,} held-out training rows, in %"
    title += " (* chosen: the least loss on them)"
    return Table([Column(each, "number") for each in headings], [lines], title=title)


def accuracy_lines(found: Probe) -> list[str]:
    """Return the accuracy of the probe, with the chosen penalty and the elapsed time."""
    if found.val is None:
        top1 = NOTHING if found.held_out_top1 is None else f"{found.held_out_top1:.2f} %"
        words = f"Top-1 on held-out training rows: {top1}"
    else:
        top5 = "" if found.val.top5 is None else f", top-5 {found.val.top5:.2f} %"
        words = (
            f"On {found.val.rows:,} validation rows: top-1 {found.val.top1:.2f} %{top5}, mean over"
            f" classes {found.val.per_class:.2f} %"
        )
    seconds = f"In {found.seconds['total']:,.1f} s on {found.facts['device']}"
    return [f"{words} (C {found.chosen['c']:.3g})", seconds]
