"""The record of a run: a folder with everything that training saw, and nothing computed from it.

    run.json             configuration, data, notes, wall times, versions; sealed, with a
                         SHA-256 of each other file
    classes.parquet      row, name, task (0 = base), train_rows, val_rows
    steps.parquet        task, iteration, loss, loss_new, loss_old: before the update
    evaluations.parquet  task, iteration, row, correct, total, correct_in_task: after that many
                         updates
    points.parquet       task, iteration, loss_new, elapsed_s
    mistakes.parquet     task, iteration, row, image, predicted: at the end of the task, or at
                         every evaluation (absent in older records)
    head.safetensors     the head after the last task (absent in older records)
    top.safetensors      the backbone's changed parameters, if any were trained

The folder is written under a temporary name and renamed: a record is complete or absent.
Files are compared with their digests as they are read: the same bytes are hashed and parsed.

Every evaluation has a row for each tested class seen so far, in the order of head rows. Mistakes
are from the last evaluation of a task or, with `mistakes = "all"`, of every evaluation.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from safetensors import SafetensorError
from safetensors.numpy import load, save

from clinit.errors import ClinitError, RecordError, unreadable
from clinit.extract.cache.head import Head, read_head, write_head
from clinit.files import paths as occupied
from clinit.files.arrays import DAMAGE, row_count
from clinit.files.commit import commit_folder
from clinit.files.paths import check_readable, exists, instead_of, is_file, is_folder, obstacle
from clinit.headtrain.protocol.record.info import DOCUMENT, RunInfo, SideInfo, damaged
from clinit.headtrain.protocol.study.rules import settings_of
from clinit.headtrain.protocol.study.study import Study

_WHEN: Mapping[str, Any] = {"task": pl.Int16, "iteration": pl.Int32}
TABLES: Mapping[str, Mapping[str, Any]] = {
    "classes": {
        **{"row": pl.Int32, "name": pl.String, "task": pl.Int16},
        **{"train_rows": pl.Int64, "val_rows": pl.Int64},
    },
    "steps": {**_WHEN, **dict.fromkeys(("loss", "loss_new", "loss_old"), pl.Float32)},
    "evaluations": {
        **_WHEN,
        **dict.fromkeys(("row", "correct", "total", "correct_in_task"), pl.Int32),
    },
    "points": {**_WHEN, "loss_new": pl.Float32, "elapsed_s": pl.Float64},
    "mistakes": {**_WHEN, **dict.fromkeys(("row", "image", "predicted"), pl.Int32)},
}
"""The tables of a record and the types of their columns."""
LATER_COLUMNS: Mapping[str, str] = {"evaluations": "correct_in_task"}
"""Columns that records of earlier versions lack; they are read as nulls."""


def table_file(name: str) -> str:
    """Return the name of the file of a table."""
    return f"{name}.parquet"


def read_table(name: str, folder: Path, digests: Mapping[str, str] | None) -> pl.DataFrame:
    """Return a table of a record.

    Raises:
        RecordError: If the file in `folder` is not this table, or differs from its digest.
    """
    path, content = folder / table_file(name), content_of(folder, table_file(name), digests)
    try:
        row_count(pl.scan_parquet(io.BytesIO(content)), len(content))
        table = pl.read_parquet(io.BytesIO(content))
    except (*DAMAGE, MemoryError) as error:
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


def content_of(folder: Path, name: str, digests: Mapping[str, str] | None) -> bytes:
    """Return the content of one file of a record, compared with its digest."""
    path = folder / name
    if not exists(path):
        raise damaged(folder, f"it lacks {name}")
    check_readable(path, RecordError)  # reading a pipe would block
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    if digests is not None and digests.get(name) != sha256(content):
        raise damaged(path, "it has changed since it was written")
    return content


def sha256(content: bytes) -> str:
    """Return the digest of the content of a file, as run.json contains it."""
    return hashlib.sha256(content).hexdigest()


INFO = "run.json"
HEAD = "head.safetensors"
TOP = "top.safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """One head's run over the stream."""

    path: Path | None
    """Folder of the record; None if it has not been written."""
    info: RunInfo
    """The content of run.json, without format and digests."""
    classes: pl.DataFrame
    steps: pl.DataFrame
    evaluations: pl.DataFrame
    points: pl.DataFrame
    mistakes: pl.DataFrame | None = None
    """Test images that are labelled wrong, at least at the end of each task; None in older
    records."""
    head: Head | None = None
    """The head after the last task, in a record to be written; `final_head` reads a stored head."""
    top: Mapping[str, np.ndarray] | None = None
    """The backbone's parameters that training has changed, by their names in its state dict, in a
    record to be written; None if it was frozen. `changed_parameters` reads stored parameters."""
    study: Study | None = None
    """The settings of the run, in a record to be written: a file for people and for `--config`.
    Programs read the settings in run.json."""
    digests: Mapping[str, str] | None = None
    """SHA-256 of the files by name; None in records of earlier versions or not yet written."""

    @property
    def sides(self) -> dict[str, SideInfo]:
        """Facts about base and new data; only about new data if there are no base classes."""
        base, new = self.info["base"], self.info["new"]
        return {"new": new} if base is None else {"base": base, "new": new}

    def __repr__(self) -> str:
        size = f"{len(self.info['tasks'])} tasks, {len(self.classes):,} classes"
        return f"<RunRecord {self.info['id']}: {size}, {self.path or 'not written'}>"


def check_free(folders: Iterable[Path], *, overwrite: bool | None = None) -> None:
    """Check, before anything is trained, that records can be written to `folders`.

    Args:
        folders: One for each record.
        overwrite: Whether existing records may be replaced; None if the caller has no such option.

    Raises:
        RecordError: If a folder exists and may not be replaced, or cannot be created.
    """
    for folder in folders:
        occupied.check_free(folder, "run record", _foreign, RecordError, overwrite=overwrite)
        if why := obstacle(folder):
            raise RecordError(
                f"cannot write the record {folder}: {why}", remedy="Choose another --out."
            )


def _foreign(folder: Path) -> str | None:
    """Return why an existing folder is no run record, or its other files; None for a record."""
    if not is_file(folder / INFO):
        return "it is no run record"
    try:
        known = {INFO, HEAD, TOP, *map(table_file, TABLES), *(_read_info(folder)[1] or ())}
    except RecordError as error:
        return str(error)
    others = sorted(path.name for path in folder.iterdir() if path.name not in known)
    return f"it holds {', '.join(others)} next to the record" if others else None


def write_record(record: RunRecord, folder: Path, *, overwrite: bool | None = None) -> None:
    """Write `record` to `folder`.

    Args:
        record: The record.
        folder: The folder; it must not exist, unless `overwrite`.
        overwrite: Replace an existing record, once this record is complete.

    Raises:
        RecordError: If `folder` exists or cannot be written; an existing record is kept then.
    """
    check_free([folder], overwrite=overwrite)
    try:
        commit_folder(folder, lambda draft: _write_files(record, draft), overwrite=bool(overwrite))
    except (OSError, ClinitError, SafetensorError) as error:  # ClinitError: has a cause
        cause = error if isinstance(error, OSError) else error.__cause__
        raise RecordError(
            f"cannot write the record {folder}: {getattr(cause, 'strerror', None) or error}",
            remedy="Free space or choose a folder you can write with --out, then run the same"
            " command again.",
        ) from error


def _write_files(record: RunRecord, folder: Path) -> None:
    for name in TABLES:
        table: pl.DataFrame = getattr(record, name)
        content = io.BytesIO()  # polars would raise its own error if the disk is full
        table.write_parquet(content)
        (folder / table_file(name)).write_bytes(content.getvalue())
    if record.head is not None:
        write_head(record.head, folder / HEAD)
    if record.top is not None:
        top = {name: np.ascontiguousarray(value) for name, value in record.top.items()}
        (folder / TOP).write_bytes(save(top))
    if record.study is not None:
        (folder / STUDY).write_text(study_toml(record.study), encoding="utf-8")
    digests = {file.name: sha256(file.read_bytes()) for file in sorted(folder.iterdir())}
    DOCUMENT.write(folder / INFO, {**finite(record.info), "files": digests})


def finite(value: Any, text: Callable[[str], str] = str) -> Any:
    """Replace numbers that JSON lacks, such as the loss of a diverged head, by None.

    `text` writes the strings.
    """
    if isinstance(value, dict):
        return {key: finite(each, text) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each, text) for each in value]
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def read_record(folder: Path) -> RunRecord:
    """Read the record in `folder`, and compare its tables with their digests.

    Raises:
        RecordError: If the record is missing, incomplete, damaged or of another layout.
    """
    info, digests = _read_info(folder)
    tables: dict[str, Any] = {
        name: read_table(name, folder, digests)
        for name in TABLES
        # Records of earlier versions lack mistakes.
        if name != "mistakes" or table_file(name) in (digests or ())
    }
    return RunRecord(path=folder, info=info, digests=digests, **tables)


def read_info(folder: Path) -> RunInfo:
    """Read run.json of the record in `folder`, not its tables.

    Raises:
        RecordError: If run.json is missing, damaged or of another layout.
    """
    return _read_info(folder)[0]


def _read_info(folder: Path) -> tuple[RunInfo, Mapping[str, str] | None]:
    path = folder / INFO
    if not is_file(path):
        raise RecordError(
            f"no run record at {folder}: it has no {INFO}",
            remedy="Give a folder written by `clinit train-head --out`, or its parent.",
        )
    info = DOCUMENT.load(path)
    DOCUMENT.convert(info, RunInfo, origin=str(path))
    if not {"init", "method"} & info["config"].keys():
        raise damaged(path, "config has neither `init` nor `method`")
    digests = info.pop("files", None)
    return cast(RunInfo, info), digests


def final_head(record: RunRecord) -> Head:
    """Read the final head of a stored record.

    Raises:
        RecordError: If the record contains no head, or if the head has changed.
        HeadError: If the head is damaged or not linear, or if its training has diverged.
    """
    assert record.path is not None
    if HEAD not in (record.digests or ()) and not is_file(record.path / HEAD):
        raise RecordError(
            f"the record {record.path} holds no {HEAD}",
            remedy="Run it again: `clinit train-head` stores the final head in every record.",
        )
    content_of(record.path, HEAD, record.digests)  # checks the file
    return read_head(record.path / HEAD)


def changed_parameters(record: RunRecord) -> dict[str, np.ndarray]:
    """Read the backbone's parameters that a stored run has changed; empty if it was frozen.

    Raises:
        RecordError: If the parameters cannot be read, or have changed since they were written.
    """
    assert record.path is not None
    path = record.path / TOP
    if TOP not in (record.digests or ()) and not is_file(path):
        return {}
    try:
        return dict(load(content_of(record.path, TOP, record.digests)))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, f"it does not contain parameters ({error})") from error


def read_records(paths: Sequence[Path]) -> list[RunRecord]:
    """Read all records at or below `paths`, each once.

    Raises:
        RecordError: If a path contains no record, or a record cannot be read.
    """
    found: dict[Path, None] = {}
    for path in paths:
        folders = find_records(path) if exists(path) else []
        if not folders:
            first = "Train heads first: `clinit train-head --base CACHE --new CACHE --out runs`."
            looked = f"no folder contains {INFO}"
            if not exists(path):
                looked, first = "no such path", instead_of(path, first, is_folder)
            raise RecordError(f"no run record at or below {path}: {looked}", remedy=first)
        found |= dict.fromkeys(folder.resolve() for folder in folders)
    return [read_record(folder) for folder in found]


def find_records(path: Path) -> list[Path]:
    """Return the records at or below `path`, sorted.

    Raises:
        RecordError: If a folder has the tables of a record, but no run.json.
    """
    found = []
    # Not rglob, which fails if a running sweep renames a draft that it is searching.
    for folder, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        if INFO in files:
            found.append(Path(folder))
        elif files.count("evaluations.parquet") and files.count("classes.parquet"):
            raise damaged(folder, f"its {INFO} is gone")
    return sorted(found)


STUDY = "study.toml"


def study_toml(study: Study) -> str:
    """Return a resolved study as a file for `--config`, without settings that its method ignores.

    >>> print(study_toml(Study.of({"method": "ridge", "seed": 3}).resolved()))
    # The settings of this run, for `clinit train-head --config`.
    <BLANKLINE>
    [train-head]
    method = "ridge"
    tasks = 5
    seed = 3
    lambda = "auto"
    weighting = "class"
    loss = "ce"
    device = "auto"
    <BLANKLINE>
    """
    top = study.top is not None
    command = "train-top" if top else "train-head"
    idle, order = study.idle("method").keys() | study.unsaid, study.stream.class_order
    lines = [
        f"# The settings of this run, for `clinit {command} --config`.",
        # This option takes a separate file.
        *([f"# class order: {', '.join(map(json.dumps, order))}"] if order else []),
        f"\n[{command}]",
    ]
    for name, setting in settings_of(top=top).items():
        value = study.value(name)
        if name not in idle and value is not None and not setting.file:
            lines.append(f"{setting.key} = {json.dumps(value)}")  # which is TOML, too
    return "\n".join([*lines, ""])
