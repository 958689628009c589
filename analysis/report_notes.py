"""What the records of runs and their comparison want said below the tables of a report."""

from __future__ import annotations

from collections.abc import Sequence

from clinit.analysis.base_rise import rises
from clinit.analysis.efficiency import Gain
from clinit.analysis.gain_notes import bounded_gains, not_reached
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.same_data import by_data, headings
from clinit.analysis.settings import labels


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
