"""The tables of the page: means over seeds, runs, and neural collapse where it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clinit.analysis.metrics.efficiency import Reading
from clinit.analysis.report.measures import Measure, run_measures
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.seeds import SeedGroup, best_of_groups, num_seeds, seed_groups
from clinit.analysis.report.settings import (
    SHORT,
    by_data,
    differences,
    headings,
    settings,
    shown,
)
from clinit.analysis.report.table import NOTHING, Cell, Column, Table
from clinit.analysis.report.tables import (
    COLLAPSE,
    diagnosis_texts,
    gain_meaning,
    loss_meaning,
    marks,
)

Printed = list[Any]
"""What is printed, what it is sorted by, and whether it is the best of comparable runs."""
_NAMED = {
    "init": "How the rows of new classes start; the method, where a head is solved as a whole.",
    "scale": "How long the new rows are made.",
    "run": "The number of the run: nothing else tells it apart from another.",
    "lam": "λ, the ridge of the least squares.",
}
_ACCURACIES = {
    "acc_all": "all classes seen",
    "acc_new": "the current task",
    "acc_old": "the base and earlier tasks",
    "acc_pre": "the base classes",
}
_COLLAPSE_MEANINGS = (
    "Variation within classes beside that between them; 0: each class is a point.",
    "How far the rows of the head are from equal lengths and angles; 0 is full collapse.",
    "How far the rows of the head are from the class means; 0 is full collapse.",
    "The least NC2 and NC3 of a head of this width.",
    "How far classes are favoured at the mean of the features; 0: none is.",
    "Deviation of the head from least squares.",
    "D_LS / size of the head's outputs: comparable between losses.",
)


def tables(runs: Sequence[RunSummary], reading: Reading) -> list[dict[str, Any]]:
    """Return the tables of each data from top to bottom; their lines name the place of a run."""
    places = {id(run): place for place, run in enumerate(runs)}
    parts = by_data(runs)
    found = []
    for heading, part in zip(headings(parts), parts, strict=True):
        for table in _tables(part, reading):
            for line in table["lines"]:
                line["run"] = places[id(line["run"])]
            data = f". {heading}" if heading else f", measured on {part[0].measured_on}"
            found.append(table | {"title": table["title"] + data})
    return found


def _tables(runs: Sequence[RunSummary], reading: Reading) -> Iterator[dict[str, Any]]:
    """Yield the tables of runs on the same data; their lines name the run itself."""
    names = ["init", "scale", *differences(runs).names]
    if num_seeds(runs) > 1:
        groups = seed_groups(runs)
        measures = [each for each in run_measures(reading) if each.name != "seconds"]
        seedless = [name for name in names if name not in ("seed", "run")]
        table = _table(groups, seedless, measures, reading)
        meaning = "How many runs are averaged; ±: their standard deviation (n − 1)."
        table["columns"].insert(len(seedless), _column(Column("seeds", "number"), meaning))
        for line, group in zip(table["lines"], groups, strict=True):
            line["cells"].insert(len(seedless), [str(len(group.runs)), len(group.runs)])
        yield table | {
            "title": "Means over seeds",
            "caption": f"Ranked by A_all. {table['caption']}".strip(),
        }
    groups = [SeedGroup.of([run]) for run in runs]
    table = _table(groups, names, run_measures(reading), reading, is_best=True)
    caption = f"Bold: the best of comparable runs. {table['caption']}".strip()
    yield table | {"of": "runs", "title": "Runs", "caption": caption}
    if any("diagnosis" in task for run in runs for task in run.record.info["tasks"]):
        yield _diagnosis_table(runs, names)


def _table(
    groups: Sequence[SeedGroup],
    names: Sequence[str],
    measures: Sequence[Measure],
    reading: Reading,
    *,
    is_best: bool = False,
) -> dict[str, Any]:
    """Return one line per group: its names and its measures, those that no run has left out."""
    runs = [group.runs[0] for group in groups]
    measures = [
        each
        for each in measures
        if each.name != "forward_transfer" or any(g.spread(each.name) for g in groups)
    ]
    nothing = [False] * len(groups)
    best = [
        best_of_groups(groups, each, key=lambda group: group.runs[0].key) if is_best else nothing
        for each in measures
    ]
    cells = [
        [group.cell(each, is_best=own[place]) for each, own in zip(measures, best, strict=True)]
        for place, group in enumerate(groups)
    ]
    columns = [each.column(place) for place, each in enumerate(measures)]
    return {
        "columns": [
            *_name_columns(names),
            *(
                _column(column, _meaning(measure, runs, reading))
                for column, measure in zip(columns, measures, strict=True)
            ),
        ],
        "lines": [
            {"run": run, "cells": [*_name_cells(run, names), *map(_printed, own)]}
            for run, own in zip(runs, cells, strict=True)
        ],
        "caption": " ".join(marks(Table(columns, [cells]))),
    }


def _meaning(measure: Measure, runs: Sequence[RunSummary], reading: Reading) -> str:
    if measure.name in _ACCURACIES:
        classes = _ACCURACIES[measure.name]
        return f"Accuracy on {runs[0].measured_on} of {classes}, mean over evaluations."
    if measure.is_gain:
        words = gain_meaning(reading).removeprefix("gain, ").removesuffix(".")
    elif measure.name == "loss_new":
        words = loss_meaning(runs).removeprefix("L_new: ").removesuffix(".")
    else:
        words = measure.meaning
    return f"{words[0].upper()}{words[1:]}."


def _diagnosis_table(runs: Sequence[RunSummary], names: Sequence[str]) -> dict[str, Any]:
    lines = []
    for run in runs:
        tasks = [task for task in run.record.info["tasks"] if task.get("diagnosis")]
        for task in tasks[-1:]:
            found: dict[str, Any] = dict(task["diagnosis"] or {})
            values = [found.get(name) for name in COLLAPSE.values()]
            cells = [list(pair) for pair in zip(diagnosis_texts(found), values, strict=True)]
            number = [str(task["task"]), task["task"]]
            lines.append({"run": run, "cells": [*_name_cells(run, names), number, *cells]})
    own = [
        ("task", "The task after which the head is measured."),
        *zip(COLLAPSE, _COLLAPSE_MEANINGS, strict=True),
    ]
    columns = [_column(Column(word, "number", better="low"), words) for word, words in own]
    return {
        "title": "Neural collapse after the last task",
        "columns": [*_name_columns(names), *(each | {"mark": ""} for each in columns)],
        "lines": lines,
        "caption": "Over buffer and new training rows.",
    }


def _column(column: Column, meaning: str) -> dict[str, Any]:
    """Return heading, unit with the better direction, and meaning of a column."""
    return {
        "heading": column.heading,
        "mark": column.mark,
        "better": column.better,
        "meaning": meaning,
        "number": column.kind == "number",
    }


def _name_columns(names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        _column(
            Column(SHORT.get(name, name)),
            _NAMED.get(name, "" if name not in SHORT else f"{name.replace('_', ' ')}."),
        )
        for name in names
    ]


def _name_cells(run: RunSummary, names: Sequence[str]) -> list[Printed]:
    """Return what a run has in the columns that name it."""
    values = {**settings(run), "run": run.number}
    cells: list[Printed] = []
    for name in names:
        text = setting_text(run, name)
        value = values.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        cells.append([text, value if number and text != NOTHING else text])
    return cells


def setting_text(run: RunSummary, name: str) -> str:
    """Return a setting of a run as printed, initialisation and scale included."""
    if name == "init":
        return run.init
    if name == "scale":
        return NOTHING if run.init == "random" else run.scale
    return shown(run, name)


def _printed(cell: Cell) -> Printed:
    if cell.mean is None:
        return [NOTHING, None, False]
    text = cell.mean if cell.deviation is None else f"{cell.mean} ±{cell.deviation}"
    return [text + ("*" if cell.is_partial else ""), cell.value, cell.is_best]
