"""The grid of a linear probe as a table, and its accuracy in words."""

from __future__ import annotations

import math

from rich.table import Table as RichTable

from clinit.analysis.report.table import NOTHING, Cells, Column, Table
from clinit.headtrain.probe.protocol import GridPoint, Probe

NAMES = {"lr": "learning rate", "weight_decay": "weight decay", "c": "C"}


def grid_table(found: Probe) -> RichTable:
    """Return held-out top-1 in percent, the chosen settings marked.

    Batches: a line per learning rate, a column per weight decay. L-BFGS: a line per C.
    """
    return _by_c(found) if found.config.by == "lbfgs" else _by_rate(found)


def _by_rate(found: Probe) -> RichTable:
    rates, decays = (
        sorted({point.settings[name] for point in found.grid}) for name in ("lr", "weight_decay")
    )
    at = {(point.settings["lr"], point.settings["weight_decay"]): point for point in found.grid}
    columns = [
        Column("learning rate", "number"),
        *(Column(f"decay {decay:g}", "number") for decay in decays),
    ]
    lines: list[Cells] = [
        [f"{rate:g}", *(_cell(found, at[rate, decay]) for decay in decays)] for rate in rates
    ]
    return Table(columns, [lines]).rich()


def _by_c(found: Probe) -> RichTable:
    columns = [Column(name, "number") for name in ("C", "top-1", "loss", "iterations")]
    lines: list[Cells] = [
        [
            f"{point.settings['c']:g}",
            _cell(found, point),
            f"{point.loss:.3f}",
            f"{point.iterations:,}" + ("" if point.converged else ", cut short"),
        ]
        for point in found.grid
    ]
    return Table(columns, [lines]).rich()


def grid_title(found: Probe) -> str:
    """Return what the numbers of the grid are, and which one was chosen."""
    first = "smallest C" if found.config.by == "lbfgs" else "smallest rate with the largest decay"
    return (
        f"Top-1 on {found.held_out_rows:,} held-out training rows, in % (* chosen: of the best the"
        f" {first})"
    )


def _cell(found: Probe, point: GridPoint) -> str:
    if not math.isfinite(point.loss):
        return "diverged"
    mark = " *" if dict(point.settings) == dict(found.chosen) else ""
    return f"{point.top1:.2f}{mark}"


def accuracy_lines(found: Probe) -> list[str]:
    """Return what the probe says, in one line or two."""
    chosen = ", ".join(f"{NAMES[name]} {value:g}" for name, value in found.chosen.items())
    seconds = f"{found.seconds['total']:,.1f} s on {found.facts['device']}"
    if found.val is None:
        held_out = found.held_out_top1
        number = NOTHING if held_out is None else f"{held_out:.2f} %"
        return [f"Top-1 on held-out training rows: {number} ({chosen})", f"In {seconds}"]
    parts = [f"top-1 {found.val.top1:.2f} %"]
    if found.val.top5 is not None:
        parts.append(f"top-5 {found.val.top5:.2f} %")
    parts.append(f"mean over classes {found.val.per_class:.2f} %")
    return [
        f"On {found.val.rows:,} validation rows: {', '.join(parts)} ({chosen})",
        f"In {seconds}",
    ]
