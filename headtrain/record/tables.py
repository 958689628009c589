"""The tables of a run record: their columns, and what must be so in every record.

Every evaluation counts each tested class seen so far once, in the order of the rows, and so do
the steps; so what a whole record holds follows from its classes and its evaluation points. The
mistakes at the end of a task are those that its last evaluation counts.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
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

_MAY_LACK = frozenset({"loss", "loss_new", "loss_old"})
"""Columns with nulls: there is no loss of rows that a batch does not hold."""


def table_file(name: str) -> str:
    """Return the name of the file of a table."""
    return f"{name}.parquet"


def parse_table(name: str, content: bytes, folder: Path) -> pl.DataFrame:
    """Return a table of a record.

    Raises:
        RecordError: If `content`, which was read from `folder`, is not this table.
    """
    path = folder / table_file(name)
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
        for column in table:
            nulls = column.null_count()
            older = column.name == LATER_COLUMNS.get(name) and nulls == len(column)
            if nulls and not older and column.name not in _MAY_LACK:
                raise damaged(folder / table_file(name), f"{column.name} lacks values")
    columns = {
        name: {c.name: c.to_numpy() for c in table if c.dtype.is_integer() and not c.null_count()}
        for name, table in tables.items()
    }
    for faults in (_faults_of_order(columns, info), _faults_of_counts(columns)):
        for name, why in faults:
            raise damaged(folder / table_file(name), why)


Columns = Mapping[str, Int[np.ndarray, " _"]]
"""The whole numbers of a table."""
Faults = Iterator[tuple[str, str]]
"""Tables, and what is wrong with them; who reads on relies on those before."""


def _faults_of_order(columns: Mapping[str, Columns], info: Mapping[str, Any]) -> Faults:
    """Yield what is wrong with the classes, and with the order of points and updates."""
    classes, points, steps = columns["classes"], columns["points"], columns["steps"]
    task, rows = classes["task"], np.arange(len(classes["row"]))
    numbered = np.array_equal(classes["row"], rows) and len(rows) and task[-1] > 0
    if not numbered or (np.diff(task, prepend=0) & ~1).any():
        yield "classes", "its rows are not numbered in order, task by task"
    if min(classes["train_rows"].min(), classes["val_rows"].min()) < 0:
        yield "classes", "a class has less than no row"
    planned = int(task[-1])
    tasks = min(info["config"].get("stop_after") or planned, planned)
    told = [each["task"] for each in info["tasks"]]
    if told != list(range(1, tasks + 1)) or info["config"].get("tasks", planned) != planned:
        yield "classes", f"run.json does not describe the {tasks:,} tasks of its tables"
    at, iteration = points["task"].astype(np.int64), points["iteration"].astype(np.int64)
    begins = np.diff(at, prepend=0)
    ordered = np.isin(begins, (0, 1)).all() and len(at) and at[-1] == tasks
    if not ordered or (iteration < 0).any() or (np.diff(iteration)[begins[1:] == 0] < 1).any():
        yield "points", f"it does not go through the {tasks:,} tasks in order"
    last = np.flatnonzero(np.diff(at, append=0))
    updates = iteration[last]
    within = np.arange(updates.sum()) - np.repeat(np.cumsum(updates) - updates, updates)
    yield from _unequal("steps", steps, task=np.repeat(at[last], updates), iteration=within)


def _faults_of_counts(columns: Mapping[str, Columns]) -> Faults:
    """Yield what is wrong with the evaluations, and with the mistakes that the last ones count."""
    classes, points, found = columns["classes"], columns["points"], columns["evaluations"]
    tested = np.flatnonzero(classes["val_rows"])
    seen = np.searchsorted(classes["task"][tested], points["task"], side="right")
    row = np.concatenate([tested[:count] for count in seen])
    task, iteration = (np.repeat(points[name], seen) for name in ("task", "iteration"))
    wanted = {"task": task, "iteration": iteration, "row": row, "total": classes["val_rows"][row]}
    yield from _unequal("evaluations", found, **wanted)
    correct, total = found["correct"], found["total"]
    within = found.get("correct_in_task", correct)
    wrong = (correct < 0) | (correct > within) | (within > total)
    for at in np.flatnonzero(wrong):
        yield "evaluations", f"{correct[at]:,} of {total[at]:,} images are correct in row {at:,}"
    if (mistakes := columns.get("mistakes")) is None:
        return
    ends = iteration == points["iteration"][np.searchsorted(points["task"], task, "right") - 1]
    missed = (total - correct)[ends]
    wanted = {"task": np.repeat(task[ends], missed), "row": np.repeat(row[ends], missed)}
    yield from _unequal("mistakes", mistakes, **wanted)
    image, predicted = mistakes["image"].astype(np.int64), mistakes["predicted"]
    first = np.isin(np.arange(len(image)), np.cumsum(missed) - missed)
    outside = (image < 0) | (image >= np.repeat(total[ends], missed))
    if outside.any() or (np.diff(image)[~first[1:]] < 1).any():
        yield "mistakes", "its images are not numbered in order"
    if ((predicted < 0) | (predicted >= len(classes["row"]))).any():
        yield "mistakes", f"it predicts classes beyond the {len(classes['row']):,} of the record"


def _unequal(table: str, found: Columns, **wanted: Int[np.ndarray, " _"]) -> Faults:
    """Yield where a table is not what the others ask for."""
    for name, values in wanted.items():
        if len(found[name]) != len(values):
            yield table, f"it holds {len(found[name]):,} of {len(values):,} rows"
        for at in np.flatnonzero(found[name] != values):
            yield table, f"{name} is {found[name][at]:,} in row {at:,}, expected {values[at]:,}"
