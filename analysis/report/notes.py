"""Notes on the limits of the numbers of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clinit.analysis.metrics.accuracy import at_end, at_start, mean
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import ByData, labels
from clinit.headtrain.heads.groups import repeats_in_words
from clinit.words import number_of

LEAST_FALL = 0.1
"""Percentage points that A_all must lose in training to be noted."""


def notes_of(runs: Sequence[RunSummary], data: ByData) -> tuple[str, ...]:
    """Return the notes on runs, each once; `data` contains the same runs by data.

    A terminal shows the first ones: what went wrong in training, falls and first notes of records.
    """
    notes = list[str]()
    for heading, part in data.items():
        where = f"{heading.split(':')[0]}: " if heading else ""
        notes += [f"{where}{note}" for note in falls(part)]
    recorded = [run.record.info.get("notes", []) for run in runs]
    notes += [*(each[0] for each in recorded if each), *(n for each in recorded for n in each[1:])]
    repeated: dict[str, list[int]] = {}
    for task in (task for run in runs for task in run.record.info["tasks"]):
        if found := (task.get("initialisation") or {}).get("repeats"):
            repeated.setdefault(repeats_in_words(found), []).append(task["task"])
    for told, tasks in repeated.items():
        first, last = min(tasks), max(tasks)
        which = f"Task {first}" if first == last else f"Tasks {first} to {last}"
        notes.append(f"{which}: {told} (`clinit cache group` changes this).")
    notes += _gain_notes(runs)
    return tuple(dict.fromkeys(notes))


def _gain_notes(runs: Sequence[RunSummary]) -> Iterator[str]:
    randoms = {run.key for run in runs if run.init == "random"}
    if any(run.key not in randoms and not run.is_solved for run in runs):
        yield (
            "No gain without a random run of the same stream and settings: add `--init random`"
            " to the training command, or give the record of such a run too."
        )
    gains = [(name, run, run.gain) for name, run in zip(labels(runs), runs, strict=True)]
    for name, run, gain in gains:
        if gain is None or run.init != "random":
            continue
        reasons = gain.drop_nulls("reason").group_by("reason", maintain_order=True)
        for reason, tasks in reasons.agg("task").iter_rows():
            word = "task" if len(tasks) == 1 else "tasks"
            yield f"No gain over {name} in {word} {', '.join(map(str, tasks))}: {reason}."


def falls(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Yield a note if training ends below its start: the accuracies before and after a task."""
    found: list[tuple[float, float, float, str]] = []
    for name, run in zip(labels(runs), runs, strict=True):
        before, after = (mean(at(run.joined)["acc_all"]) for at in (at_start, at_end))
        if before is not None and after is not None and before - after >= LEAST_FALL:
            found.append((before - after, before, after, name))
    if found:
        _, before, after, name = max(found)
        has_top = any(run.settings.get("top_blocks") for run in runs)
        near = "a lower `--lr`" if has_top else "`--protocol keep`"
        runs_of = f"{len(found)} of {number_of(len(runs), 'run')}"
        yield (
            f"Training ends below its start in {runs_of}: A_all of {name} falls from"
            f" {before:.1f} % to {after:.1f} % (means over tasks). `--iterations 0` keeps the"
            f" start, {near} trains near it."
        )


def remarks_of(runs: Sequence[RunSummary]) -> str:
    """Return the notes on how runs were chosen, for the caption of their table."""
    return " ".join(dict.fromkeys(remark for run in runs for remark in run.remarks))
