"""`clinit report`: the results of runs, computed from their records alone."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.console import note, out, print_csv, print_json, say
from clinit.cli.interruption import keeps
from clinit.extract.visible import visible

if TYPE_CHECKING:
    from clinit.analysis.report import Report

WIDEST_PLOT = 120
"""Most columns of a plot: a wider one shows nothing more."""


class Format(StrEnum):
    """Formats of the report."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class GainReading(StrEnum):
    """The accuracy that the random run has to reach for the efficiency gain."""

    EQUAL_LEVEL = "equal-level"
    RANDOM_BEST = "random-best"


@keeps("No half of a file is left: it is written whole or not at all.")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run records, or folders that hold some.", metavar="RUN..."),
    ],
    format: Annotated[
        Format, typer.Option("--format", "-f", help="Table, or plain JSON or CSV for programs.")
    ] = Format.TABLE,
    per_task: Annotated[
        bool,
        typer.Option("--per-task", help="Show each task too (CSV: one line per run and task)."),
    ] = False,
    by_seed: Annotated[
        bool,
        typer.Option(
            "--by-seed",
            help="Show each run where there are several seeds, not only their mean and deviation.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the curves into this .png, .pdf or .svg file.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write the whole report into this .html file: tables, curves to zoom into,"
            " settings, commands. It loads nothing.",
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
            help="Efficiency gain: iterations of random over those of the run, both to 95 % of"
            " random's best new-task accuracy (equal-level), or random's to its best"
            " (random-best). JSON and CSV hold both."
        ),
    ] = GainReading.EQUAL_LEVEL,
    skip_start: Annotated[
        bool,
        typer.Option("--skip-start", help="Leave the point before the first step out of averages."),
    ] = False,
) -> None:
    """Print accuracies, loss and efficiency gain of runs, from their records alone."""
    from clinit.analysis.report import load_report

    loaded = load_report(runs, skip_start=skip_start)
    if plot is not None:
        loaded.save_figure(plot)
        note(f"the curves are drawn in {plot}")
    if html is not None:
        loaded.save_html(html, reading=gain.value)
        note(f"the page is {html}")
    if format is Format.JSON:
        print_json(loaded.json())
    elif format is Format.CSV:
        print_csv(loaded.csv(per_task=per_task))
    else:
        show(loaded, gain=gain, per_task=per_task, by_seed=by_seed, curves=curves)


def show(
    report: Report,
    *,
    gain: GainReading = GainReading.EQUAL_LEVEL,
    per_task: bool = False,
    by_seed: bool = False,
    curves: bool = True,
    said: Collection[str] = (),
) -> None:
    """Print a report: the table, the tasks if asked for, diagnoses, notes and curves.

    Where there are several seeds, the table is that of means and deviations over seeds. Notes
    that were `said` before are not repeated.
    """
    from rich.text import Text

    if report.has_several_seeds:
        out.print(report.ranking(width=out.width, reading=gain.value))
    if by_seed or not report.has_several_seeds:
        out.print(report.table(width=out.width, reading=gain.value))
    if per_task:
        out.print(report.task_table(width=out.width, reading=gain.value))
    if report.is_diagnosed:
        say()
        out.print(report.diagnosis_table(per_task=per_task))
    for remark in report.notes:
        if remark in said:
            continue
        out.print(Text.assemble(("Note: ", "bold cyan"), visible(remark)))
    if curves:
        say()
        out.print(report.curves(width=min(out.width, WIDEST_PLOT)))
