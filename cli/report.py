"""`clinit report`: the results of runs, computed from their records alone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How the report is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class GainReading(StrEnum):
    """Which iteration of the random run the efficiency gain counts from."""

    PEAK = "peak"
    LEVEL = "level"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run records, or folders that hold some.", metavar="RUN..."),
    ],
    format: Annotated[
        Format, typer.Option("--format", "-f", help="Table, or plain JSON or CSV for programs.")
    ] = Format.TABLE,
    per_task: Annotated[
        bool, typer.Option("--per-task", help="Each task too (CSV: a line a run and task).")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the curves into this .png, .pdf or .svg file.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    curves: Annotated[
        bool, typer.Option(help="Draw loss and accuracy on the new task in the terminal.")
    ] = True,
    gain: Annotated[
        GainReading,
        typer.Option(
            help="Efficiency gain from the iteration at which random is best (peak, the paper's),"
            " or at which random too reaches 95 % of that (level). JSON and CSV hold both."
        ),
    ] = GainReading.PEAK,
    skip_start: Annotated[
        bool,
        typer.Option("--skip-start", help="Average without the point before the first step."),
    ] = False,
) -> None:
    """Print accuracies, loss and efficiency gain of runs, from their records alone."""
    import sys

    from rich.console import Console
    from rich.text import Text

    from clinit.analysis.report import load_report

    loaded = load_report(runs, skip_start=skip_start)
    if plot is not None:
        loaded.save_figure(plot)
        Console(stderr=True).print(Text(f"Curves drawn to {plot}"), soft_wrap=True)
    if format is Format.JSON:
        sys.stdout.write(loaded.json() + "\n")
        return
    if format is Format.CSV:
        sys.stdout.write(loaded.csv(per_task=per_task))
        return
    console = Console()
    console.print(loaded.table(width=console.width, reading=gain.value))
    if per_task:
        console.print(loaded.task_table(width=console.width, reading=gain.value))
    for note in loaded.notes:
        console.print(Text(f"Note: {note}"))
    if curves:
        console.print()
        console.print(loaded.curves(width=min(console.width, 120)))
