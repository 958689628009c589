"""By what the curves of the page are told apart, and by what they are switched off.

Runs that differ only in their seed look alike. Initialisations have colours; what else differs
has dashes, so that the curves read without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clinit.analysis.figure import COLOURS
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, differences, phrase, shown

DASHES: tuple[tuple[int, ...], ...] = ((), (7, 3), (2, 3), (9, 3, 2, 3), (14, 4), (5, 2, 2, 2))
"""Lengths of strokes and gaps, in pixels; the first is a solid line."""
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
    """Return the runs in groups that look alike, in the order of their first runs."""
    names = _names(runs)
    found: dict[tuple[str, ...], list[RunSummary]] = {}
    for run in runs:
        key = (run.init, _text(run, "scale"), *(shown(run, name) for name in names))
        found.setdefault(key, []).append(run)
    inits = list(dict.fromkeys(key[0] for key in found))
    variants = [[key for key in found if key[0] == init] for init in inits]
    one_colour_each = len(inits) > 1 and max(map(len, variants)) <= len(DASHES)
    made = []
    for number, (key, group) in enumerate(found.items()):
        colour, dash = number, number // len(COLOURS)
        if one_colour_each and len(inits) <= len(COLOURS):
            colour = inits.index(key[0])
            dash = variants[colour].index(key)
        label = _label(group[0], names, runs)
        place = (colour % len(COLOURS), DASHES[dash % len(DASHES)])
        made.append(Group(label, *place, tuple(group)))
    return made


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


def _names(runs: Sequence[RunSummary]) -> list[str]:
    return [name for name in differences(runs).names if name not in ("seed", "run")]


def _text(run: RunSummary, name: str) -> str:
    if name == "init":
        return run.init
    if name == "scale":
        return NOTHING if run.init == "random" else run.scale
    return shown(run, name)


def _label(run: RunSummary, names: Sequence[str], runs: Sequence[RunSummary]) -> str:
    scales = {_text(other, "scale") for other in runs} - {NOTHING}
    scale = _text(run, "scale")
    parts = [scale] if len(scales) > 1 and scale != NOTHING else []
    parts += [phrase(run, name) for name in names if shown(run, name) != NOTHING]
    return run.init + (f" ({', '.join(parts)})" if parts else "")
