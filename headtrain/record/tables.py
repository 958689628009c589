"""The tables of a run record: their columns, and what must be so in every record.

Every evaluation counts each tested class seen so far once, in the order of the rows, and so do
the steps; so what a whole record holds follows from its classes and its evaluation points.
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
from clinit.extract.parquet_size import parquet_size
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
    },
    "points": {
        "task": pl.Int16,
        "iteration": pl.Int32,
        "loss_new": pl.Float32,
        "elapsed_s": pl.Float64,
    },
}
"""The tables of a record and the types of their columns."""

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
        parquet_size(content)  # bounds what is reserved for it
        table = pl.read_parquet(io.BytesIO(content))
    except (
        ValueError,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        MemoryError,
    ) as error:
        raise damaged(path, f"it is no table ({str(error).splitlines()[0]})") from error
    columns = TABLES[name]
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
        lacking = [c.name for c in table if c.name not in _MAY_LACK and c.null_count()]
        if lacking:
            raise damaged(folder / table_file(name), f"{lacking[0]} lacks values")
    columns = {
        name: {c.name: c.to_numpy() for c in table if c.dtype.is_integer()}
        for name, table in tables.items()
    }
    tasks = _check_classes(columns["classes"], folder / table_file("classes"))
    _check_points(columns["points"], tasks, folder / table_file("points"))
    told = [task["task"] for task in info["tasks"]]
    if told != list(range(1, tasks + 1)) or info["config"].get("tasks", tasks) != tasks:
        raise damaged(folder, f"run.json does not describe the {tasks:,} tasks of its tables")
    _check_steps(columns["steps"], columns["points"], folder / table_file("steps"))
    _check_evaluations(
        columns["evaluations"],
        columns["points"],
        columns["classes"],
        folder / table_file("evaluations"),
    )


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
