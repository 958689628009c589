"""What the user of a linear probe should know about its data, its grid and its searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from clinit.headtrain.examples import examples
from clinit.headtrain.probe.points import Fitted
from clinit.headtrain.probe.result import GridPoint
from clinit.headtrain.stream.source import Source

_OPTIONS = {"lr": "--lr", "weight_decay": "--weight-decay", "c": "--c"}


def data_notes(source: Source, *, has_choice: bool) -> list[str]:
    """Return what the data lack."""
    counts = source.train.counts()
    empty = [source.class_names[label] for label in np.flatnonzero(counts == 0)]
    single = int((counts == 1).sum())
    notes = [*source.notes]
    if empty:
        notes.append(
            f"{len(empty):,} classes have no training image ({examples(empty)}): the head has no"
            " row for them, and their validation images count as wrong"
        )
    if single and has_choice:
        notes.append(f"{single:,} classes have a single training image: none is held out of these")
    if not len(source.val.labels):
        notes.append(
            "there is no validation row: the accuracy is that of the chosen settings on the rows"
            " that they were chosen by, an upper estimate"
            if has_choice
            else "there is no validation row, and no grid to choose from: nothing is measured"
        )
    return notes


def edge_notes(grid: Sequence[GridPoint], chosen: Mapping[str, float]) -> list[str]:
    """Return a note for each setting whose best value is the first or last one that was tried."""
    notes = []
    for name, value in chosen.items():
        tried = sorted({point.settings[name] for point in grid})
        if len(tried) < 2 or value not in (tried[0], tried[-1]) or value == 0:
            continue
        end, more = ("smallest", "smaller") if value == tried[0] else ("largest", "larger")
        notes.append(
            f"the best {_OPTIONS[name]}, {value:g}, is the {end} one that was tried: a {more} one"
            " may be better still"
        )
    return notes


def search_notes(grid: Sequence[GridPoint], refit: Fitted) -> list[str]:
    """Return a note on heads that have diverged, and one on searches that were cut short."""
    notes = []
    diverged = sum(not np.isfinite(point.loss) for point in grid)
    if diverged:
        notes.append(f"{diverged:,} of {len(grid):,} heads of the grid have diverged")
    short = sum(not point.converged for point in grid) + (not refit.converged)
    if short:
        notes.append(
            f"{short:,} of {len(grid) + 1:,} searches ended before the minimum:"
            " more --max-iterations go on"
        )
    return notes
