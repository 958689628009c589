"""By what the curves of the page are told apart, and by what they are switched off.

Runs that differ only in their seed look alike. Initialisations have colours; what else differs
has dashes, so that the curves read without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clinit.analysis.figures.line import starts_of
from clinit.analysis.figures.style import COLOURS, looks_of
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import NOTHING, differences, shown

DASHES: Mapping[str, tuple[int, ...]] = {"-": (), "--": (7, 3), "-.": (9, 3, 2, 3), ":": (2, 3)}
"""Lengths of strokes and gaps, in pixels, of the lines of the figures."""
MOST_VALUES = 24
"""A setting of more values has no switch: the curves could not be told apart either."""


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    colour: int
    """Its place in the colours of the figure."""
    dash: tuple[int, ...]
    runs: tuple[RunSummary, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A setting by which runs are switched on and off."""

    name: str
    values: tuple[str, ...]

    def of(self, run: RunSummary) -> int | None:
        """Return the place of the run's value; None where the setting means nothing to it."""
        text = _text(run, self.name)
        return self.values.index(text) if text != NOTHING else None


def groups(runs: Sequence[RunSummary]) -> list[Group]:
    """Return the runs in groups that look alike, as in the figures, in the order of the runs."""
    starts = starts_of(runs)
    return [
        Group(start.name, COLOURS.index(look.colour), DASHES[look.line], start.runs)
        for start, look in zip(starts, looks_of(starts), strict=True)
    ]


def fields(runs: Sequence[RunSummary]) -> list[Field]:
    """Return the settings that tell runs apart: initialisation and scale, the seed last."""
    names = dict.fromkeys(name for name in differences(runs).names if name != "run")
    ordered = sorted(names, key=lambda name: name == "seed")
    found = []
    for name in ("init", "scale", *ordered):
        texts = dict.fromkeys(_text(run, name) for run in runs)
        values = tuple(text for text in texts if text != NOTHING)
        if 1 < len(values) <= MOST_VALUES:
            found.append(Field(name, values))
    return found


def _text(run: RunSummary, name: str) -> str:
    if name == "init":
        return run.init
    if name == "scale":
        return NOTHING if run.init == "random" else run.scale
    return shown(run, name)
