"""Runs as event files of TensorBoard: a sub-folder for each run.

    step/loss, loss_new, loss_old    of the batch, before each update
    evaluation/loss_new, task        at each evaluation
    accuracy/acc_...                 at each evaluation, in percent

The step is the number of updates since the start of the run, so that the last evaluation of a task
and the first of the next one stand at the same step. What a run does not have is not written; a
loss that is not a number is. Settings are in the tab HPARAMS. Times are those of the run: its
start, and the seconds that its evaluations were taken at.

A file has the same name whenever it is written: writing again replaces it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clinit.analysis.accuracy import ACCURACIES
from clinit.analysis.accuracy_in_task import IN_TASK
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import labels
from clinit.errors import RecordError
from clinit.extract.commit import commit_file
from clinit.extract.lock import claim_file
from clinit.extract.visible import visible

LONGEST_NAME = 100
"""Letters of the name of a sub-folder; file systems take 255 bytes."""
_LOSSES = ("loss", "loss_new", "loss_old")
_Scalars = Mapping[str, int | float]


def check_tensorboard() -> None:
    """Check that event files can be written.

    Raises:
        RecordError: If TensorBoard is not installed.
    """
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise RecordError(
            "--tensorboard needs TensorBoard, which is not installed",
            remedy='Install it: pip install "clinit[tensorboard]".',
        ) from error


def write_events(runs: Sequence[RunSummary], folder: Path) -> list[Path]:
    """Write an event file for each run below `folder`; return the sub-folders.

    Raises:
        RecordError: If TensorBoard is not installed.
        ClinitError: If a file cannot be written.
    """
    check_tensorboard()
    folders = [folder / name for name in _folder_names(labels(runs))]
    for run, place in zip(runs, folders, strict=True):
        content = _content(run, place.name)
        path = place / f"events.out.tfevents.{int(_started(run)):010d}.clinit"
        with claim_file(path, on_busy=lambda: None):
            commit_file(path, partial(_write, content))
    return folders


def _write(content: bytes, draft: Path) -> None:
    draft.write_bytes(content)


def _folder_names(names: Sequence[str]) -> list[str]:
    """Return a name for each folder: letters that every system takes, no two alike."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9.=+-]+", "_", name).strip("_.")[:LONGEST_NAME] or "run"
        free = plain
        number = 1
        while free.lower() in (other.lower() for other in found):
            number += 1
            free = f"{plain}-{number}"
        found.append(free)
    return found


def _content(run: RunSummary, name: str) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    content = io.BytesIO()
    writer = RecordWriter(content)
    begins = _started(run)

    def write(**event: Any) -> None:
        writer.write(Event(**event).SerializeToString())

    write(wall_time=begins, file_version="brain.Event:2")
    settings = {
        visible(key): _plain(value) for key, value in run.config.items() if value is not None
    }
    write(wall_time=begins, summary=hparams_pb(settings, trial_id=name, start_time_secs=begins))
    for step, seconds, scalars in _moments(run):
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        write(wall_time=begins + seconds, step=step, summary=Summary(value=values))
    return content.getvalue()


def _moments(run: RunSummary) -> Iterator[tuple[int, float, _Scalars]]:
    """Yield step, seconds since the start and scalars, in the order in which they came."""
    offset, before = 0, 0.0
    for (task,), points in run.points.group_by("task", maintain_order=True):
        steps = run.record.steps.filter(pl.col("task") == task).sort("iteration")
        at, elapsed = points["iteration"].to_numpy(), points["elapsed_s"].to_numpy()
        # Between evaluations, updates are taken to last equally long.
        seconds = np.interp(steps["iteration"], at, elapsed, left=before)
        moments = [
            (int(row["iteration"]), 0, float(elapsed[index]), _evaluation(row))
            for index, row in enumerate(points.iter_rows(named=True))
        ]
        moments += [
            (int(row["iteration"]), 1, float(seconds[index]), _named("step", row, _LOSSES))
            for index, row in enumerate(steps.iter_rows(named=True))
        ]
        for iteration, _, when, scalars in sorted(moments, key=lambda moment: moment[:2]):
            yield offset + iteration, when, scalars
        offset, before = offset + int(at.max()), float(elapsed[-1])


def _evaluation(row: Mapping[str, Any]) -> _Scalars:
    measured = _named("evaluation", row, ("loss_new", "task"))
    return {**measured, **_named("accuracy", row, (*ACCURACIES, *IN_TASK))}


def _named(group: str, row: Mapping[str, Any], names: Sequence[str]) -> _Scalars:
    return {f"{group}/{name}": row[name] for name in names if row[name] is not None}


def _started(run: RunSummary) -> float:
    """Return the time of the start in seconds since 1970; 0 where the record does not say."""
    with suppress(ValueError, OverflowError, OSError):
        return max(0.0, datetime.fromisoformat(run.record.info.get("started", "")).timestamp())
    return 0.0


def _plain(value: object) -> str | int | float | bool:
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    return visible(str(value))
