"""What the page shows, as plain values: made from the report alone, the same for the same runs.

Every text is printable: what a browser would obey (an override of the writing direction, a line
separator) is written out, as on a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from clinit.analysis.conclusion import conclusions
from clinit.analysis.efficiency import Reading
from clinit.analysis.page.asked import asked, title
from clinit.analysis.page.curves import curves
from clinit.analysis.page.looks import fields, groups
from clinit.analysis.page.matrix import matrix
from clinit.analysis.page.record import repetition
from clinit.analysis.page.results import tables, terms
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import labels
from clinit.words import visible

PageData = dict[str, Any]


def page_data(
    runs: Sequence[RunSummary], notes: Sequence[str], reading: Reading = "equal-level"
) -> PageData:
    """Return what the page shows: strings, numbers, lists and mappings by name, as in JSON.

    Args:
        runs: In the order of the report.
        notes: Those of the report.
        reading: What the gain is compared by.
    """
    rows = [run.row() for run in runs]
    facts = asked(runs)
    facts["data"] += [["result", sentence] for sentence in conclusions(runs)]
    choices, look = fields(runs), groups(runs)
    content: PageData = {
        "title": title(runs),
        "asked": facts,
        "tables": tables(runs, rows, reading),
        "terms": terms(runs),
        "fields": [{"name": each.name, "values": each.values} for each in choices],
        "looks": [{"label": each.label, "colour": each.colour, "dash": each.dash} for each in look],
        "curves": curves(runs),
        "runs": [
            {
                "label": label,
                "look": next(n for n, group in enumerate(look) if run in group.runs),
                "choices": [field.of(run) for field in choices],
                "matrix": matrix(row),
                "record": repetition(run),
            }
            for run, row, label in zip(runs, rows, labels(runs), strict=True)
        ],
        "notes": list(notes),
    }
    printed: PageData = _printable(content)
    return printed


def _printable(value: Any) -> Any:
    """Return `value` with control characters written out, and None for what is no number."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _printable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(each) for each in value]
    return value
