"""The columns of a table of the page that name the run of each line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.settings import NOTHING, SHORT, settings, shown

Cell = list[Any]
"""What is printed, what it is sorted by, and whether it is the best of comparable runs."""


def name_columns(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the columns of initialisation, scale and the settings in which runs differ."""
    return [
        {
            "heading": SHORT.get(name, name),
            "mark": "",
            "better": "neither",
            "meaning": _NAMED.get(name, "" if name not in SHORT else f"{name.replace('_', ' ')}."),
            "number": False,
        }
        for name in ("init", "scale", *names)
    ]


_NAMED = {
    "init": "How the rows of new classes start; the method, where a head is solved as a whole.",
    "scale": "How long the new rows are made.",
    "run": "The number of the run: nothing else tells it apart from another.",
    "lam": "λ, the ridge of the least squares.",
}


def name_cells(run: RunSummary, names: Sequence[str]) -> list[Cell]:
    """Return what a run has in these columns."""
    scale = NOTHING if run.init == "random" else run.scale
    values = settings(run)
    cells: list[Cell] = [[run.init, run.init], [scale, scale]]
    for name in names:
        text = shown(run, name)
        value = run.number if name == "run" else values.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        cells.append([text, value if number and text != NOTHING else text])
    return cells
