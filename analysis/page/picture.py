"""The curves of the report as a figure inside the page: for paper, and where no script runs.

It is an image of its own, not a part of the page: nothing in it can run or reach the page's
styles. The same runs give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from urllib.parse import quote

from matplotlib import rc_context

from clinit.analysis.figures.curves import figure
from clinit.analysis.figures.starts import starts_of
from clinit.analysis.figures.strokes import MOST_COLUMNS
from clinit.analysis.run_summary import RunSummary

COLUMNS = 1_000
"""Columns into which all lines of a panel are thinned: the page must not grow with the runs."""
FEWEST = 40
_PLAIN = " !$'()*+,-./:;=?@[]_~^`{|}"
"""Characters that stay in the address of the image: all but quotes, &, <, >, %, # and lines."""


def svg(runs: Sequence[RunSummary]) -> str:
    """Return the figure as SVG, its letters as text."""
    content = io.StringIO()
    columns = min(MOST_COLUMNS, max(FEWEST, COLUMNS // len(starts_of(runs))))
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "clinit", "text.usetex": False}),
        warnings.catch_warnings(),
    ):
        # The browser has its own fonts, and the letters that those of matplotlib lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        drawn = figure(runs, columns=columns)
        drawn.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return _shortened(content.getvalue())


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
    return "data:image/svg+xml," + quote(text, safe=_PLAIN).replace("%20", " ")
