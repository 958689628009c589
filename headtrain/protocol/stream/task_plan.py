"""The rows and batches of each task of a stream, drawn once for all heads.

The plan depends only on scenario and study, not on whether heads are trained on stored features or
a network on images. Their runs can therefore be compared sample by sample.

Rows of a batch of rehearsal, by mix:

    text    half new rows (rounded down), the rest from the buffer: the paper's text
    uniform each class seen so far that has a row is equally likely at each place of a batch

If the buffer is empty, all rows of a batch are new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from clinit.headtrain.heads.groups import Labels, thinned
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.protocol.stream.buffer import Buffer, TaskRows, drawn_per_class
from clinit.headtrain.protocol.stream.scenario import Scenario, Task
from clinit.headtrain.protocol.study.parts import CLOSED_METHODS, SOLVED_METHODS, Stream
from clinit.headtrain.protocol.study.study import Study

OLD_ROWS: Mapping[str, Literal["buffer", "all", "none"]] = {
    "rehearsal": "buffer",
    "derpp": "buffer",
    "joint": "all",  # the upper bound
    **dict.fromkeys(SOLVED_METHODS, "all"),
    "naive": "none",  # the lower bound
    "ewc": "none",
    **dict.fromkeys(CLOSED_METHODS, "none"),  # they keep statistics
}
"""The rows of earlier classes that training and statistics may use, by method."""


BatchShare = tuple[range, int]
"""A range of rows, and the number of them in each batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Batches of a task, as indices into its rows."""

    batches: Int[np.ndarray, "iterations batch"]
    """New rows are first in each batch."""
    num_new: Int[np.ndarray, " iterations"]
    """Number of new rows in each batch."""

    @property
    def new_share(self) -> Float[np.ndarray, " iterations"]:
        """Share of new rows in each batch."""
        return np.asarray(self.num_new / self.batches.shape[1])


def draw_schedule(
    random: np.random.Generator, shares: Sequence[BatchShare], *, first_new: int, iterations: int
) -> Schedule:
    """Draw batches that contain the share of each range of rows.

    Each range is used in shuffled order, and shuffled again when it is exhausted, so that a row is
    repeated only after all other rows of its range were used. Rows from `first_new` on are new.
    """

    def passes(share: BatchShare) -> Int[np.ndarray, "iterations share"]:
        rows, count = share
        total, drawn = iterations * count, [np.empty(0, dtype=np.int64)]
        if total:
            drawn += [random.permutation(len(rows)) for _ in range(-(-total // len(rows)))]
        return np.concatenate(drawn)[:total].reshape(iterations, count) + rows.start

    return _new_first(np.hstack([passes(share) for share in shares]), first_new)


def draw_uniform(
    random: np.random.Generator, labels: Labels, *, first_new: int, iterations: int, batch_size: int
) -> Schedule:
    """Draw batches in which every class that has a row is equally likely at every place.

    The classes are used in shuffled order, again and again, and so are the rows of each class: a
    class is repeated only after all other classes, and a row after all other rows of its class.
    """
    places = iterations * batch_size
    classes, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    passes = -(-places // len(classes))
    of_pass = np.tile(np.arange(len(classes)), (passes, 1))
    drawn = random.permuted(of_pass, axis=1).ravel()[:places]
    rounds = -(-passes // sizes)  # over the rows of each class
    by_class = np.argsort(numbers, kind="stable")
    rows = np.repeat(by_class, rounds[numbers[by_class]])
    of_row = numbers[rows]
    starts = np.cumsum(sizes * rounds) - sizes * rounds
    turns = (np.arange(len(rows)) - starts[of_row]) % rounds[of_row]
    shuffled = rows[np.lexsort((random.random(len(rows)), turns, of_row))]
    counts = np.bincount(drawn, minlength=len(classes))
    times = np.arange(places) - np.repeat(np.cumsum(counts) - counts, counts)
    batches = np.empty(places, dtype=np.int64)
    batches[np.argsort(drawn, kind="stable")] = shuffled[np.repeat(starts, counts) + times]
    return _new_first(batches.reshape(iterations, batch_size), first_new)


def _new_first(batches: Int[np.ndarray, "iterations batch"], first_new: int) -> Schedule:
    is_old = batches < first_new
    new_first = np.argsort(is_old, axis=1, kind="stable")
    return Schedule(np.take_along_axis(batches, new_first, axis=1), (~is_old).sum(axis=1))


def mixed(method: str, rows: TaskRows, batch_size: int) -> Sequence[BatchShare]:
    """Return the shares of a batch, new rows first.

    With `joint`, each batch is drawn from all rows of all classes, and the number of new rows is
    left to chance.
    """
    start, total, half = rows.num_old, len(rows.labels), batch_size // 2
    if OLD_ROWS[method] == "all":
        return ((range(total), batch_size),)
    if not start or OLD_ROWS[method] == "none":
        return ((range(start, total), batch_size),)
    return ((range(start, total), half), (range(start), batch_size - half))


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """The rows from which a task is learned."""

    task: Task
    rows: TaskRows
    """The rows to train on."""
    seen: TaskRows
    """The rows that the start may use; the object `rows` itself if these are the same rows."""
    schedule: Schedule
    stream: Stream


class TaskPlan:
    """Rows and batches of the tasks of a scenario, as a resolved study defines them."""

    def __init__(self, scenario: Scenario, study: Study) -> None:
        self._scenario = scenario
        self._study = study
        self._stream = study.stream
        self._buffer = Buffer(scenario.train, study.stream.buffer or 0, seed=study.stream.seed)

    def lesson(self, task: Task) -> Lesson:
        """Choose and draw everything that the task is learnt from."""
        rows = self.rows(task)
        return Lesson(task, rows, self.start_rows(task, rows), self.schedule(rows), self._stream)

    def rows(self, task: Task) -> TaskRows:
        """Choose the rows that the task may use.

        If old rows are drawn from statistics, one row with number -1 represents each old class.
        """
        rows = self._task_rows(task, self._old_rows(task))
        if not self._study.draws_old_rows:
            return rows
        return self.with_drawn(rows, np.flatnonzero(self._scenario.train_counts[: task.start]))

    def with_drawn(self, rows: TaskRows, labels: Int[np.ndarray, " drawn"]) -> TaskRows:
        """Put drawn rows of earlier classes, with ascending `labels`, before `rows`."""
        return TaskRows(
            rows.number,
            np.concatenate([np.full(len(labels), -1), rows.rows]),
            np.concatenate([labels, rows.labels]),
            int((labels < self._scenario.num_base).sum()),
            len(labels),
        )

    def past(self, tasks: int) -> TaskRows:
        """Return all rows of the base and the first `tasks` tasks; new: rows of the last task."""
        scenario = self._scenario
        last = scenario.tasks[tasks - 1] if tasks else Task(0, np.arange(scenario.num_base), 0)
        return self._task_rows(last, scenario.train.rows_between(0, last.start))

    def _old_rows(self, task: Task) -> Int[np.ndarray, " old"]:
        kind = OLD_ROWS[self._stream.method]
        if self._study.draws_old_rows:
            return np.empty(0, dtype=np.int64)
        if kind == "buffer":
            return self._buffer.rows(task.start)
        return self._scenario.train.rows_between(0, task.start if kind == "all" else 0)

    def _task_rows(self, task: Task, old: Int[np.ndarray, " old"]) -> TaskRows:
        train = self._scenario.train
        new = train.rows_between(task.start, task.stop)
        num_base = int((train.labels[old] < self._scenario.num_base).sum())
        rows = np.concatenate([old, new])
        return TaskRows(task.number, rows, train.labels[rows], num_base, len(old))

    def start_rows(self, task: Task, rows: TaskRows) -> TaskRows:
        """Choose the rows that the initialisation may use; return `rows` itself if it is the same.

        They can include rows of the buffer even if the method trains on new rows only. Large groups
        of rows that repeat each other are thinned out.
        """
        seen, train = rows, self._scenario.train
        drawn = np.empty(0, dtype=np.int64)
        if self._study.start.init_rows == "new":
            if rows.num_old:
                seen = self._task_rows(task, np.empty(0, dtype=np.int64))
        elif self._study.keeps_buffer and not self._study.rehearses:
            seen = self._task_rows(task, self._buffer.rows(task.start))
        elif self._study.draws_old_rows and rows.num_old:
            seen, drawn = self._task_rows(task, drawn), rows.labels[: rows.num_old]
        groups = train.groups_of(seen.rows)
        if groups is not None and not (kept := thinned(seen.labels, groups)).all():
            seen = seen.part(kept)
        if len(drawn):
            pairs = -(-drawn_per_class(len(drawn), train.dim) // 2)
            seen = self.with_drawn(seen, np.repeat(drawn, 2 * pairs))
        return seen

    def base_sample(self, size: int) -> Int[np.ndarray, " sample"]:
        """Choose at most `size` rows of base classes, class-balanced, as a buffer would."""
        buffer = Buffer(self._scenario.train, size, seed=self._stream.seed)
        return buffer.rows(self._scenario.num_base)

    def schedule(self, rows: TaskRows) -> Schedule:
        """Draw the batches of a task."""
        stream, random = self._stream, generator(self._stream.seed, Draw.BATCHES, rows.number)
        first_new, iterations, size = rows.num_old, stream.iterations, stream.rows_per_batch
        if stream.mix == "uniform":
            return draw_uniform(
                random, rows.labels, first_new=first_new, iterations=iterations, batch_size=size
            )
        shares = mixed(stream.method, rows, size)
        return draw_schedule(random, shares, first_new=first_new, iterations=iterations)
