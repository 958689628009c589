"""From what the page shows to HTML: one file that loads nothing.

Data stand in the page as JSON in which every character that HTML could read is escaped, and reach
the document as text alone. Only scripts and styles with the page's own digests may run, so that
markup that came in all the same would stay without effect.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from matplotlib import rc_context

from clinit.analysis.figures.curves import figure
from clinit.analysis.figures.line import starts_of
from clinit.analysis.figures.style import MOST_COLUMNS
from clinit.analysis.metrics.efficiency import Reading
from clinit.analysis.page.data import PageData, page_data
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError
from clinit.files.commit import commit_file
from clinit.files.lock import claim_file

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
        # The browser has its own fonts, also for the letters that matplotlib's lack.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        drawn = figure(runs, columns=columns)
        drawn.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return _shortened(content.getvalue())


def _shortened(drawn: str) -> str:
    """Return SVG in fewer letters: places to a tenth of a point, which no eye can see."""
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


FORMATS = (".html", ".htm")
SCRIPTS = ("text", "look", "table", "decode", "chart", "hover", "curves", "matrix", "runs", "page")
"""In this order: a script may use what stands before it."""
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def page(runs: Sequence[RunSummary], notes: Sequence[str], reading: Reading = "equal-level") -> str:
    """Return the page of a report; arguments as in `page_data`."""
    return html_of(page_data(runs, notes, reading), address(svg(runs)))


def save_page(path: Path, make: Callable[[], str]) -> None:
    """Write the page that `make` returns to `path`.

    Raises:
        RecordError: If the file has not the ending of a page; it is not made then.
        ClinitError: If the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise RecordError(
            f"cannot write a page to {path}: its ending is {path.suffix or 'missing'!r}",
            remedy="Give a file name that ends in .html.",
        )
    content = make().encode()
    with claim_file(path, on_busy=lambda: None):
        commit_file(path, lambda draft: draft.write_bytes(content))


def html_of(data: PageData, picture: str) -> str:
    """Return the page that shows `data`, with `picture` as the address of its figure."""
    style = read("uplot/uPlot.min.css") + "\n" + read("template/page.css")
    licence = "/*! uPlot " + read("uplot/LICENSE").replace("*/", "") + "\n*/\n"
    library = licence + read("uplot/uPlot.iife.min.js")
    script = '"use strict";\n' + "\n".join(read(f"template/{name}.js") for name in SCRIPTS)
    parts = {
        "policy": policy([library, script], [style]),
        "title": html.escape(data["title"]),
        "style": style,
        "picture": html.escape(picture),
        "data": escaped_json(data),
        "library": library,
        "script": script,
    }
    return fill("template/page.html", parts)


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Return a template with its slots filled in one pass: filled slots are not searched."""
    return _SLOT.sub(lambda slot: parts[slot[1]], read(template))


def escaped_json(data: PageData) -> str:
    r"""Return JSON in ASCII without any character that HTML could read: `<` is \u003c."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return what a browser is allowed: these scripts and styles, and no request."""
    allowed = {"script-src": scripts, "style-src": styles}
    words = ["default-src 'none'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    for directive, texts in allowed.items():
        words.append(f"{directive} {' '.join(map(_digest, texts))}")
    return "; ".join(words)


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def read(name: str) -> str:
    """Return a part of the page, from a file next to this one."""
    return files("clinit.analysis.page").joinpath(name).read_text(encoding="utf-8")
