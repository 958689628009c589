"""Runs on the same data: the same base and new classes, features, and images measured on.

What is measured on other data is not ranked with them. Where a cache lies is no part of its data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError

Drawn = TypeVar("Drawn")
Runs = tuple[RunSummary, ...]


def by_data(runs: Sequence[RunSummary]) -> list[Runs]:
    """Return the runs of each data in their order; those measured on test images first."""
    parts: dict[str, list[RunSummary]] = {}
    for run in runs:
        parts.setdefault(run.data, []).append(run)
    ordered = sorted(parts.values(), key=lambda part: part[0].is_held_out)
    return [tuple(part) for part in ordered]


def headings(parts: Sequence[Runs]) -> list[str]:
    """Return a heading for each part, its data in words; nothing where there is one part only.

    Where the words of two parts are alike, they say where the caches lie.
    """
    if len(parts) < 2:
        return [""] * len(parts)
    firsts = [part[0] for part in parts]
    names = [_name(run) for run in firsts]
    return [
        f"Data {number} of {len(parts)}: "
        + (_name(run, path=True) if names.count(name) > 1 else name)
        for number, (run, name) in enumerate(zip(firsts, names, strict=True), start=1)
    ]


def stacked(runs: Sequence[RunSummary], render: Callable[[Runs], RenderableType]) -> RenderableType:
    """Return what `render` makes of the runs of each data, one below the other."""
    parts = by_data(runs)
    if len(parts) < 2:
        return render(tuple(runs))
    pieces: list[RenderableType] = []
    for heading, part in zip(headings(parts), parts, strict=True):
        above = f"\n{heading}" if pieces else heading
        pieces += [Text(above, style="bold underline"), render(part)]
    return Group(*pieces)


def drawn(draws: Sequence[Callable[[], Drawn]]) -> list[Drawn | RecordError]:
    """Return what each data's call draws; in the place of what its records lack, the error.

    Raises:
        RecordError: If none of them can be drawn.
    """
    found: list[Drawn | RecordError] = []
    for draw in draws:
        try:
            found.append(draw())
        except RecordError as error:
            found.append(error)
    errors = [each for each in found if isinstance(each, RecordError)]
    if len(errors) == len(found):
        raise errors[0]
    return found


def _name(run: RunSummary, *, path: bool = False) -> str:
    """Return the data of a run in words, with the names or the whole paths of the caches."""
    info = run.record.info
    sides = [side.get("path") for side in (info.get("base", {}), info.get("new", {}))]
    found = [str(side) if path else Path(side).name for side in sides if side]
    return ", on ".join(filter(None, [" → ".join(found), run.measured_on]))
