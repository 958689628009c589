"""The tables of a run record: their columns, and what must be so in every record.

Every evaluation counts each tested class seen so far once, in the order of the rows, and so do
the steps; so what a whole record holds follows from its classes and its evaluation points. The
mistakes at the end of a task are those that its last evaluation counts.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int

from clinit.errors import RecordError
from clinit.extract.dataset.parquet import row_count
from clinit.headtrain.record.info import damaged

TABLES: Mapping[str, Mapping[str, Any]] = {
    "classes": {
        "row": pl.Int32,
        "name": pl.String,
        "task": pl.Int16,
        "train_rows": pl.Int64,
        "val_rows": pl.Int64,
    },
    "steps": {
        "task": pl.Int16,
        "iteration": pl.Int32,
        "loss": pl.Float32,
        "loss_new": pl.Float32,
        "loss_old": pl.Float32,
    },
    "evaluations": {
        "task": pl.Int16,
        "iteration": pl.Int32,
        "row": pl.Int32,
        "correct": pl.Int32,
        "total": pl.Int32,
        "correct_in_task": pl.Int32,
    },
    "points": {
        "task": pl.Int16,
        "iteration": pl.Int32,
        "loss_new": pl.Float32,
        "elapsed_s": pl.Float64,
    },
    "mistakes": {
        "task": pl.Int16,
        "row": pl.Int32,
        "image": pl.Int32,
        "predicted": pl.Int32,
    },
}
"""The tables of a record and the types of their columns."""
LATER_COLUMNS: Mapping[str, Any] = {"evaluations": "correct_in_task"}
"""Columns that records of earlier versions lack; they are nulls then."""
LATER_TABLES = frozenset({"mistakes"})
"""Tables that records of earlier versions lack."""

Columns = Mapping[str, Int[np.ndarray, " _"]]
"""The whole numbers of a table."""
_MAY_LACK = frozenset({"loss", "loss_new", "loss_old"})
"""Columns with nulls: there is no loss of rows that a batch does not hold."""


def table_file(name: str) -> str:
    """Return the name of the file of a table."""
    return f"{name}.parquet"


def parse_table(name: str, content: bytes, path: Path) -> pl.DataFrame:
    """Return a table of a record.

    Raises:
        RecordError: If `content`, which was read from `path`, is not this table.
    """
    try:
        row_count(pl.scan_parquet(io.BytesIO(content)), len(content))
        table = pl.read_parquet(io.BytesIO(content))
    except (
        ValueError,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        MemoryError,
    ) as error:
        raise damaged(path, f"it is no table ({str(error).splitlines()[0]})") from error
    columns = TABLES[name]
    later = LATER_COLUMNS.get(name)
    if later is not None and later not in table.columns:
        table = table.with_columns(pl.lit(None, columns[later]).alias(later))
    if dict(table.schema) != dict(columns):
        raise RecordError(
            f"{path} has the columns {', '.join(table.columns)}, expected {', '.join(columns)} in"
            " the types of a record",
            remedy="Read it with the version of clinit that wrote it, or run it again.",
        )
    return table


def check_tables(tables: Mapping[str, pl.DataFrame], info: Mapping[str, Any], folder: Path) -> None:
    """Check that the tables of a record are complete and fit together.

    Losses are anything, also no number: a run may diverge.

    Raises:
        RecordError: If they do not.
    """
    for name, table in tables.items():
        empty = LATER_COLUMNS.get(name)
        lacking = [
            c.name
            for c in table
            if c.null_count() and c.name not in _MAY_LACK
            if c.name != empty or c.null_count() < len(c)
        ]
        if lacking:
            raise damaged(folder / table_file(name), f"{lacking[0]} lacks values")
    columns = {
        name: {c.name: c.to_numpy() for c in table if c.dtype.is_integer() and not c.null_count()}
        for name, table in tables.items()
    }
    paths = {name: folder / table_file(name) for name in tables}
    planned = _check_classes(columns["classes"], paths["classes"])
    tasks = min(info["config"].get("stop_after") or planned, planned)
    _check_points(columns["points"], tasks, paths["points"])
    told = [task["task"] for task in info["tasks"]]
    if told != list(range(1, tasks + 1)) or info["config"].get("tasks", planned) != planned:
        raise damaged(folder, f"run.json does not describe the {tasks:,} tasks of its tables")
    _check_steps(columns["steps"], columns["points"], paths["steps"])
    found, classes = columns["evaluations"], columns["classes"]
    _check_evaluations(found, columns["points"], classes, paths["evaluations"])
    if "mistakes" in tables:
        _check_mistakes(columns["mistakes"], found, len(classes["row"]), paths["mistakes"])


def _check_classes(classes: Columns, path: Path) -> int:
    """Check the classes of a record; return the number of its tasks."""
    task, rows = classes["task"], np.arange(len(classes["row"]))
    if not np.array_equal(classes["row"], rows):
        raise damaged(path, "its rows are not numbered 0, 1, 2, …")
    if not len(task) or task[-1] < 1 or (np.diff(task, prepend=0) & ~1).any():
        raise damaged(path, "its tasks do not follow each other, the base classes first")
    if min(classes["train_rows"].min(), classes["val_rows"].min()) < 0:
        raise damaged(path, "a class has less than no row")
    return int(task[-1])


def _check_points(points: Columns, tasks: int, path: Path) -> None:
    task, iteration = points["task"].astype(np.int64), points["iteration"].astype(np.int64)
    begins = np.diff(task, prepend=0)
    ordered = np.isin(begins, (0, 1)).all() and len(task) and task[-1] == tasks
    if not ordered or (iteration < 0).any() or (np.diff(iteration)[begins[1:] == 0] < 1).any():
        raise damaged(path, f"it does not go through the {tasks:,} tasks in order")


def _check_steps(steps: Columns, points: Columns, path: Path) -> None:
    last = np.flatnonzero(np.diff(points["task"], append=0))
    updates = points["iteration"][last].astype(np.int64)
    expected = int(updates.sum())
    if len(steps["task"]) != expected:
        raise damaged(path, f"it holds {len(steps['task']):,} of {expected:,} updates")
    task = np.repeat(points["task"][last], updates)
    iteration = np.arange(expected) - np.repeat(np.cumsum(updates) - updates, updates)
    if not (np.array_equal(steps["task"], task) and np.array_equal(steps["iteration"], iteration)):
        raise damaged(path, "its updates are not in order")


def _check_evaluations(found: Columns, points: Columns, classes: Columns, path: Path) -> None:
    tested = np.flatnonzero(classes["val_rows"])
    seen = np.searchsorted(classes["task"][tested], points["task"], side="right")
    if len(found["row"]) != (expected := int(seen.sum())):
        raise damaged(path, f"it holds {len(found['row']):,} of {expected:,} counts")
    row = np.concatenate([tested[:count] for count in seen])
    wanted = {
        "task": np.repeat(points["task"], seen),
        "iteration": np.repeat(points["iteration"], seen),
        "row": row,
        "total": classes["val_rows"][row],
    }
    for name, values in wanted.items():
        if len(wrong := np.flatnonzero(found[name] != values)):
            at = wrong[0]
            raise damaged(
                path, f"{name} is {found[name][at]:,} in row {at:,}, expected {values[at]:,}"
            )
    correct, total = found["correct"], found["total"]
    if len(wrong := np.flatnonzero((correct < 0) | (correct > total))):
        at = wrong[0]
        raise damaged(path, f"{correct[at]:,} of {total[at]:,} images are correct in row {at:,}")
    within = found.get("correct_in_task", correct)
    if len(wrong := np.flatnonzero((within < correct) | (within > total))):
        at = wrong[0]
        raise damaged(
            path,
            f"{within[at]:,} of {total[at]:,} images are correct within their task in row {at:,},"
            f" {correct[at]:,} among all classes",
        )


def _check_mistakes(found: Columns, counts: Columns, num_rows: int, path: Path) -> None:
    """Check that the mistakes at the end of each task are those that were counted there."""
    ended = _at_task_ends(counts["task"], counts["iteration"])
    wrong = (counts["total"] - counts["correct"])[ended]
    if len(found["task"]) != (expected := int(wrong.sum())):
        raise damaged(path, f"it holds {len(found['task']):,} of {expected:,} mistakes")
    for name in ("task", "row"):
        if not np.array_equal(found[name], np.repeat(counts[name][ended], wrong)):
            raise damaged(path, "its mistakes are not those that evaluations.parquet counts")
    first = np.repeat(np.cumsum(wrong) - wrong, wrong) == np.arange(expected)
    image, total = found["image"].astype(np.int64), np.repeat(counts["total"][ended], wrong)
    if (image < 0).any() or (image >= total).any() or (np.diff(image)[~first[1:]] < 1).any():
        raise damaged(path, "its images are not numbered in order")
    if ((found["predicted"] < 0) | (found["predicted"] >= num_rows)).any():
        raise damaged(path, f"it predicts classes beyond the {num_rows:,} of the record")


def _at_task_ends(
    task: Int[np.ndarray, " rows"], iteration: Int[np.ndarray, " rows"]
) -> Int[np.ndarray, " ends"]:
    """Return the rows of the last evaluation of each task."""
    if not len(task):
        return np.empty(0, np.int64)
    last = np.zeros(int(task.max()) + 1, np.int64)
    np.maximum.at(last, task, iteration)
    return np.flatnonzero(iteration == last[task])
