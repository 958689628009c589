"""The record of a run and the head that it ended with, with a row per class that it has learnt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clinit.errors import RecordError
from clinit.extract.head import Head
from clinit.headtrain.record.format import RunRecord, final_head, find_records, read_record


def read_run(run: Path) -> RunRecord:
    """Read the record at `run`.

    Raises:
        RecordError: If there is none, or it is damaged; those below it are named.
    """
    if run.is_dir() and not (run / "run.json").exists() and (found := find_records(run)):
        names = ", ".join(str(folder.relative_to(run)) for folder in found[:5])
        raise RecordError(
            f"{run} is no run record, but holds {len(found)} of them:"
            f" {names}{', …' if len(found) > 5 else ''}",
            remedy=f"Give one: `clinit export {found[0]} --out FILE`.",
        )
    return read_record(run)


def learnt_head(run: Path, record: RunRecord) -> Head:
    """Return the head that a run ended with, its rows being the first classes of the record.

    Raises:
        RecordError: If the record holds no head, or one of other classes.
        HeadError: If the head is damaged, its training has diverged, or it is no linear one.
    """
    head = final_head(record)
    names, num_learnt = tuple(record.classes["name"]), _num_learnt(record)
    expected = {names, names[:num_learnt]}  # where it was stopped, a head may have rows beyond
    if head.class_names not in (None, *expected) or head.num_classes not in map(len, expected):
        raise RecordError(
            f"the head in {run} is not of the {len(names):,} classes of the record",
            remedy="The record is damaged: remove its folder and run `clinit train-head` again.",
        )
    return replace(
        head,
        weight=head.weight[:num_learnt],
        bias=head.bias[:num_learnt],
        class_names=None if head.class_names is None else names[:num_learnt],
    )


def _num_learnt(record: RunRecord) -> int:
    """Return the number of classes that the run has learnt, those of the base included."""
    last = max(task["task"] for task in record.info["tasks"])
    return int((record.classes["task"] <= last).sum())
