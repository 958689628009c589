"""The tables of the page: means over seeds, runs, and neural collapse where it was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from clinit.analysis.metrics.efficiency import Reading, bounded_name, value_name
from clinit.analysis.page.names import Cell, name_cells, name_columns
from clinit.analysis.report.captions import AT_LEAST, gain_caption, loss_caption
from clinit.analysis.report.diagnosis_table import COLUMNS as DIAGNOSES
from clinit.analysis.report.measures import STANDARD_MEASURES, START_MEASURE
from clinit.analysis.report.run import Row, RunSummary
from clinit.analysis.report.same_data import by_data, headings
from clinit.analysis.report.seeds import num_seeds, seed_groups
from clinit.analysis.report.settings import NOTHING, differences
from clinit.analysis.report.tables import Value


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of numbers."""

    value: Value
    meaning: str

    def column(self) -> dict[str, Any]:
        """Return its heading, its unit with the better direction, and its meaning."""
        heading, mark = self.value.column.heading.split("\n")
        return {
            "heading": heading,
            "mark": mark,
            "better": self.value.better,
            "meaning": self.meaning,
            "number": True,
        }


def tables(
    runs: Sequence[RunSummary], rows: Sequence[Row], reading: Reading
) -> list[dict[str, Any]]:
    """Return the tables of each data from top to bottom.

    The lines of runs name the place of their run.
    """
    places = {id(run): place for place, run in enumerate(runs)}
    parts = by_data(runs)
    found = []
    for heading, part in zip(headings(parts), parts, strict=True):
        for table in _tables(part, [rows[places[id(run)]] for run in part], reading):
            for line in table["lines"]:
                line["run"] = places[id(part[line["run"]])]
            told = f". {heading}" if heading else f", measured on {part[0].measured_on}"
            found.append(table | {"title": table["title"] + told})
    return found


def _tables(
    runs: Sequence[RunSummary], rows: Sequence[Row], reading: Reading
) -> Iterator[dict[str, Any]]:
    """Yield the tables of runs on the same data."""
    if num_seeds(runs) > 1:
        yield _seed_table(runs, rows, reading)
    yield _run_table(runs, rows, reading)
    if any("diagnosis" in task for run in runs for task in run.record.info["tasks"]):
        yield _diagnosis_table(runs)


def measures(runs: Sequence[RunSummary], rows: Sequence[Row], reading: Reading) -> list[Measure]:
    """Return the columns of numbers that a run has."""
    found = [
        Measure(
            Value(heading, name, "percent"),
            f"Accuracy on {runs[0].measured_on} of {classes}, mean over evaluations.",
        )
        for heading, name, classes in (
            ("A_all", "acc_all", "all classes seen"),
            ("A_new", "acc_new", "the current task"),
            ("A_old", "acc_old", "the base and earlier tasks"),
            ("A_pre", "acc_pre", "the base classes"),
        )
    ]
    found[1:1] = [
        Measure(
            Value(each.heading, each.name, "percent", each.better), f"{_sentence(each.meaning)}."
        )
        for each in (*STANDARD_MEASURES, START_MEASURE)
    ]
    loss = loss_caption(runs).removeprefix("L_new: ")
    gained = gain_caption(reading).removeprefix("gain, ")
    found.append(Measure(Value("L_new", "loss_new", "loss", "low"), _sentence(loss)))
    found.append(Measure(Value("gain", value_name(reading), "gain"), _sentence(gained)))
    if any(row["forward_transfer"] is not None for row in rows):
        words = "Forward transfer: top-1 of a linear probe on the next task's classes, mean."
        found.append(Measure(Value("FWT", "forward_transfer", "percent"), words))
    words = "Seconds (s), minutes (m) or hours (h) of this run alone."
    return [*found, Measure(Value("time", "seconds", "time", "low"), words)]


def terms(runs: Sequence[RunSummary]) -> list[list[str]]:
    """Return words that the meanings of the columns use, and what they stand for."""
    start = "does not count" if runs[0].skip_start else "counts too"
    return [["evaluation", f"A point of a curve; the one before the first step of a task {start}."]]


def _run_table(runs: Sequence[RunSummary], rows: Sequence[Row], reading: Reading) -> dict[str, Any]:
    names, columns = differences(runs).names, measures(runs, rows, reading)
    comparable: dict[str, list[Row]] = {}
    keys = [run.key for run in runs]
    for key, row in zip(keys, rows, strict=True):
        comparable.setdefault(key, []).append(row)
    lines = []
    for place, (run, row) in enumerate(zip(runs, rows, strict=True)):
        beside = comparable[keys[place]]
        cells = name_cells(run, names)
        for measure in columns:
            text = measure.value.text(row)
            best = measure.value.best(beside)
            cells.append([text, row[measure.value.name], text == best])
        lines.append({"run": place, "cells": cells})
    words = "Bold: the best" + (" of comparable runs." if len(comparable) > 1 else ".")
    return {
        "of": "runs",
        "title": "Runs",
        "columns": [*name_columns(names), *(each.column() for each in columns)],
        "lines": lines,
        "caption": (words if len(comparable) < len(runs) else "")
        + _marks(reading, rows, "in every task, see the notes"),
    }


def _seed_table(
    runs: Sequence[RunSummary], rows: Sequence[Row], reading: Reading
) -> dict[str, Any]:
    names = [name for name in differences(runs).names if name not in ("seed", "run")]
    columns = [each for each in measures(runs, rows, reading) if each.value.name != "seconds"]
    found = seed_groups(runs)
    row_of = {id(run): row for run, row in zip(runs, rows, strict=True)}
    rows_of = [[row_of[id(run)] for run in group.runs] for group in found]
    seeds = {
        "heading": "seeds",
        "mark": "",
        "better": "high",
        "meaning": "How many runs are averaged; ±: their standard deviation (n − 1).",
        "number": True,
    }
    counts = {len(group.runs) for group in found}
    uneven = f" Not all have the same number of seeds ({min(counts)} to {max(counts)})."
    return {
        "title": "Means over seeds",
        "columns": [*name_columns(names), seeds, *(each.column() for each in columns)],
        "lines": [
            {
                "run": runs.index(group.runs[0]),
                "cells": [
                    *name_cells(group.runs[0], names),
                    [str(len(group.runs)), len(group.runs)],
                    *(_spread(own, each.value) for each in columns),
                ],
            }
            for group, own in zip(found, rows_of, strict=True)
        ],
        "caption": "Ranked by A_all." + (uneven if len(counts) > 1 else "")
        + _marks(reading, rows, "in every task of every run"),
    }  # fmt: skip


def _spread(rows: Sequence[Row], value: Value) -> Cell:
    """Return mean and deviation over seeds; runs that lack the value do not count."""
    known = [row[value.name] for row in rows if row[value.name] is not None]
    if not known:
        return [NOTHING, None]
    mean, digits = statistics.fmean(known), 3 if value.kind == "loss" else 2
    bounded = "≥" if any(row.get(f"{value.name}_bounded") for row in rows) else ""
    text = f"{bounded}{mean:,.{digits}f}"
    if len(known) > 1:
        text += f" ±{statistics.stdev(known):,.{digits}f}"
    partly = value.kind == "gain" and any(map(_is_partial, rows))
    return [text + ("*" if partly else ""), mean]


def _marks(reading: Reading, rows: Sequence[Row], everywhere: str) -> str:
    """Return what the marks of gains mean, behind a blank."""
    bounded = f" {AT_LEAST}" if any(row[bounded_name(reading)] for row in rows) else ""
    return bounded + (f" *: not {everywhere}." if any(map(_is_partial, rows)) else "")


def _is_partial(row: Row) -> bool:
    """Return whether the gain is a mean over some tasks only."""
    return bool(row["gain_tasks"] != row["gain_tasks_reached"])


def _diagnosis_table(runs: Sequence[RunSummary]) -> dict[str, Any]:
    names = differences(runs).names
    lines = []
    for place, run in enumerate(runs):
        tasks = [task for task in run.record.info["tasks"] if task.get("diagnosis")]
        for task in tasks[-1:]:
            found: dict[str, Any] = dict(task["diagnosis"] or {})
            values = [found.get(name) for name in DIAGNOSES.values()]
            cells = [[NOTHING if v is None else f"{v:.3g}", v] for v in values]
            number = [str(task["task"]), task["task"]]
            lines.append({"run": place, "cells": [*name_cells(run, names), number, *cells]})
    headings = [("task", "The task after which the head is measured."), *_DIAGNOSIS_MEANINGS]
    return {
        "title": "Neural collapse after the last task",
        "columns": [
            *name_columns(names),
            *(
                {"heading": word, "mark": "", "better": "low", "meaning": said, "number": True}
                for word, said in headings
            ),
        ],
        "lines": lines,
        "caption": "Over buffer and new training rows.",
    }


_DIAGNOSIS_MEANINGS = list(
    zip(
        DIAGNOSES,
        (
            "Variation within classes beside that between them; 0: each class is a point.",
            "How far the rows of the head are from equal lengths and angles; 0 is full collapse.",
            "How far the rows of the head are from the class means; 0 is full collapse.",
            "The least NC2 and NC3 of a head of this width.",
            "How far classes are favoured at the mean of the features; 0: none is.",
            "Deviation of the head from least squares.",
            "D_LS / size of the head's outputs: comparable between losses.",
        ),
        strict=True,
    )
)


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]
