"""The metrics of a run that are no averages over evaluations, by their names in the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from clinit.analysis.accuracy import (
    accuracy_matrix,
    average_incremental_accuracy,
    forgetting,
    last_accuracy,
    mean_at_start,
)
from clinit.analysis.accuracy_before import accuracy_before
from clinit.analysis.backward_transfer import backward_transfer
from clinit.analysis.confusions import confusions
from clinit.analysis.forward_transfer import mean_transfer, transfer_into
from clinit.analysis.initialisation_cost import initialisation_seconds, initialisation_share
from clinit.analysis.loss_spike import Spike
from clinit.analysis.time_to_accuracy import LEVELS, TaskTimes, mean_times
from clinit.headtrain.record.format import RunRecord, finite

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
    for level, mean in mean_times(times or {}).items():
        row[f"iterations_to_{level}"] = mean.iterations
        row[f"seconds_to_{level}"] = mean.seconds
        row[f"share_reaching_{level}"] = mean.share
    return row


def _task_times(times: TaskTimes | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for level in LEVELS:
        reached = None if times is None else times[level]
        row[f"iterations_to_{level}"] = None if reached is None else reached.iterations
        row[f"seconds_to_{level}"] = None if reached is None else reached.seconds
    return row
