"""The record of a run: a folder with everything that training saw, and nothing computed from it.

    run.json             configuration, data, notes, wall times, versions
    classes.parquet      row, name, task (0 = base), train_rows, val_rows
    steps.parquet        task, iteration, loss, loss_new, loss_old: before that update
    evaluations.parquet  task, iteration, row, correct, total: after that many updates
    points.parquet       task, iteration, loss_new, elapsed_s
    head.safetensors     the head after the last task (absent in older records)
    top.safetensors      the backbone's changed parameters, where they were trained

The folder is written under a temporary name and renamed: a record is complete, or not there.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from clinit.errors import ClinitError, RecordError
from clinit.extract.commit import flush_file, flush_folder, temporary
from clinit.extract.head import Head, read_head, write_head

FORMAT = "clinit-run/1"
INFO = "run.json"
HEAD = "head.safetensors"
TOP = "top.safetensors"


def settings_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, those that were not recorded in its day included."""
    settings = dict(info["config"])
    later = {
        "precision": "float32",
        "weighting": "class",
        "init_rows": "new" if settings.get("method") in ("naive", "ewc") else "buffer",
    }
    return {**later, **settings}


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


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """One head's run over the stream."""

    path: Path | None
    """Where it is stored; None for a record that has not been written."""
    info: dict[str, Any]
    """The content of run.json."""
    classes: pl.DataFrame
    steps: pl.DataFrame
    evaluations: pl.DataFrame
    points: pl.DataFrame
    head: Head | None = None
    """The head after the last task, to be written; `final_head` reads it again."""
    top: Mapping[str, np.ndarray] | None = None
    """The backbone's parameters that training has changed, by their names in its state dict;
    to be written, None where the backbone was frozen. `changed_parameters` reads them again."""


def check_free(folders: Iterable[Path]) -> None:
    """Check, before anything is trained, that records can be written to `folders`.

    Raises:
        RecordError: If one of them exists, or cannot be created.
    """
    folders = list(folders)
    if present := [folder for folder in folders if folder.exists()]:
        more = f" (and {len(present) - 1} more)" if len(present) > 1 else ""
        raise RecordError(
            f"there is already something at {present[0]}{more}: a record is never overwritten",
            remedy="Choose another --out, or remove the old record first.",
        )
    for folder in folders:
        nearest = next(parent for parent in folder.absolute().parents if parent.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            raise RecordError(
                f"cannot write the record {folder}: {nearest} is not a folder you can write to",
                remedy="Choose another --out.",
            )


def write_record(record: RunRecord, folder: Path) -> None:
    """Write `record` to `folder`, which must not exist yet.

    Raises:
        RecordError: If `folder` exists or cannot be written; nothing is left behind then.
    """
    check_free([folder])
    draft = temporary(folder)
    try:
        draft.mkdir(parents=True)
        _write_files(record, draft)
        draft.rename(folder)
        flush_folder(folder.parent)
    except (OSError, ClinitError, SafetensorError) as error:  # ClinitError: has a cause
        shutil.rmtree(draft, ignore_errors=True)
        cause = error if isinstance(error, OSError) else error.__cause__
        raise RecordError(
            f"cannot write the record {folder}: {getattr(cause, 'strerror', None) or error}",
            remedy="Free space or choose a folder you can write with --out, then run it again.",
        ) from error
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def write_records(records: Sequence[RunRecord], folders: Sequence[Path]) -> None:
    """Write each record to its folder; one that cannot be written does not stop the others.

    Raises:
        RecordError: If one could not be written, after all others are.
    """
    failed: list[RecordError] = []
    for record, folder in zip(records, folders, strict=True):
        try:
            write_record(record, folder)
        except RecordError as error:
            failed.append(error)
    if failed:
        raise RecordError(
            f"{failed[0]}; {len(failed):,} of {len(records):,} runs are not recorded",
            remedy=failed[0].remedy,
        ) from failed[0]


def _write_files(record: RunRecord, folder: Path) -> None:
    for name in TABLES:
        table: pl.DataFrame = getattr(record, name)
        content = io.BytesIO()  # polars has an error of its own for a full disk
        table.write_parquet(content)
        (folder / f"{name}.parquet").write_bytes(content.getvalue())
    text = json.dumps(finite(record.info), indent=2, ensure_ascii=False, allow_nan=False)
    if record.head is not None:
        write_head(record.head, folder / HEAD)
    if record.top is not None:
        save_file(
            {name: np.ascontiguousarray(value) for name, value in record.top.items()}, folder / TOP
        )
    # The escapes are JSON's own, of the bytes of a path that are no UTF-8.
    (folder / INFO).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    for file in folder.iterdir():
        flush_file(file)
    flush_folder(folder)


def finite(value: Any) -> Any:
    """Replace numbers that JSON does not know, such as the loss of a diverged head, by None."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_record(folder: Path) -> RunRecord:
    """Read the record in `folder`.

    Raises:
        RecordError: If there is none, or a file is missing, damaged or of another layout.
    """
    info = read_info(folder)
    tables: dict[str, Any] = {
        name: _read_table(folder / f"{name}.parquet", TABLES[name]) for name in TABLES
    }
    return RunRecord(path=folder, info=info, **tables)


def read_info(folder: Path) -> dict[str, Any]:
    """Read run.json of the record in `folder`, not its tables.

    Raises:
        RecordError: If there is none, or it is damaged or of another layout.
    """
    path = folder / INFO
    if not path.is_file():
        raise RecordError(
            f"no run record at {folder}: it has no {INFO}",
            remedy="Give a folder written by `clinit train-head --out`, or one that holds such.",
        )
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        found = info["format"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise _damaged(path, error) from error
    if found != FORMAT:
        raise RecordError(
            f"{path} is of the layout {found!r}, expected {FORMAT!r}",
            remedy="Read it with the version of clinit that wrote it, or run it again.",
        )
    return dict(info)


def _read_table(path: Path, columns: Mapping[str, Any]) -> pl.DataFrame:
    try:
        with path.open("rb") as file:  # polars takes the brackets in a name for a pattern
            table = pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _damaged(path, error) from error
    if dict(table.schema) != dict(columns):
        raise RecordError(
            f"{path} has the columns {', '.join(table.columns)},"
            f" expected {', '.join(columns)} in the types of {FORMAT}",
            remedy="Read it with the version of clinit that wrote it, or run it again.",
        )
    return table


def _damaged(path: Path, error: Exception) -> RecordError:
    return RecordError(
        f"cannot read {path}: {error}",
        remedy="The record is damaged: remove its folder and run `clinit train-head` again.",
    )


def final_head(folder: Path) -> Head:
    """Read the head that the record in `folder` ended with.

    Raises:
        RecordError: If the record holds none.
        HeadError: If it is damaged, or its training has diverged.
    """
    if not (folder / HEAD).is_file():
        raise RecordError(
            f"the record {folder} holds no {HEAD}",
            remedy="Run it again: `clinit train-head` stores the final head in every record.",
        )
    return read_head(folder / HEAD)


def changed_parameters(folder: Path) -> dict[str, np.ndarray]:
    """Read the backbone's parameters that the run has changed; empty where it was frozen.

    Raises:
        RecordError: If they cannot be read.
    """
    path = folder / TOP
    if not path.is_file():
        return {}
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def find_records(path: Path) -> list[Path]:
    """Return the records at or below `path`, sorted."""
    found = []
    # Not rglob: it fails where a running sweep renames the draft that it is looking into.
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        if INFO in files:
            found.append(Path(folder))
    return sorted(found)
