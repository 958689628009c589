"""The rows and batches of each task of a stream, drawn once for all heads.

It follows from the scenario and the study alone, whatever is trained: heads on stored
features, or a network on images. So their runs can be compared sample by sample.

A batch of rehearsal is made of, by name of its mix:

    text    half new rows (rounded down), the rest from the buffer: the paper's text
    sgm     the first task as `text`; later 3/8 new, 1/2 base, 1/8 earlier new classes: of 256 rows
            96, 128 and 32, as in the authors' related code (SGM)
    uniform each class seen so far that has a row is equally likely at each place of a batch

A batch is all new if the buffer is empty. `sgm` is `text` as long as the buffer lacks base
rows or rows of earlier new classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from clinit.errors import ExperimentError
from clinit.headtrain.groups import thinned
from clinit.headtrain.stream.buffer import (
    Buffer,
    TaskRows,
    balanced,
    correction_rows,
    drawn_per_class,
    quotas_of,
)
from clinit.headtrain.stream.scenario import Scenario, Task
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.study.parts import CLOSED_METHODS, SOLVED_METHODS
from clinit.headtrain.study.study import Study

OLD_ROWS: Mapping[str, Literal["buffer", "all", "none"]] = {
    "rehearsal": "buffer",
    "derpp": "buffer",
    "joint": "all",  # the upper bound
    **dict.fromkeys(SOLVED_METHODS, "all"),
    "naive": "none",  # the lower bound
    "ewc": "none",
    **dict.fromkeys(CLOSED_METHODS, "none"),  # they keep statistics
}
"""The rows of earlier classes that training and statistics may look at, by method."""


@dataclass(frozen=True, slots=True)
class Share:
    """A range of rows, and the number of them in each batch."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Batches of a task, as indices into its rows."""

    batches: Int[np.ndarray, "iterations batch"]
    """In each batch the new rows come first."""
    num_new: Int[np.ndarray, " iterations"]
    """New rows in each batch."""

    @property
    def new_share(self) -> Float[np.ndarray, " iterations"]:
        """Share of new rows in each batch."""
        share: np.ndarray = self.num_new / self.batches.shape[1]
        return share


def draw_schedule(
    random: np.random.Generator, shares: Sequence[Share], *, first_new: int, iterations: int
) -> Schedule:
    """Draw batches that take from each range of rows its share.

    Each range is passed over in shuffled order and shuffled anew when it is exhausted: a row
    comes again only after all others of its range have come. Rows from `first_new` on are new.
    """

    def passes(share: Share) -> Int[np.ndarray, "iterations share"]:
        rows, total = share.stop - share.start, iterations * share.count
        drawn = [np.empty(0, dtype=np.int64)]
        if total:
            drawn += [random.permutation(rows) for _ in range(-(-total // rows))]
        return np.concatenate(drawn)[:total].reshape(iterations, share.count) + share.start

    return _new_first(np.hstack([passes(share) for share in shares]), first_new)


def draw_uniform(
    random: np.random.Generator,
    labels: Int[np.ndarray, " rows"],
    *,
    first_new: int,
    iterations: int,
    batch_size: int,
) -> Schedule:
    """Draw batches in which every class that has a row is equally likely at every place.

    The classes are passed over in shuffled order, again and again, and so are the rows of each: a
    class comes again only after all others have come, and a row after all others of its class.
    """
    places = iterations * batch_size
    classes, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    passes = -(-places // len(classes))
    of_pass = np.tile(np.arange(len(classes)), (passes, 1))
    drawn = random.permuted(of_pass, axis=1).ravel()[:places]
    rounds = -(-passes // sizes)  # of each class over its rows
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


def mixed(method: str, mix: str, rows: TaskRows, batch_size: int) -> Sequence[Share]:
    """Return the shares of a batch, the new rows first.

    Of all rows of all classes each batch is drawn as it comes: how many are new is left to chance.
    """
    start, total, half = rows.num_old, len(rows.labels), batch_size // 2
    if OLD_ROWS[method] == "all":
        return (Share(0, total, batch_size),)
    if not start or OLD_ROWS[method] == "none":
        return (Share(start, total, batch_size),)
    if mix != "sgm" or rows.num_base in (0, start):
        return (Share(start, total, half), Share(0, start, batch_size - half))
    earlier = batch_size // 8
    return (
        Share(start, total, half - earlier),
        Share(0, rows.num_base, batch_size - half),
        Share(rows.num_base, start, earlier),
    )


class TaskPlan:
    """The tasks of a scenario as a resolved study wants them learnt."""

    def __init__(self, scenario: Scenario, study: Study) -> None:
        self._scenario = scenario
        self._study = study
        self._stream = study.stream
        quotas = quotas_of(study.stream, scenario.num_base)
        self._buffer = Buffer(scenario.train, quotas, seed=study.stream.seed)

    def rows(self, task: Task) -> TaskRows:
        """Choose the rows that the task may look at; none that is held out.

        If old rows are drawn from statistics, one row of each old class stands for those.
        """
        rows = self._task_rows(task, self._old_rows(task))
        if not self._study.draws_old_rows:
            return rows
        return self.with_drawn(rows, np.flatnonzero(self._scenario.train_counts[: task.start]))

    def with_drawn(self, rows: TaskRows, labels: Int[np.ndarray, " drawn"]) -> TaskRows:
        """Return rows with drawn ones of earlier classes, with ascending labels, before them."""
        return TaskRows(
            rows.number,
            np.concatenate([np.full(len(labels), -1), rows.rows]),
            np.concatenate([labels, rows.labels]),
            int((labels < self._scenario.num_base).sum()),
            len(labels),
        )

    def past(self, tasks: int) -> TaskRows:
        """Return all rows of the base and of so many tasks, the last task's as new."""
        scenario = self._scenario
        base = Task(0, np.arange(scenario.num_base), 0)
        last = scenario.tasks[tasks - 1] if tasks else base
        return self._task_rows(last, scenario.train.rows_between(0, last.start))

    def correction_rows(self, task: Task) -> TaskRows:
        """Choose the rows that are held out of the task, to correct the head by."""
        return self._task_rows(task, self._old_rows(task), held_out=True)

    def check_correction(self) -> None:
        """Check that old and new rows of each task are held out, if its head is corrected by them.

        Raises:
            ExperimentError: If one does not.
        """
        if self._study.training.correct != "bic":
            return
        for task in self._scenario.learnt:
            rows = self.correction_rows(task)
            if task.start and not 0 < rows.num_old < len(rows.labels):
                lacking = "old" if not rows.num_old else "new"
                raise ExperimentError(
                    f"bias correction holds out a tenth of the rows, but the {lacking} classes of"
                    f" task {task.number} have too few: not one is held out",
                    remedy="Use --correct wa, or more rows: a larger --buffer, more --shots or"
                    " fewer --tasks.",
                )

    def _old_rows(self, task: Task) -> Int[np.ndarray, " old"]:
        kind = OLD_ROWS[self._stream.method]
        if self._study.draws_old_rows:
            return np.empty(0, dtype=np.int64)
        if kind == "buffer":
            return self._buffer.rows(task.start)
        return self._scenario.train.rows_between(0, task.start if kind == "all" else 0)

    def _task_rows(
        self, task: Task, old: Int[np.ndarray, " old"], *, held_out: bool = False
    ) -> TaskRows:
        train = self._scenario.train
        new = train.rows_between(task.start, task.stop)
        old, new = (rows[self._held_out[rows] == held_out] for rows in (old, new))
        num_base = int((train.labels[old] < self._scenario.num_base).sum())
        rows = np.concatenate([old, new])
        return TaskRows(task.number, rows, train.labels[rows], num_base, len(old))

    @cached_property
    def _held_out(self) -> Bool[np.ndarray, " pool"]:
        """Which rows are held out: none unless heads are corrected by them."""
        train = self._scenario.train
        if self._study.training.correct != "bic":
            return np.zeros(len(train.labels), dtype=bool)
        base, classes = self._scenario.num_base, self._scenario.num_classes
        return correction_rows(train, self._buffer, base, classes, seed=self._stream.seed)

    def start_rows(self, task: Task, rows: TaskRows) -> TaskRows:
        """Choose the rows that the initialisation may look at; `rows` if it is these.

        Old rows among them may be rows that training does not see: the rows of the buffer, with a
        method that trains on new rows alone. Of a large group of rows that repeat each other some
        are enough.
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

    def kept(self, task: Task) -> Int[np.ndarray, " kept"]:
        """Return the rows of the task's classes that the buffer holds once they are seen."""
        rows = self._buffer.rows(task.stop)
        kept: np.ndarray = rows[self._scenario.train.labels[rows] >= task.start]
        return kept

    def base_sample(self, size: int) -> Int[np.ndarray, " sample"]:
        """Choose at most `size` rows of base classes, class-balanced, as a buffer would."""
        buffer = Buffer(self._scenario.train, balanced(size), seed=self._stream.seed)
        return buffer.rows(self._scenario.num_base)

    def schedule(self, rows: TaskRows, draw: Draw = Draw.BATCHES) -> Schedule:
        """Draw the batches of a task; of a second draw the old rows are used alone."""
        stream, random = self._stream, generator(self._stream.seed, draw, rows.number)
        first_new, iterations, size = rows.num_old, stream.iterations, stream.rows_per_batch
        if stream.mix == "uniform" and draw is Draw.BATCHES:
            return draw_uniform(
                random, rows.labels, first_new=first_new, iterations=iterations, batch_size=size
            )
        shares = mixed(stream.method, stream.mix or "text", rows, size)
        return draw_schedule(random, shares, first_new=first_new, iterations=iterations)
