"""Whether the output can show every character."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from clinit.extract.doctor.finding import Finding, ok, warning


def check_terminal(encoding: str | None, width: int) -> Iterator[Finding]:
    """Look at the encoding and the width of the output.

    Args:
        encoding: That of the standard output; None where it has none.
        width: Columns.
    """
    told = f"{encoding or 'no encoding'}, {width} columns"
    if not _is_unicode(encoding):
        yield warning(
            "terminal",
            f"{told}: names and figures lose characters that it lacks",
            "export PYTHONIOENCODING=utf-8",
        )
    elif width < 60:
        yield warning("terminal", f"{told}: tables are cut", "Widen it, or export COLUMNS=100")
    else:
        yield ok("terminal", told)


def _is_unicode(encoding: str | None) -> bool:
    try:
        return codecs.lookup(encoding or "ascii").name.startswith("utf")
    except LookupError:
        return False
