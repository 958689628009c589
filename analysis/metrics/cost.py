"""The cost of learning the tasks: the spike of the training loss, and seconds of initialisation.

New rows often start with a high loss, which training reduces. Let l(i) be the loss of the batch
before update i = 0 ... n - 1 of a task, and `settled` the mean of the last max(1, n // 10) losses:

    area    sum over i of max(0, l(i) - settled)    in loss x iterations
    height  max over i of l(i) - settled

`l` is the loss of the whole batch (`loss` of the steps), without weight decay and the terms of a
method, as in the paper's Figure 1. Old and new images both contribute to the spike, because old
images are classified as new classes. If the loss of a run does not settle within the task, the area
is too small, so read it next to `loss_new`.

A task without an update, or with a loss that is not finite, has neither value. The value of a run
is the mean over its tasks; if a task has no value, the run has no value, so that means of different
runs are over the same tasks. The definition is ours.

The seconds of initialisation are the sum over tasks of `initialisation.seconds`: features,
statistics, the choice of lambda, the solve and the calibration, without reading caches. Work that
heads trained side by side share is counted in full for each head that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

SETTLED_SHARE = 10
"""The last 1 / SETTLED_SHARE of the steps of a task give its settled loss."""


def spikes(steps: pl.DataFrame) -> pl.DataFrame:
    """Return `spike_area` and `spike_height` of each task from the steps of a record."""
    # float64: a sum over 10,000 steps in float32 loses digits. A missing loss is no number.
    loss = pl.col("loss").cast(pl.Float64).fill_null(float("nan"))
    last = pl.max_horizontal(1, pl.len() // SETTLED_SHARE)
    above = loss - loss.tail(last).mean()
    known = loss.is_finite().all()
    return (
        steps.sort("task", "iteration")
        .group_by("task")
        .agg(
            spike_area=pl.when(known).then(above.clip(lower_bound=0).sum()),
            spike_height=pl.when(known).then(above.max()),
        )
    )


def initialisation_seconds(tasks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of initialisation over all tasks of run.json."""
    found = [(task.get("initialisation") or {}).get("seconds") for task in tasks]
    known = [seconds for seconds in found if seconds is not None]
    return float(sum(known)) if known and len(known) == len(found) else None
