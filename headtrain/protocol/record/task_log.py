"""Log of the training of a bank: one entry per task, one column per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.protocol.record.format import TABLES
from clinit.headtrain.protocol.record.info import StartInfo, TaskInfo
from clinit.headtrain.protocol.stream.scenario import Scenario
from clinit.headtrain.protocol.stream.task_plan import Lesson


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One evaluation of the bank."""

    iteration: int
    correct: Int[np.ndarray, "heads classes"]
    correct_in_task: Int[np.ndarray, "heads classes"]
    """Correct answers among the classes of the same task."""
    loss_new: Float[np.ndarray, " heads"]
    elapsed_s: Float[np.ndarray, " heads"]
    mistakes: Sequence[Int[np.ndarray, "3 _"]] = ()
    """Class, number in its class and predicted class of each wrongly labelled test image; one array
    per head, empty if they are not listed."""


_LACKING = ("shrinkage", "quadratic", "init", "repeats")
"""Facts of a start that are left out if None."""
_OF_START = tuple(name for name in StartInfo.__annotations__ if name != "seconds")


@dataclass(slots=True, eq=False)
class TaskEntry:
    """One task of the bank."""

    task: int
    facts: dict[str, Any]
    """Fields of run.json about the task, except the initialisation."""
    new_share: Float[np.ndarray, " iterations"]
    """Share of new rows in each batch."""
    losses: Float[np.ndarray, "iterations heads 2"]
    """Mean losses of the new and the old rows of each batch; NaN without such rows."""
    of_heads: list[dict[str, Any]]
    """Fields of run.json about each head in the task: its anchor and diagnosis."""
    starts: list[Initialisation] = field(default_factory=list)
    """One per head."""
    start_seconds: list[Mapping[str, float]] = field(default_factory=list)
    """Seconds of the start by phase; one per head."""
    points: list[Point] = field(default_factory=list)

    @classmethod
    def begin(cls, scenario: Scenario, lesson: Lesson, heads: int) -> TaskEntry:
        """Return the entry of a task that a bank of some `heads` begins to learn."""
        task, rows = lesson.task, lesson.rows
        return cls(
            task=task.number,
            facts={
                "classes": len(task.classes),
                "train_rows": rows.num_new,
                "val_rows": int(scenario.val_counts[task.rows].sum()),
                "buffer_rows": len(rows.stored_old),
                "buffer_classes": len(np.unique(rows.stored_old)),
                "init_old_rows": lesson.seen.num_old,
            },
            new_share=lesson.schedule.new_share,
            losses=np.full((len(lesson.schedule.batches), heads, 2), np.nan, dtype=np.float32),
            of_heads=[{} for _ in range(heads)],
        )

    def description(self, head: int) -> TaskInfo:
        """Return the fields of run.json about the task in the run of one head."""
        start, seconds = self.starts[head], self.start_seconds[head]
        told = {name: getattr(start, name) for name in _OF_START}
        description: dict[str, Any] = {
            "task": self.task,
            **self.facts,
            "initialisation": {
                **{k: v for k, v in told.items() if v is not None or k not in _LACKING},
                "seconds": sum(seconds.values()),
                **{f"{phase}_s": value for phase, value in seconds.items()},
            },
        }
        if start.curve is not None:
            description["lambda_curve"] = {
                "lam": list(start.curve.lams),
                start.curve.measure.replace("-", "_").replace(" ", "_"): list(start.curve.errors),
            }
        description |= self.of_heads[head]
        return cast(TaskInfo, description)

    def steps(self, head: int) -> pl.DataFrame:
        """Return the losses of one head before each update."""
        new, old = self.losses[:, head, 0], self.losses[:, head, 1]
        share = self.new_share
        mixed = share * new + (1 - share) * old
        return _table(
            "steps",
            task=np.full(len(new), self.task),
            iteration=np.arange(len(new)),
            loss=np.where(share == 1, new, np.where(share == 0, old, mixed)),
            loss_new=_null_where(share == 0, new),
            loss_old=_null_where(share == 1, old),
        )

    def evaluations(self, head: int, totals: Int[np.ndarray, " classes"]) -> pl.DataFrame:
        """Return the correct counts of one head, for the tested classes."""
        tested = np.flatnonzero(totals)
        return pl.concat(
            _table(
                "evaluations",
                task=np.full(len(tested), self.task),
                iteration=np.full(len(tested), point.iteration),
                row=tested,
                correct=point.correct[head, tested],
                correct_in_task=point.correct_in_task[head, tested],
                total=totals[tested],
            )
            for point in self.points
        )

    def mistake_table(self, head: int) -> pl.DataFrame:
        """Return the test images that one head labels wrong, at the evaluations that list them."""
        listed = [(each.iteration, each.mistakes[head]) for each in self.points if each.mistakes]
        row, image, predicted = np.concatenate([wrong for _, wrong in listed], axis=1)
        return _table(
            "mistakes",
            task=np.full(len(row), self.task),
            iteration=np.repeat([at for at, _ in listed], [wrong.shape[1] for _, wrong in listed]),
            row=row,
            image=image,
            predicted=predicted,
        )

    def point_table(self, head: int) -> pl.DataFrame:
        """Return the new-task losses of one head."""
        return _table(
            "points",
            task=np.full(len(self.points), self.task),
            iteration=np.array([point.iteration for point in self.points]),
            loss_new=np.array([point.loss_new[head] for point in self.points]),
            elapsed_s=np.array([point.elapsed_s[head] for point in self.points]),
        )


def class_table(scenario: Scenario) -> pl.DataFrame:
    """Return the classes of the experiment, one per head row."""
    return _table(
        "classes",
        row=np.arange(scenario.num_classes),
        name=list(scenario.class_names),
        task=scenario.task_of_row,
        train_rows=scenario.train_counts,
        val_rows=scenario.val_counts,
    )


def _null_where(absent: Bool[np.ndarray, " rows"], values: Float[np.ndarray, " rows"]) -> pl.Series:
    return pl.Series(values).set(pl.Series(absent), None)


def _table(layout: str, /, **columns: Any) -> pl.DataFrame:
    return pl.DataFrame(columns).cast(dict(TABLES[layout]))  # type: ignore[arg-type]
