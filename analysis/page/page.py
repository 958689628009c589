"""The HTML of the page: one file that loads nothing.

The page contains data as JSON in which every character with a meaning in HTML is escaped; scripts
insert data only as text. The page allows only scripts and styles with its own digests, so that
markup in data would have no effect.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from clinit.errors import RecordError
from clinit.files.lock import write_in_turn
from clinit.files.paths import check_writable

FORMATS = (".html", ".htm")
SCRIPTS = ("text", "look", "table", "decode", "chart", "hover", "curves", "matrix", "runs", "page")
"""In this order: a script may use the scripts before it."""
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def save_page(path: Path, make: Callable[[], str]) -> None:
    """Write the page that `make` returns to `path`.

    Raises:
        RecordError: If `path` does not end in .html; `make` is not called then.
        ClinitError: If the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise RecordError(
            f"cannot write a page to {path}: its ending is {path.suffix or 'missing'!r}",
            remedy="Give a file name that ends in .html.",
        )
    check_writable(path)
    content = make().encode()
    write_in_turn(path, lambda draft: draft.write_bytes(content))


def html_of(data: Mapping[str, Any]) -> str:
    """Return the page that shows `data`."""
    style = read("uplot/uPlot.min.css") + "\n" + read("template/page.css")
    licence = "/*! uPlot " + read("uplot/LICENSE").replace("*/", "") + "\n*/\n"
    library = licence + read("uplot/uPlot.iife.min.js")
    script = '"use strict";\n' + "\n".join(read(f"template/{name}.js") for name in SCRIPTS)
    parts = {
        "policy": policy([library, script], [style]),
        "title": html.escape(data["title"]),
        "style": style,
        "data": escaped_json(data),
        "library": library,
        "script": script,
    }
    return fill("template/page.html", parts)


def fill(template: str, parts: Mapping[str, str]) -> str:
    """Return a template with its slots filled in one pass, so that slots in data stay as text."""
    return _SLOT.sub(lambda slot: parts[slot[1]], read(template))


def escaped_json(data: Mapping[str, Any]) -> str:
    r"""Return JSON in ASCII without any character with a meaning in HTML: `<` is \u003c."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", text)


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return the content security policy: these scripts and styles, and no request."""
    allowed = {"script-src": scripts, "style-src": styles}
    words = ["default-src 'none'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    for directive, texts in allowed.items():
        digests = (base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts)
        words.append(" ".join([directive, *(f"'sha256-{digest}'" for digest in digests)]))
    return "; ".join(words)


def read(name: str) -> str:
    """Return a part of the page, from a file in this folder."""
    return files("clinit.analysis.page").joinpath(name).read_text(encoding="utf-8")
