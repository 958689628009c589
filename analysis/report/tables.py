"""The tables of a report: runs, means over seeds, further metrics, tasks, neural collapse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

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
from clinit.analysis.report.seeds import SeedGroup, best_of_groups, known_of, seed_groups
from clinit.analysis.report.settings import RunNames, differences, phrase
from clinit.analysis.report.table import NOTHING, Cells, Column, Table, headings_of
from clinit.words import escaped

AT_LEAST = "≥: at least, the level is reached before the first step."
NOT_EVERY_TASK = "*: not in every task of every run."
BEST = "Bold: the best of comparable runs."
_GAIN: dict[Reading, str] = {
    "equal-level": "iterations of random / iterations of the run, both to 95 % of random's best"
    " new-task accuracy; 1 for random itself",
    "random-best": "iterations of random to its best new-task accuracy / iterations of the run to"
    " 95 % of it; above 1 for random itself where it reaches 95 % before its best",
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
"""Headings of neural collapse, and the names in a diagnosis."""


@dataclass(frozen=True, slots=True)
class _Below:
    """Words below a table; what bold means is printed if the terminal shows it."""

    words: str
    bold: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        words = " ".join(filter(None, (self.bold if console.color_system else "", self.words)))
        if words:
            yield Text(words, style="dim")


def ranking(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one line per group of seeds on the same data, the best first."""
    groups = seed_groups(runs)
    measures = known_of(groups, ranked_measures(reading))
    names = RunNames.of([group.runs[0] for group in groups], without=("seed",))
    table = _table(groups, names, measures, needed=MOST_NEEDED, numbered=True, beside=True)
    words = f"Ranked by A_all{_over_seeds(groups)}."
    return Group(Text(names.title, style="bold"), *_fitted(table, width, runs, words, reading))


def metrics_table(runs: Sequence[RunSummary], width: int, *, ranked: bool = True) -> RenderableType:
    """Return further metrics, one line per group of seeds on the same data."""
    groups = seed_groups(runs, ranked=ranked)
    measures = known_of(groups, FURTHER_MEASURES)
    names = RunNames.of([group.runs[0] for group in groups], without=("seed",))
    best = [best_of_groups(groups, measure) for measure in measures]
    table = _table(groups, names, measures, best=best)
    unknown = ", ".join(each.heading for each in FURTHER_MEASURES if each not in measures)
    words = f"In no run: {unknown}." if unknown else ""
    words = f"{_over_seeds(groups)[2:]}. {words}" if any(len(g.runs) > 1 for g in groups) else words
    return Group(*_fitted(table, width, runs, words, bold=_bold(groups)))


def run_table(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one line per run on the same data, under what they have in common."""
    groups = [SeedGroup.of([run]) for run in runs]
    names = RunNames.of(runs)
    measures = known_of(groups, run_measures(reading))
    table = _table_of_runs(groups, names, measures, needed=MOST_NEEDED)
    bold = BEST if len({run.key for run in runs}) < len(runs) else ""
    parts = _fitted(table, width, runs, "", reading, bold=bold)
    return Group(Text(names.title, style="bold"), *parts)


def task_table(runs: Sequence[RunSummary], width: int, reading: Reading) -> RenderableType:
    """Return one table per task and group of comparable runs, all on the same data."""
    of_training = differences(runs).of_training
    names = RunNames.of(runs, without=of_training)
    rows = [(run, [_task_row(task) for task in run.row()["tasks"]]) for run in runs]
    every = [SeedGroup((run,), (task,)) for run, tasks in rows for task in tasks]
    measures = known_of(every, task_measures(reading))
    parts: list[RenderableType] = []
    words: RenderableType = ""
    for _, chosen in groupby(rows, key=lambda pair: pair[0].key):
        group = list(chosen)
        for index, task in enumerate(group[0][1]):
            lines = [SeedGroup((run,), (tasks[index],)) for run, tasks in group]
            settings = [phrase(group[0][0], name) for name in of_training]
            heading = ", ".join([f"Task {task['task']}{_size(task)}", *settings])
            table, words = _fitted(
                _table_of_runs(lines, names, measures),
                width,
                runs,
                "A_0, end: A_new before the first step and after the last.",
                reading,
            )
            parts += [Text(f"\n{heading}", style="bold"), table]
    return Group(*parts, words)


def diagnosis_table(runs: Sequence[RunSummary], width: int, *, per_task: bool) -> RenderableType:
    """Return one line per run: its head at the end of the last task, or of every task."""
    names = RunNames.of(runs)
    numbers = [Column(name, "number", need=place) for place, name in enumerate(COLLAPSE)]
    sections: list[list[Cells]] = []
    words: list[str] = []
    for run in runs:
        tasks = [task for task in run.record.info["tasks"] if task.get("diagnosis")]
        sections.append([])
        for task in tasks if per_task else tasks[-1:]:
            values = diagnosis_texts(task["diagnosis"] or {})
            sections[-1].append([*names.cells(run), str(task["task"]), *values])
            words.append(names.words(run))
    if not per_task:
        sections = [[line for section in sections for line in section]]
    table = Table([*names.columns, Column("task"), *numbers], sections, words)
    title = "At the end of every task" if per_task else "At the end of the last task"
    below = "On buffer and new training images; 0: full collapse."
    return Group(Text(title, style="italic"), *_fitted(table, width, runs, below))


def diagnosis_texts(found: object) -> list[str]:
    """Return the numbers of a diagnosis as printed."""
    values = dict(found) if isinstance(found, dict) else {}
    known = [values.get(name) for name in COLLAPSE.values()]
    return [NOTHING if v is None else f"{v:.3g}".replace("e+0", "e") for v in known]


@dataclass(frozen=True, slots=True, eq=False)
class TextTable:
    """Means over seeds of runs on the same data, for a text: all columns are there."""

    title: str
    table: Table
    caption: str

    @classmethod
    def of(cls, runs: Sequence[RunSummary], reading: Reading, *, metrics: bool) -> TextTable:
        """Summarise runs by the ranking's measures, or by further `metrics`."""
        groups = seed_groups(runs)
        measures = known_of(groups, FURTHER_MEASURES if metrics else ranked_measures(reading))
        names = RunNames.of([group.runs[0] for group in groups], without=("seed",))
        best = [best_of_groups(groups, measure) for measure in measures]
        table = _table(groups, names, measures, best=best, is_seeded=True)
        first = "Mean over seeds"
        if not metrics:
            first = (
                f"Ranked by A_all, on {runs[0].measured_on}: mean over evaluation points and seeds"
            )
        parts = [f"{first}{_over_seeds(groups)}. {meanings(measures)}"]
        if any(measure.name == "loss_new" for measure in measures):
            parts.append(loss_meaning(runs))
        if any(measure.is_gain for measure in measures):
            parts.append(gain_meaning(reading))
        return cls(names.title, table, " ".join([*parts, *marks(table), _bold(groups)]).strip())

    def markdown(self) -> str:
        """Return a title, the table and a caption; the best numbers in bold."""
        parts = [f"**{escaped(self.title)}**", "", *self.table.markdown()]
        return "\n".join([*parts, "", escaped(self.caption), ""])

    def latex(self) -> str:
        """Return a `tabular`; title and caption are comments above."""
        return self.table.latex(self.title, self.caption)


def gain_meaning(reading: Reading) -> str:
    """Return what the column `gain` means by this reading."""
    return f"gain, {reading}: {_GAIN[reading]}."


def loss_meaning(runs: Sequence[RunSummary]) -> str:
    """Return what the column `L_new` means, with the most images that it was measured on."""
    sizes = [run.record.info.get("loss_sample_rows") for run in runs]
    known = [size for size in sizes if size is not None]
    most = f"at most {max(known):,} " if known and len(known) == len(sizes) else ""
    return f"L_new: mean loss on {most}training images of the current task."


def marks(table: Table) -> list[str]:
    """Return what the marks of the numbers of a table mean."""
    cells = [cell for line in table.lines for cell in line if not isinstance(cell, str | Text)]
    bounded = any((cell.mean or "").startswith("≥") for cell in cells)
    partial = any(cell.is_partial for cell in cells)
    return [AT_LEAST] * bounded + [NOT_EVERY_TASK] * partial


def _table(
    groups: Sequence[SeedGroup],
    names: RunNames,
    measures: Sequence[Measure],
    *,
    best: Sequence[Sequence[bool]] = (),
    needed: Sequence[str] = (),
    numbered: bool = False,
    beside: bool = False,
    is_seeded: bool | None = None,
) -> Table:
    """Return one line per group: its names, its number of seeds and its measures."""
    seeded = is_seeded or any(len(group.runs) > 1 for group in groups)
    lines: list[Cells] = []
    for place, group in enumerate(groups):
        run = group.runs[0]
        before = [str(place + 1)] if numbered else []
        tops = [each[place] for each in best] or [False] * len(measures)
        cells = [group.cell(m, is_best=top) for m, top in zip(measures, tops, strict=True)]
        lines.append(
            [*before, *names.cells(run), *([str(len(group.runs))] if seeded else []), *cells]
        )
    return Table(
        [
            *([Column("#", "number")] if numbered else []),
            *names.columns,
            *([Column("seeds", "number")] if seeded else []),
            *_columns(measures, needed),
        ],
        [lines],
        [names.words(group.runs[0]) for group in groups],
        beside,
    )


def _table_of_runs(
    groups: Sequence[SeedGroup],
    names: RunNames,
    measures: Sequence[Measure],
    needed: Sequence[str] = (),
) -> Table:
    """Return one line per run; the best of comparable runs, which are one section, in bold."""
    best = [best_of_groups(groups, m, key=lambda group: group.runs[0].key) for m in measures]
    table = _table(groups, names, measures, best=best, needed=needed)
    lines = zip(groups, table.lines, strict=True)
    sections = [
        [line for _, line in part]
        for _, part in groupby(lines, key=lambda pair: pair[0].runs[0].key)
    ]
    if all(len(section) == 1 for section in sections):  # nothing is beside anything
        sections = [table.lines]
    return Table(table.columns, sections, table.words)


def _columns(measures: Sequence[Measure], needed: Sequence[str]) -> list[Column]:
    return [
        measure.column(needed.index(measure.name) if needed else place)
        for place, measure in enumerate(measures)
    ]


def _fitted(
    table: Table,
    width: int,
    runs: Sequence[RunSummary],
    words: str,
    reading: Reading = "equal-level",
    *,
    bold: str = "",
) -> tuple[RenderableType, RenderableType]:
    """Return a table that fits the width, and the words below it."""
    drawn, missing = table.fitted(width)
    said = [words, *marks(table)]
    said += [] if reading == "equal-level" else [f"gain: {reading}."]
    said += ["The points before the first step are left out."] if runs[0].skip_start else []
    if numbers := [column for column in missing if column.need is not None]:
        wider = 120 if width < 120 else width + 40
        said.append(
            f"Not shown in this width: {headings_of(numbers)} (a wider terminal, or"
            f" COLUMNS={wider})."
        )
    return drawn, _Below(" ".join(filter(None, said)), bold)


def _over_seeds(groups: Sequence[SeedGroup]) -> str:
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return ""
    some = f" ({min(counts)} to {max(counts)})" if len(counts) > 1 else ""
    return f", ± standard deviation over seeds{some}"


def _bold(groups: Collection[SeedGroup]) -> str:
    """Return what bold numbers mean; nothing if no two groups can be compared."""
    return "" if len({group.comparable for group in groups}) == len(groups) else BEST


def _task_row(task: Row) -> Row:
    return {**(task.get("initialisation") or {}), **task}


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
