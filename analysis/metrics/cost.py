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
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

SETTLED_SHARE = 10
"""The last 1 / SETTLED_SHARE of the steps of a task give its settled loss."""


@dataclass(frozen=True, slots=True)
class Spike:
    """The spike of one task, or the mean over tasks."""

    height: float
    area: float

    @classmethod
    def of(cls, losses: Float[np.ndarray, " iterations"]) -> Spike | None:
        """Measure the spike in the losses of a task; None without steps or a finite loss."""
        if not len(losses) or not np.isfinite(losses).all():
            return None
        settled = losses[-max(1, len(losses) // SETTLED_SHARE) :].mean()
        above = losses - settled
        return cls(float(above.max()), float(above.clip(min=0).sum()))

    @classmethod
    def mean(cls, spikes: Sequence[Spike | None]) -> Spike | None:
        """Return the mean over tasks; None if a task has no spike, or there is no task."""
        known = [spike for spike in spikes if spike is not None]
        if not known or len(known) < len(spikes):
            return None
        return cls(
            sum(spike.height for spike in known) / len(known),
            sum(spike.area for spike in known) / len(known),
        )


def spikes(steps: pl.DataFrame, tasks: Sequence[int]) -> Mapping[int, Spike | None]:
    """Return the spike of each of `tasks` from the steps of a record."""
    parts = steps.sort("task", "iteration").partition_by("task", as_dict=True)
    # float64: a sum over 10,000 steps in float32 loses digits. A missing loss is no number.
    losses = [parts.get((task,), steps.clear())["loss"].cast(pl.Float64) for task in tasks]
    found = [Spike.of(each.fill_null(float("nan")).to_numpy()) for each in losses]
    return dict(zip(tasks, found, strict=True))


def initialisation_seconds(tasks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds of initialisation over all tasks of run.json."""
    found = [(task.get("initialisation") or {}).get("seconds") for task in tasks]
    known = [seconds for seconds in found if seconds is not None]
    return float(sum(known)) if known and len(known) == len(found) else None
