"""Notes on gains over some tasks only, and on those that the grid of evaluations bounds."""

from __future__ import annotations

from collections.abc import Sequence

from clinit.analysis.conclusion import listed
from clinit.analysis.efficiency import Gain
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.seeds import alike
from clinit.analysis.settings import labels
from clinit.words import number_of

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
