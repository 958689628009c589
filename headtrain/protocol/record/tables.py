"""The tables of a run record and their columns.

Every evaluation has a row for each tested class seen so far, in the order of head rows. Mistakes
are those of the last evaluation of a task or, with `mistakes = "all"`, of every evaluation.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from clinit.errors import RecordError
from clinit.files.arrays import row_count
from clinit.headtrain.protocol.record.info import damaged

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
        "iteration": pl.Int32,
        "row": pl.Int32,
        "image": pl.Int32,
        "predicted": pl.Int32,
    },
}
"""The tables of a record and the types of their columns."""
LATER_COLUMNS: Mapping[str, str] = {"evaluations": "correct_in_task", "mistakes": "iteration"}
"""Columns that records of earlier versions lack; they are read as nulls."""
LATER_TABLES = frozenset({"mistakes"})
"""Tables that records of earlier versions lack."""


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
        table = table.with_columns(pl.lit(None, columns[later]).alias(later)).select(*columns)
    if dict(table.schema) != dict(columns):
        raise RecordError(
            f"{path} has the columns {', '.join(table.columns)}, expected {', '.join(columns)} in"
            " the types of a record",
            remedy="Read it with the version of clinit that wrote it, or run it again.",
        )
    return table
