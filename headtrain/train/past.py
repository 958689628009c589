"""Statistics kept of the earlier classes of a stream; each of their rows is read once."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int

from clinit.headtrain.statistics.class_statistics import ClassStatistics, RunningStatistics
from clinit.headtrain.statistics.old_classes import OldClasses
from clinit.headtrain.stream.buffer import Pool, TaskRows
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.train.heads import LabelledRows


class Past:
    """The classes seen so far; rows are read only if they are asked for."""

    def __init__(
        self, scenario: Scenario, plan: TaskPlan, device: torch.device, *, seed: int
    ) -> None:
        self._scenario, self._plan, self._device, self._seed = scenario, plan, device, seed
        self._sums = RunningStatistics()
        self._found: tuple[int, OldClasses | None] = (-1, None)

    def statistics(self, tasks: int) -> ClassStatistics:
        """Return the class-balanced statistics of all rows of the base and of so many tasks."""
        past, train = self._plan.past(tasks), self._scenario.train
        data = LabelledRows.on(self._device, train.stored(past.rows), past.labels)
        groups, stop = train.groups_of(past.rows), self._scenario.ends[tasks]
        return self._sums.of(past, data.arrays(), stop, "class", groups)

    def before(self, number: int) -> OldClasses | None:
        """Return the statistics of the classes before a task; None if they have had no row."""
        if self._found[0] != number:
            statistics = self.statistics(number - 1)
            known = statistics.totals.any()
            self._found = number, OldClasses.of(statistics) if known else None
        return self._found[1]

    def rows(self, seen: TaskRows) -> LabelledRows:
        """Return the features of rows of a task, those that are drawn made here."""
        train, drawn = self._scenario.train, int((seen.rows < 0).sum())
        stored, old = seen.rows[drawn:], self.before(seen.number) if drawn else None
        if old is None:
            return LabelledRows.on(self._device, train.features(stored), seen.labels)
        parts = old.draw(generator(self._seed, Draw.PSEUDO_ROWS, seen.number))
        pool = Pool(parts, (train.stored(stored), seen.labels[drawn:]), room=train.room)
        features = pool.features(np.arange(len(seen.rows)))
        return LabelledRows.on(self._device, features, seen.labels)

    def groups(self, rows: TaskRows) -> Int[np.ndarray, " rows"] | None:
        """Return which rows repeat each other, None if none does; drawn ones do not."""
        train, drawn = self._scenario.train, int((rows.rows < 0).sum())
        groups = train.groups_of(rows.rows[drawn:])
        if groups is None or not drawn:
            return groups
        return np.concatenate([len(train.labels) + np.arange(drawn), groups])
