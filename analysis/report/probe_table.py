"""The grid of a linear probe as a table, and its accuracy in words."""

from __future__ import annotations

from rich.table import Table as RichTable

from clinit.analysis.report.table import NOTHING, Cells, Column, Table
from clinit.headtrain.probe.protocol import Probe

NAMES = {"c": "C", "lam": "lambda"}


def grid_table(found: Probe) -> RichTable:
    """Return a table of held-out top-1 in percent, with a mark at the chosen penalty."""
    lines: list[Cells] = []
    for point in found.grid:
        steps = f"{point.iterations:,}" + ("" if point.converged else ", cut short")
        mark = " *" if point.c == found.chosen["c"] else ""
        top1 = f"{point.top1:.2f}{mark}"
        lines.append([f"{point.c:g}", top1, f"{point.held_out_loss:.3f}", steps])
    headings = ["C", "top-1", "held-out loss", "iterations"]
    return Table([Column(each, "number") for each in headings], [lines]).rich()


def grid_title(found: Probe) -> str:
    """Return a caption: the meaning of the numbers, and the rule of choice."""
    held = f"{found.held_out_rows:,} held-out training rows"
    return f"Top-1 on {held}, in % (* chosen: the least loss on them)"


def accuracy_lines(found: Probe) -> list[str]:
    """Return the accuracy of the probe, with the chosen settings and the elapsed time."""
    named = ((NAMES.get(name, name), value) for name, value in found.chosen.items())
    chosen = ", ".join(f"{name} {value:.3g}" for name, value in named)
    if found.val is None:
        top1 = NOTHING if found.held_out_top1 is None else f"{found.held_out_top1:.2f} %"
        words = f"Top-1 on held-out training rows: {top1}"
    else:
        top5 = "" if found.val.top5 is None else f", top-5 {found.val.top5:.2f} %"
        words = (
            f"On {found.val.rows:,} validation rows: top-1 {found.val.top1:.2f} %{top5}, mean over"
            f" classes {found.val.per_class:.2f} %"
        )
    seconds = f"In {found.seconds['total']:,.1f} s on {found.facts['device']}"
    return [f"{words} ({chosen})", seconds]
