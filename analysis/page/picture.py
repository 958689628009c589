"""The figure of the report inside the page: for paper, and where no script runs.

It is an image of its own, not a part of the page: nothing in it can run or reach the page's
styles. The same runs give the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from urllib.parse import quote

from matplotlib import rc_context

from clinit.analysis.report import Report

_PLAIN = " !$&'()*+,-./:;=?@[]_~^`{|}"
"""Characters that stay in the address of the image: all but quotes, <, >, %, # and lines."""


def svg(report: Report) -> str:
    """Return the figure as SVG, its letters as text."""
    content = io.StringIO()
    settings = {"svg.fonttype": "none", "svg.hashsalt": "clinit", "text.usetex": False}
    with rc_context(settings), warnings.catch_warnings():
        # The browser has its own fonts, and the letters that those of matplotlib lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        report.figure().savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return content.getvalue()


def address(drawn: str) -> str:
    """Return an image that holds itself: `data:image/svg+xml,…`."""
    text = re.sub(r"[\ufffe\uffff]", "\ufffd", drawn)  # what no XML may hold
    text = re.sub(r"\s*\n\s*", " ", text[text.index("<svg") :])
    return "data:image/svg+xml," + quote(text, safe=_PLAIN.replace("&", "")).replace("%20", " ")
