"""What the records of runs and their comparison want said below the tables of a report."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from clinit.analysis.metrics.accuracy import accuracy_before, at_end
from clinit.analysis.metrics.efficiency import Gain
from clinit.analysis.report.conclusion import listed
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.same_data import by_data, headings
from clinit.analysis.report.seeds import alike
from clinit.analysis.report.settings import labels
from clinit.words import number_of


def notes_of(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return the notes of the runs, each once."""
    notes: list[str] = [note for run in runs for note in run.record.info.get("notes", [])]
    notes += [
        f"{run.path} holds files that are not of its record: {', '.join(run.record.strangers)}."
        for run in runs
        if run.record.strangers
    ]
    randoms = {run.key for run in runs if run.init == "random"}
    if any(run.key not in randoms and not run.is_solved for run in runs):
        notes.append(
            "No gain without a random run of the same stream and settings: add `--init random`"
            " to the training command, or give the record of such a run too."
        )
    for run, name in zip(runs, labels(runs), strict=True):
        if run.gain and run.init == "random":
            notes += _tasks_without_level(name, run.gain)
        if run.not_finite:
            notes.append(
                f"{name}: the loss on the new task is not a finite number at {run.not_finite} of"
                f" {len(run.points)} evaluation points."
            )
    notes += not_reached(runs)
    parts = by_data(runs)
    for heading, part in zip(headings(parts), parts, strict=True):
        data = f"{heading.split(':')[0]}: " if heading else ""
        notes += [f"{data}{note}" for note in (*bounded_gains(part), rises(part)) if note]
    return tuple(dict.fromkeys(notes))


def _tasks_without_level(random: str, own: Gain) -> list[str]:
    """Return notes on tasks without a gain over the run `random`, whose own gain is `own`."""
    notes = []
    for reason in dict.fromkeys(reason for _, reason in own.left_out):
        tasks = [str(task) for task, other in own.left_out if other is reason]
        every = len(tasks) == len(own.tasks) + len(own.left_out)
        word = "task" if len(tasks) == 1 else "tasks"
        where = "any task" if every else f"{word} {', '.join(tasks)}"
        notes.append(f"No gain over {random} in {where}: {reason.value}.")
    return notes


_MOST_NAMED = 4
"""Starts that a note names, and runs that have a note of their own."""


def not_reached(runs: Sequence[RunSummary]) -> list[str]:
    """Return notes on the runs of a report that do not get to the level in every task."""
    found = [
        (name, run.gain)
        for name, run in zip(labels(runs), runs, strict=True)
        if run.gain and not run.gain.complete
    ]
    if len(found) <= _MOST_NAMED:
        return [_not_reached(name, gain) for name, gain in found]
    return [
        f"{len(found):,} of {number_of(len(runs), 'run')} do not reach 95 % of random's best"
        " new-task accuracy in every task; their gains are the means over those in which they do."
    ]


def _not_reached(name: str, gain: Gain) -> str:
    tasks = number_of(len(gain.tasks), "task")
    told = f"{name} reaches 95 % of random's best new-task accuracy in"
    if not gain.reached:
        return f"{told} none of {tasks}: it has no gain."
    missing = [str(task.task) for task in gain.tasks if task.reached is None]
    word = "task" if len(missing) == 1 else "tasks"
    return (
        f"{told} {gain.reached} of {tasks}, not in {word} {', '.join(missing)}; its gain is the"
        " mean over those."
    )


def bounded_gains(runs: Sequence[RunSummary]) -> list[str]:
    """Return notes on gains that evaluations are too far apart for, of runs on the same data.

    Tasks are counted over the seeds of a start, at equal level.
    """
    parts = [part for part in alike(runs) if any(run.gain for run in part)]
    names = labels([part[0] for part in parts], without=("seed",)) if parts else []
    gains = [[run.gain for run in part if run.gain] for part in parts]
    tasks = [[task for gain in own for task in gain.tasks] for own in gains]
    firsts = sorted({task.first for own in tasks for task in own})
    if not firsts:
        return []
    at = f"iteration {firsts[0]}" + (f" to {firsts[-1]}" if len(firsts) > 1 else "")
    finer = f"A smaller `--eval-every` than {firsts[-1]} in training shows more."
    finer = f" {finer}" if firsts[-1] > 1 else ""
    notes = []
    ahead = _counted(names, [[task.is_bounded("equal-level") for task in own] for own in tasks])
    if ahead:
        notes.append(
            f"≥: at 95 % of the best of random before the first step, which counts as {at}, the"
            f" first evaluation after it, so that the gain is at least that: {ahead}.{finer}"
        )
    late = [
        [task.random_reached <= task.first for task in own] if part[0].init == "random" else []
        for part, own in zip(parts, tasks, strict=True)
    ]
    if level := _counted(names, late):
        notes.append(
            f"No gain above 1 can show where random itself is at 95 % of its best by the first"
            f" evaluation, {at}: {level}.{'' if ahead else finer}"
        )
    return notes


def _counted(names: Sequence[str], found: Sequence[Sequence[bool]]) -> str:
    """Return who is found in how many tasks; empty where nobody is."""
    those = [(name, own) for name, own in zip(names, found, strict=True) if any(own)]
    if len(those) > _MOST_NAMED:
        return f"{len(those)} of {number_of(len(names), 'start')}, in some tasks"
    words = [f"{name} in {sum(own)} of {number_of(len(own), 'task')}" for name, own in those]
    return listed(words) if words else ""


FAR = 5.0
"""Percentage points."""


def rises(runs: Sequence[RunSummary]) -> str:
    """Return the note on runs on the same data; empty where no run ends far above its start."""
    found = [
        (run, before, after)
        for run in runs
        if (before := accuracy_before(run.record, run.points)) is not None
        and (after := _after(run)) is not None
        and after - before > FAR
    ]
    if not found:
        return ""
    starts = _range([before for _, before, _ in found])
    ends = _range([after for _, _, after in found])
    return (
        f"A_pre rises from {starts} % before task 1 to {ends} % after the last task:"
        f" {_reason(found[0][0])}"
    )


def _after(run: RunSummary) -> float | None:
    last: float | None = at_end(run.points)["acc_pre"].last()  # type: ignore[assignment]
    return last


def _reason(run: RunSummary) -> str:
    base = run.record.classes.filter(pl.col("task") == 0)
    tested = base.filter(pl.col("val_rows") > 0)
    rows, own = base["train_rows"].sum(), tested["train_rows"].sum()
    if len(tested) == len(base):
        return (
            "training fits the rows of base classes to this cache better than the head that it"
            " started from."
        )
    return (
        f"only {len(tested):,} of {len(base):,} base classes are tested, and {own:,} of {rows:,}"
        " training rows of base classes are theirs, so that training favours them. No gain to"
        " count on."
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"
