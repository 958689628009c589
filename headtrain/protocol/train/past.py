"""Statistics of the earlier classes of a stream, for which each row is read once.

A buffer that keeps all rows contains, at task k, the rows of all k tasks. Summing all of them at
each task would cost k times as much as adding only the new rows to the previous sums.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from jaxtyping import Int

from clinit.headtrain.heads.array import FeatureRows, select, take
from clinit.headtrain.heads.groups import one_of_each
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, Weighting, count
from clinit.headtrain.protocol.stream.buffer import Pool, TaskRows
from clinit.headtrain.protocol.stream.scenario import Scenario
from clinit.headtrain.protocol.stream.task_plan import TaskPlan
from clinit.headtrain.protocol.train.heads import LabelledRows
from clinit.headtrain.protocol.train.old_classes import OldClasses


class RunningStatistics:
    """Class statistics that are updated from one call to the next, if the old rows are the same.

    In every call, the same row number must stand for the same features.
    """

    def __init__(self, base: ClassStatistics | None = None) -> None:
        """Begin with the statistics `base` in place of all base rows; None: without sums."""
        self._last: dict[Weighting, tuple[np.ndarray, ClassStatistics]] = {}
        if base is not None:
            self._last[base.weighting] = np.empty(0, dtype=np.int64), base

    def of(
        self,
        rows: TaskRows,
        features: FeatureRows,
        num_classes: int,
        weighting: Weighting,
        groups: Int[np.ndarray, " rows"] | None = None,
    ) -> ClassStatistics:
        """Return the class statistics of the rows of a task.

        If the old rows are exactly the rows of the previous call, only new rows are summed.

        Args:
            rows: The rows.
            features: Their features, of shape (rows, dim).
            num_classes: Number of classes seen so far, including classes without rows.
            weighting: Kind of average.
            groups: Group of each row; rows of a group repeat each other. In every call, the same
                row number must be in the same group.
        """
        summed = partial(ClassStatistics.of, weighting=weighting)
        seen, last = self._last.get(weighting, (rows.rows, None))
        if last is not None and last.num_classes == num_classes and np.array_equal(seen, rows.rows):
            return last
        old = rows.rows[: rows.num_old]  # each row once, in any order
        if last is not None and np.array_equal(np.sort(seen), np.sort(old)):
            new = np.arange(rows.num_old, len(rows.rows))
            of_new = None if groups is None else groups[new]
            part, labels = select(features, new), rows.labels[new]
            totals = count(one_of_each(labels, of_new), num_classes)
            totals[: last.num_classes] += last.totals
            last = last.beside(take(features, slice(0)))
            added = summed(part, labels, totals=totals, shift=last.shift, groups=of_new)
            found = last.within(totals) + added
        else:
            found = summed(features, rows.labels, num_classes=num_classes, groups=groups)
        self._last[weighting] = rows.rows, found
        return found


class Past:
    """Statistics and rows of the classes seen so far, read at their first use."""

    def __init__(
        self, scenario: Scenario, plan: TaskPlan, device: torch.device, *, seed: int
    ) -> None:
        self._scenario, self._plan, self._device, self._seed = scenario, plan, device, seed
        self._sums = RunningStatistics(scenario.base)
        self._found: tuple[int, OldClasses | None] = (-1, None)

    def statistics(self, tasks: int) -> ClassStatistics:
        """Return the class-balanced statistics of all rows of base and first `tasks` tasks."""
        past, train = self._plan.past(tasks), self._scenario.train
        data = LabelledRows.on(self._device, train.stored(past.rows), past.labels)
        groups, stop = train.groups_of(past.rows), self._scenario.ends[tasks]
        return self._sums.of(past, data.arrays(), stop, "class", groups)

    def before(self, number: int) -> OldClasses | None:
        """Return the statistics of the classes before a task; None if they have no rows."""
        if self._found[0] != number:
            statistics = self.statistics(number - 1)
            known = statistics.totals.any()
            self._found = number, OldClasses.of(statistics) if known else None
        return self._found[1]

    def rows(self, seen: TaskRows) -> LabelledRows:
        """Return the features of the rows of a task, drawn here if the row number is negative."""
        train, drawn = self._scenario.train, int((seen.rows < 0).sum())
        stored, old = seen.rows[drawn:], self.before(seen.number) if drawn else None
        if old is None:
            return LabelledRows.on(self._device, train.features(stored), seen.labels)
        parts = old.draw(generator(self._seed, Draw.PSEUDO_ROWS, seen.number))
        pool = Pool(parts, (train.stored(stored), seen.labels[drawn:]), room=train.room)
        features = pool.features(np.arange(len(seen.rows)))
        return LabelledRows.on(self._device, features, seen.labels)

    def groups(self, rows: TaskRows) -> Int[np.ndarray, " rows"] | None:
        """Return the group of each row; None if no row repeats another. Drawn rows never do."""
        train, drawn = self._scenario.train, int((rows.rows < 0).sum())
        groups = train.groups_of(rows.rows[drawn:])
        if groups is None or not drawn:
            return groups
        return np.concatenate([len(train.labels) + np.arange(drawn), groups])
