"""The figure of the report inside the page: for paper, and where no script runs.

It is an image of its own, not a part of the page: nothing in it can run or reach the page's
styles. The same runs give the same bytes.
"""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from collections.abc import Sequence
from urllib.parse import quote

import numpy as np
import polars as pl
from matplotlib import rc_context

from clinit.analysis.figure import COLOURS, Style, figure
from clinit.analysis.page.curves import FEWEST, thin
from clinit.analysis.page.looks import Group, groups
from clinit.analysis.run_summary import RunSummary

WIDTH = 1.75
"""Of a line on the screen, in pixels: matplotlib measures dashes in widths of their line."""
POINTS = 5_000
"""Points of all curves of one panel: more cannot be seen, and each takes some 20 bytes."""

_PLAIN = " !$&'()*+,-./:;=?@[]_~^`{|}"
"""Characters that stay in the address of the image: all but quotes, <, >, %, # and lines."""


def svg(runs: Sequence[RunSummary]) -> str:
    """Return the figure as SVG, its letters as text."""
    content = io.StringIO()
    most = max(FEWEST, POINTS // len(runs))
    thinned = [_thinned(run, most) for run in runs]
    looks = groups(runs)
    styles = [_style(next(look for look in looks if run in look.runs)) for run in runs]
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "clinit", "text.usetex": False}),
        warnings.catch_warnings(),
    ):
        # The browser has its own fonts, and the letters that those of matplotlib lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure(thinned, styles).savefig(
            content, format="svg", metadata={"Date": None, "Creator": None}
        )
    return _shortened(content.getvalue())


def _style(group: Group) -> Style:
    """Return the look that the curves of the group have on the screen."""
    strokes = tuple(length / WIDTH for length in group.dash)
    line = (0, strokes) if strokes else "-"
    return Style(group.label, (("color", COLOURS[group.colour]), ("linestyle", line)))


def _thinned(run: RunSummary, most: int) -> RunSummary:
    """Return the run with the points that its curves in the figure need."""
    tasks = run.points.partition_by("task", maintain_order=True)
    parts = []
    for part in tasks:
        columns = (part[name].cast(pl.Float64).fill_null(np.nan) for name in DRAWN)
        kept = [thin(column.to_numpy(), max(4, most // len(tasks))) for column in columns]
        parts.append(part[np.unique(np.concatenate(kept)).tolist()])
    return dataclasses.replace(run, points=pl.concat(parts))


DRAWN = ("loss_new", "acc_new")
"""The curves of the figure."""


def _shortened(drawn: str) -> str:
    """Return SVG in fewer letters: places to a tenth of a point, which no eye tells apart."""
    drawn = re.sub(r'<g id="[^"]*">', "<g>", drawn)
    path = re.compile(r' d="(M [^"]*)"')
    return path.sub(
        lambda found: f' d="{_rounded(found[1])}"', re.sub(r"(\.\d\d)\d+", r"\1", drawn)
    )


def _rounded(path: str) -> str:
    tenths = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path)
    return re.sub(r"\s*\n(L )?", " ", tenths).strip()  # behind a first point lines need no letter


def address(drawn: str) -> str:
    """Return an image that holds itself: `data:image/svg+xml,…`."""
    text = re.sub(r"[\ufffe\uffff]", "\ufffd", drawn)  # what no XML may hold
    text = re.sub(r"\s*\n\s*", " ", text[text.index("<svg") :])
    return "data:image/svg+xml," + quote(text, safe=_PLAIN.replace("&", "")).replace("%20", " ")
