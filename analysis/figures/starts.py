"""Runs as the lines of a figure: those that differ only in their seed are one start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clinit.analysis.accuracy import mean
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.seeds import alike
from clinit.analysis.settings import labels
from clinit.words import visible


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """A way to start new rows: a run of each seed."""

    name: str
    """Short and distinct, without control characters."""
    runs: tuple[RunSummary, ...]

    @property
    def first(self) -> RunSummary:
        """The run that stands for the start where only one seed can be drawn."""
        return self.runs[0]


def starts_of(runs: Sequence[RunSummary]) -> list[Start]:
    """Return the starts of `runs`, in their order.

    A run that was recorded twice with the same seed is a start of its own.
    """
    parts = alike(runs)
    names = labels([part[0] for part in parts], without=("seed",))
    return [Start(visible(name), part) for name, part in zip(names, parts, strict=True)]


def best_of(starts: Sequence[Start], most: int) -> list[Start]:
    """Return the starts of the best A_all, means over seeds, at most so many, in their order."""
    if len(starts) <= most:
        return [*starts]
    scores = [_score(start) for start in starts]
    chosen = sorted(range(len(starts)), key=lambda place: -scores[place])[:most]
    return [starts[place] for place in sorted(chosen)]


def _score(start: Start) -> float:
    known = [value for run in start.runs if (value := mean(run.averaged["acc_all"])) is not None]
    return sum(known) / len(known) if known else float("-inf")


def seeds_remark(starts: Sequence[Start]) -> str:
    """Return what a line is where there are several seeds; empty where there are not."""
    counts = sorted({len(start.runs) for start in starts})
    if counts[-1] == 1:
        return ""
    return f"Means over {counts[-1] if len(counts) == 1 else f'up to {counts[-1]}'} seeds."


def seed_of(run: RunSummary) -> str:
    """Return the seed of a run in words: `seed 0`."""
    return f"seed {visible(str(run.config.get('seed', '-')))}"
