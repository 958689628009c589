"""Statistics kept of the earlier classes of a stream; each of their rows is read once.

One task after another, rows that stay are not summed again: a buffer that keeps all rows has, at
task k, the rows of the earlier tasks and of the task itself; to sum them anew at each task would
cost k times as much as the new ones do.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from jaxtyping import Int

from clinit.headtrain.array import FeatureRows, select, take
from clinit.headtrain.groups import one_of_each
from clinit.headtrain.statistics.class_statistics import ClassStatistics, Weighting, count
from clinit.headtrain.stream.buffer import Pool, TaskRows
from clinit.headtrain.stream.scenario import Scenario
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.task_plan import TaskPlan
from clinit.headtrain.train.heads import LabelledRows
from clinit.headtrain.train.old_classes import OldClasses


class RunningStatistics:
    """The statistics that were asked for last, by which the next ones are found sooner.

    Features of a row of the pool must be the same each time.
    """

    def __init__(self, base: ClassStatistics | None = None) -> None:
        """Begin with what stands for all rows of the base, if it is no rows; else with nothing."""
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

        Rows are summed only if they are not among the last ones, and all of these are present.

        Args:
            rows: The rows.
            features: Theirs, of shape (rows, dim).
            num_classes: Classes seen so far, those without rows included.
            weighting: Kind of average.
            groups: Of rows that repeat each other; the same of a row of the pool each time.
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
    """The classes seen so far; rows are read only if they are asked for."""

    def __init__(
        self, scenario: Scenario, plan: TaskPlan, device: torch.device, *, seed: int
    ) -> None:
        self._scenario, self._plan, self._device, self._seed = scenario, plan, device, seed
        self._sums = RunningStatistics(scenario.base)
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
