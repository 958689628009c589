"""What a reader of a report has to know before relying on its numbers, and its conclusion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from clinit.analysis.metrics.accuracy import accuracy_before, at_end
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.seeds import SeedGroup, seed_groups
from clinit.analysis.report.settings import by_data, differences, headings, labels, phrase
from clinit.words import listed, number_of

FAR = 5.0
"""Percentage points that accuracy on base classes may rise without a note."""
MOST_STARTS = 3
"""Starts beside random that a conclusion names, the best A_all first."""
_MOST_NAMED = 4


def notes_of(runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return the notes of the runs, each once."""
    notes: list[str] = [note for run in runs for note in run.record.info.get("notes", [])]
    notes += [
        f"{run.path} holds files that are not of its record: {', '.join(run.record.strangers)}."
        for run in runs
        if run.record.strangers
    ]
    notes += [*_gain_notes(runs)]
    for run, name in zip(runs, labels(runs), strict=True):
        if run.not_finite:
            notes.append(
                f"{name}: the loss on the new task is not a finite number at {run.not_finite} of"
                f" {len(run.points)} evaluation points."
            )
    parts = by_data(runs)
    for heading, part in zip(headings(parts), parts, strict=True):
        data = f"{heading.split(':')[0]}: " if heading else ""
        notes += [f"{data}{note}" for note in rises(part)]
    return tuple(dict.fromkeys(notes))


def _gain_notes(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Yield which gains are missing, over some tasks only, or bounded by the evaluations."""
    randoms = {run.key for run in runs if run.init == "random"}
    if any(run.key not in randoms and not run.is_solved for run in runs):
        yield (
            "No gain without a random run of the same stream and settings: add `--init random`"
            " to the training command, or give the record of such a run too."
        )
    gains = [(n, run, run.gain) for run, n in zip(runs, labels(runs), strict=True) if run.gain]
    for name, run, gain in gains:
        for reason in dict.fromkeys(reason for _, reason in gain.left_out):
            tasks = [str(task) for task, other in gain.left_out if other is reason]
            if run.init == "random":
                word = "task" if len(tasks) == 1 else "tasks"
                yield f"No gain over {name} in {word} {', '.join(tasks)}: {reason.value}."
    if partial := [name for name, _, gain in gains if not gain.complete]:
        yield (
            f"{_few(partial)}: 95 % of random's best new-task accuracy is not reached in every"
            " task; the gain is the mean over those in which it is."
        )
    bounded = [n for n, _, gain in gains if any(t.is_bounded("equal-level") for t in gain.tasks)]
    late = [
        name
        for name, run, gain in gains
        if run.init == "random" and any(t.random_reached <= t.first for t in gain.tasks)
    ]
    first = max((task.first for _, _, gain in gains for task in gain.tasks), default=1)
    finer = f" A smaller `--eval-every` than {first} shows more." if first > 1 else ""
    if bounded:
        yield f"Gains marked ≥ are at least that: {_few(bounded)}.{finer}"
    if late:
        yield (
            "No gain above 1 can show in tasks in which random itself is at 95 % of its best by"
            f" the first evaluation: {_few(late)}.{'' if bounded else finer}"
        )


def _few(names: Sequence[str]) -> str:
    few = [*names[:_MOST_NAMED]]
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return listed([*few, *more])


def rises(runs: Sequence[RunSummary]) -> Iterator[str]:
    """Yield the note on runs on the same data whose base accuracy ends far above its start.

    A head that was made for all base classes is trained on the rows of a cache: if a few base
    classes are tested and most of these rows are theirs, it comes to prefer them.
    """
    found = [
        (run, before, after)
        for run in runs
        if (before := accuracy_before(run.record, run.points)) is not None
        and (after := at_end(run.points)["acc_pre"].last()) is not None
        and after - before > FAR  # type: ignore[operator]
    ]
    if not found:
        return
    run, before, after = max(found, key=lambda each: each[2] - each[1])  # type: ignore[operator]
    base = run.record.classes.filter(pl.col("task") == 0)
    tested = base.filter(pl.col("val_rows") > 0)
    if len(tested) == len(base):
        reason = "training fits the base classes to this cache better than the head it starts from."
    else:
        own, rows = tested["train_rows"].sum(), base["train_rows"].sum()
        reason = (
            f"only {len(tested):,} of {len(base):,} base classes are tested, and {own:,} of"
            f" {rows:,} training rows of base classes are theirs. No gain to count on."
        )
    yield f"A_pre rises from {before:.1f} % before task 1 to {after:.1f} % at the end: {reason}"


def conclusions(runs: Sequence[RunSummary]) -> list[str]:
    """Return a sentence for each data on which random rows and other ones were tried."""
    parts = by_data(runs)
    pairs = zip(headings(parts), map(conclusion, parts), strict=True)
    return [f"{heading}: {words}" if heading else words for heading, words in pairs if words]


def conclusion(runs: Sequence[RunSummary]) -> str:
    """Return what starts are worth, of runs on the same data; empty without random rows and others.

    Numbers are means over tasks and seeds. If training differs, as by the number of shots, it is
    about the comparison that has the best A_all.
    """
    rivals: dict[str, list[SeedGroup]] = {}
    for group in seed_groups(runs):
        if group.spread("acc_new_start") is not None:
            rivals.setdefault(group.comparable, []).append(group)
    for groups in rivals.values():
        random = next((group for group in groups if group.runs[0].init == "random"), None)
        others = [group for group in groups if group.runs[0].init != "random"]
        if random is not None and others:
            sentence = _sentence([random, *others[:MOST_STARTS]])
            names = differences(runs, without=("seed",)).of_training
            where = ", ".join(phrase(random.runs[0], name) for name in names)
            return f"{where}: {sentence}" if where else sentence[0].upper() + sentence[1:]
    return ""


def _sentence(groups: Sequence[SeedGroup]) -> str:
    random, *others = labels([group.runs[0] for group in groups], without=("seed",))
    start, *starts = _means(groups, "acc_new_start")
    found = [f"{name} rows {share} %" for name, share in zip(others, starts, strict=True)]
    words = (
        f"before the first step of a task, {random} rows recognise {start} % of its new classes, "
        + listed(found)
    )
    points = groups[0].runs[0].points
    if points["iteration"].max():
        words += f"; over all its evaluations {listed(_means(groups, 'acc_new'))} %"
    over = [number_of(points["task"].n_unique(), "task")]
    if (seeds := max(len(group.runs) for group in groups)) > 1:
        over.append(number_of(seeds, "seed"))
    return f"{words} (mean over {' and '.join(over)})."


def _means(groups: Sequence[SeedGroup], name: str) -> list[str]:
    found = [group.spread(name) for group in groups]
    return [f"{spread.mean:.1f}" for spread in found if spread is not None]
