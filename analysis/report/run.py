"""What the record of one run says: accuracies, losses and gain, a row of the report."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl

from clinit.analysis.metrics.accuracy import (
    ACCURACIES,
    IN_TASK,
    accuracy_before,
    accuracy_matrix,
    accuracy_points,
    at_end,
    at_start,
    average_incremental_accuracy,
    backward_transfer,
    forgetting,
    last_accuracy,
    mean,
    mean_at_start,
    mean_transfer,
    points_in_task,
    transfer_into,
)
from clinit.analysis.metrics.classes import confusions
from clinit.analysis.metrics.cost import Spike, initialisation_seconds, initialisation_share, spikes
from clinit.analysis.metrics.efficiency import (
    LEVELS,
    READINGS,
    Gain,
    TaskTimes,
    bounded_name,
    comparison_key,
    data_of,
    mean_times,
    value_name,
)
from clinit.headtrain.record.format import RunRecord, finite
from clinit.headtrain.record.info import TaskInfo, held_out_share, settings_of
from clinit.headtrain.study.parts import AUTO_EVERY, evaluation_points
from clinit.words import printable

Times = Mapping[int, TaskTimes]
Spikes = Mapping[int, Spike | None]
"""The loss spike of each task that was learnt."""
MOST_CONFUSED = 10
"""Pairs of classes that a row holds."""


def over_tasks(record: RunRecord, points: pl.DataFrame) -> dict[str, Any]:
    """Return what is read off the accuracies at the starts and ends of the tasks."""
    matrix = accuracy_matrix(record.evaluations, record.classes)
    tasks = points["task"].unique().sort().to_list()
    cells = {(after, on): value for after, on, value in matrix.iter_rows()}
    return {
        "acc_new_start": mean_at_start(points, "acc_new"),
        "loss_new_start": finite(mean_at_start(points, "loss_new")),
        "acc_pre_before": accuracy_before(record, points),
        "last_accuracy": last_accuracy(points),
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
        "average_incremental_accuracy": average_incremental_accuracy(points),
        # Row: after task 1, 2, ...; column: on the base classes, on task 1, 2, ...
        "accuracy_matrix": [[cells.get((after, on)) for on in [0, *tasks]] for after in tasks],
        "confusions": _confusions(record),
    }


def _confusions(record: RunRecord) -> list[dict[str, Any]] | None:
    """Return the pairs that are confused most often at the end; None in older records."""
    if record.mistakes is None:
        return None
    return confusions(record.mistakes, record.classes, top=MOST_CONFUSED).to_dicts()


def costs(record: RunRecord, found: Spikes, times: Times | None) -> dict[str, Any]:
    """Return what learning the tasks cost: loss spike, iterations and seconds."""
    told = record.info.get("tasks", [])
    last: Mapping[str, Any] = (told[-1].get("diagnosis") if told else None) or {}
    return {
        **_spike(Spike.mean([*found.values()])),
        **_times(times),
        "initialisation_seconds": initialisation_seconds(told),
        "initialisation_share": initialisation_share(told, record.info.get("seconds")),
        "forward_transfer": mean_transfer(told),
        "d_ls": last.get("d_ls"),
        "d_ls_relative": last.get("d_ls_relative"),
    }


def costs_by_task(
    record: RunRecord, found: Spikes, times: Times | None
) -> dict[int, dict[str, Any]]:
    """Return the same of each task, as far as it is a matter of one task."""
    told = record.info.get("tasks", [])
    return {
        task: {
            "forward_transfer": mean_transfer(each for each in told if each["task"] == task),
            "forward_transfer_into": transfer_into(told, task),
            **_spike(spike),
            **_task_times((times or {}).get(task)),
        }
        for task, spike in found.items()
    }


def _spike(spike: Spike | None) -> dict[str, Any]:
    return {
        "spike_area": None if spike is None else spike.area,
        "spike_height": None if spike is None else spike.height,
    }


def _times(times: Times | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for level, found in mean_times(times or {}).items():
        row[f"iterations_to_{level}"] = found.iterations
        row[f"seconds_to_{level}"] = found.seconds
        row[f"share_reaching_{level}"] = found.share
    return row


def _task_times(times: TaskTimes | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for level in LEVELS:
        reached = None if times is None else times[level]
        row[f"iterations_to_{level}"] = None if reached is None else reached.iterations
        row[f"seconds_to_{level}"] = None if reached is None else reached.seconds
    return row


Row = dict[str, Any]
VALUES = ("loss_new", *ACCURACIES, *IN_TASK)
"""What is averaged over evaluations."""


@dataclass(frozen=True, eq=False)
class RunSummary:
    """A run, its evaluation points and its comparison with the random run."""

    record: RunRecord
    points: pl.DataFrame
    """task, iteration, loss_new, elapsed_s, acc_pre, acc_new, acc_old, acc_all, acc_pre_alone,
    acc_in_task: one row per evaluation."""
    gain: Gain | None = None
    """None where no random run was given; the random run is compared with itself."""
    times: Times | None = None
    """When levels of the random run's accuracy are reached, by task; None without one."""
    skip_start: bool = False
    """Whether the points before the first step are left out of the averages."""
    number: int | None = None
    """Tells it apart in its report, where nothing else does."""

    def __repr__(self) -> str:
        return f"<RunSummary of {self.record}>"

    @classmethod
    def of(cls, record: RunRecord, *, skip_start: bool = False) -> RunSummary:
        """Compute the evaluation points of `record`."""
        points = record.points.select("task", "iteration", "loss_new", "elapsed_s")
        for accuracies in (accuracy_points, points_in_task):
            found = accuracies(record.evaluations, record.classes)
            points = points.join(found, on=["task", "iteration"], how="full", coalesce=True)
        return cls(record, points.sort("task", "iteration"), skip_start=skip_start)

    @property
    def init(self) -> str:
        """The initialisation of new rows; the method, where a head is solved as a whole."""
        return str(self.config.get("init") or self.config["method"])

    @property
    def is_solved(self) -> bool:
        """Whether the head is solved as a whole: no rows are initialised, so there is no gain."""
        return "init" not in self.config

    @property
    def scale(self) -> str:
        """The scale of new rows."""
        return str(self.config.get("scale", "none"))

    @property
    def config(self) -> dict[str, Any]:
        """The flat configuration of the run."""
        return settings_of(self.record.info)

    @property
    def path(self) -> Path:
        """Where the record lies; empty for a record that was never written."""
        return self.record.path or Path()

    @property
    def key(self) -> str:
        """What this run must share with another one to be compared with it."""
        return comparison_key(self.record.info)

    @property
    def data(self) -> str:
        """What this run must share with another one to be in one table with it."""
        return json.dumps(data_of(self.record.info), sort_keys=True, default=str)

    @property
    def is_held_out(self) -> bool:
        """Whether accuracies are measured on held-out training images: a trial of a search."""
        return held_out_share(self.record.info) is not None

    @property
    def measured_on(self) -> str:
        """The images that accuracies are measured on, in words."""
        share = held_out_share(self.record.info)
        return "test images" if share is None else f"held-out training images ({100 * share:.3g} %)"

    def data_name(self, side: Literal["base", "new"]) -> str | None:
        """Return the name of the folder of a feature cache."""
        path = self.record.info.get(side, {}).get("path")
        return Path(path).name if path else None

    @property
    def averaged(self) -> pl.DataFrame:
        """The evaluation points that reported values average over.

        The early ones of the default schedule are left out, or the first updates would weigh as
        much as all others.
        """
        points = self.points
        if self.config.get("eval_every") == "auto":
            regular = evaluation_points(self.config["iterations"], AUTO_EVERY)
            points = points.filter(pl.col("iteration").is_in(regular))
        return points.filter(pl.col("iteration") > 0) if self.skip_start else points

    @property
    def not_finite(self) -> int:
        """Number of evaluation points at which the loss is not a finite number."""
        return int((~self.points["loss_new"].is_finite()).sum())

    def row(self) -> Row:
        """Return the run as a row of the report; plain values that JSON can hold."""
        return dict(self._row)

    @cached_property
    def _row(self) -> Row:
        """The same, computed once for all tables of a report."""
        return {
            "id": self.record.info.get("id", self.path.name),
            "path": str(self.path),
            "init": self.init,
            "scale": self.scale,
            "loss": self.config.get("loss"),
            "seed": self.config.get("seed"),
            "head_width": self.config.get("head_width"),
            "base": self.data_name("base"),
            "new": self.data_name("new"),
            "measured_on": self.measured_on,
            **{name: finite(mean(self.averaged[name])) for name in VALUES},
            **{
                value_name(reading): self.gain.mean(reading) if self.gain else None
                for reading in READINGS
            },
            **{
                bounded_name(reading): self.gain.bounded(reading) if self.gain else None
                for reading in READINGS
            },
            "gain_tasks_reached": self.gain.reached if self.gain else None,
            "gain_tasks": len(self.gain.tasks) if self.gain else None,
            "seconds": self.record.info.get("seconds"),
            "start_included": not self.skip_start,
            "evaluation_points": len(self.averaged),
            "loss_sample_rows": self.record.info.get("loss_sample_rows"),
            **over_tasks(self.record, self.points),
            **costs(self.record, self._spikes, self.times),
            "final": self._final(),
            "tasks": self.task_rows(),
            "config": self.config,
            "notes": list(self.record.info.get("notes", [])),
        }

    def task_rows(self) -> list[Row]:
        """Return one row per task."""
        described: dict[int, TaskInfo] = {
            task["task"]: task for task in self.record.info.get("tasks", [])
        }
        gains = {task.task: task for task in self.gain.tasks} if self.gain else {}
        own = costs_by_task(self.record, self._spikes, self.times)
        rows = []
        for task in self._tasks:
            here = pl.col("task") == task
            points, averaged = self.points.filter(here), self.averaged.filter(here)
            row: Row = {"task": task}
            row |= {name: finite(mean(averaged[name])) for name in VALUES}
            row |= _values(at_start(points), "start")
            row |= _values(at_end(points), "end")
            found = gains.get(task)
            for reading in READINGS:
                row[value_name(reading)] = found.value(reading) if found else None
                row[bounded_name(reading)] = found.is_bounded(reading) if found else None
            row["reached_at"] = found.reached if found else None
            row["random_reached_at"] = found.random_reached if found else None
            row["random_best_at"] = found.random_best if found else None
            row["target"] = found.target if found else None
            about: Mapping[str, Any] = described.get(task, {})
            row |= {
                name: about.get(name)
                for name in ("classes", "train_rows", "val_rows", "buffer_rows", "buffer_classes")
            }
            row |= own[task]
            row["initialisation"] = about.get("initialisation")
            row["lambda_curve"] = about.get("lambda_curve")
            row["diagnosis"] = about.get("diagnosis")
            rows.append(row)
        return rows

    @cached_property
    def _tasks(self) -> list[int]:
        """The tasks that were learnt."""
        return self.points["task"].unique().sort().to_list()

    @cached_property
    def _spikes(self) -> Spikes:
        return spikes(self.record.steps, self._tasks)

    def _final(self) -> Row:
        end = at_end(self.points).tail(1)
        return {name: _only(end[name]) for name in (*ACCURACIES, *IN_TASK)}


def _values(point: pl.DataFrame, moment: str) -> Row:
    return {f"{name}_{moment}": _only(point[name]) for name in VALUES}


def _only(values: Iterable[float | None]) -> float | None:
    return finite(next(iter(values), None))


def frame_of(rows: Sequence[Row]) -> pl.DataFrame:
    """Return rows of plain values as a table, with all columns that one of them has.

    Polars takes no text with bytes that are not UTF-8, as names of folders may have: they are
    written out.
    """
    told = [
        {name: printable(each) if isinstance(each, str) else each for name, each in row.items()}
        for row in rows
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    # Not strict: what a record says beyond the fields that are checked may be of any type.
    return pl.DataFrame(told, schema=names, infer_schema_length=None, strict=False)
