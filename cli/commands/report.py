"""`clinit report`: the results of runs, computed from their records alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clinit.analysis.figures import FigureName
from clinit.cli.frame.console import note, out, print_csv, print_json, say
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.options import AsJson
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.analysis.report.report import Report, View

WIDEST_PLOT = 120
"""Most columns of a plot: a wider one shows nothing more."""


Format = Literal["table", "json", "csv", "markdown", "latex"]
GainReading = Literal["equal-level", "random-best"]
"""The accuracy that the random run has to reach for the efficiency gain."""


@keeps("No half of a file is left: it is written whole or not at all.")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run records, or folders that hold some.", metavar="RUN..."),
    ],
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            "-f",
            help="Table; plain JSON or CSV for programs; means over seeds as a table for a text in"
            " Markdown or LaTeX (booktabs).",
        ),
    ] = "table",
    as_json: AsJson = False,
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
    means: Annotated[
        bool,
        typer.Option(
            "--means",
            help="Mean and deviation over seeds instead of runs, in JSON and CSV too.",
        ),
    ] = False,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="Show a second table: backward transfer, accuracy within tasks, loss spike, cost"
            " of the start. Markdown and LaTeX have it instead of the first; JSON and CSV hold"
            " both.",
        ),
    ] = False,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="Show the accuracy on the classes of each task after each task; JSON holds it.",
        ),
    ] = False,
    figure: Annotated[
        list[FigureName] | None,
        typer.Option(
            help="Draw this figure into --plot; repeatable. One that the records lack the facts"
            " of is left out of several, with a note.",
            show_default="curves",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the figure into this .png, .pdf or .svg file. Several figures: each gets"
            " -NAME before the ending.",
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
    curves: Annotated[bool, typer.Option(help="Draw the curves in the terminal.")] = True,
    gain: Annotated[
        GainReading,
        typer.Option(
            help="Efficiency gain: iterations of random over those of the run, both to 95 % of"
            " random's best new-task accuracy (equal-level), or random's to its best"
            " (random-best). JSON and CSV hold both."
        ),
    ] = "equal-level",
    skip_start: Annotated[
        bool,
        typer.Option("--skip-start", help="Leave the point before the first step out of averages."),
    ] = False,
) -> None:
    """Print accuracies, loss and efficiency gain of runs, from their records alone.

    Runs on other data, or measured on other images, have a table of their own.

    Columns, in % of test images: A_all, all classes seen, mean over evaluations;
    A_last, the same after the last task; A_inc, its mean over the ends of tasks;
    forg., forgetting of earlier tasks; A_0, the classes of a task before its first
    step; A_new, A_old, A_pre, means for the current task, for all before it, and
    for the base classes. L_new: loss on training images of the current task.
    gain: how many times sooner than random rows a run learns a task; ≥: at least.
    FWT: forward transfer. #: place in the ranking; run: number of the record.

    With --per-task: end, A_new after the last step; factor and shift of new rows.

    With --metrics: BWT, backward transfer; A_task, A_all with the task of each
    image given; spike, loss above its last level × iterations; init, seconds of
    all starts; share, their part of the run; A_base, A_pre among base classes
    alone.

    docs/metrics.md has the formulas.
    """
    from clinit.analysis.report.report import View, load_report

    if as_json and format not in ("table", "json"):
        raise typer.BadParameter(f"--json does not go with --format {format}")
    format = "json" if as_json else format
    if per_task and format != "table" and (means or format in ("markdown", "latex")):
        raise typer.BadParameter("means over seeds are not told by task: leave out --per-task")
    drawn = curves and format == "table" and (figure is None or FigureName.CURVES in figure)
    if plot is None and not {*(figure or ())} <= ({FigureName.CURVES} if drawn else set()):
        raise typer.BadParameter(
            "figures are files, the terminal draws the curves alone: add --plot FILE",
            param_hint="--figure",
        )
    loaded = load_report(runs, skip_start=skip_start)
    view = View(gain, by_seed, means, metrics, matrix, per_task, drawn)
    if plot is not None:
        for told in loaded.save_figures(plot, figure or [FigureName.CURVES]):
            note(told)
    if html is not None:
        loaded.save_html(html, reading=gain)
        note(f"the page is {html}")
    if format == "table":
        show(loaded, view)
    else:
        text = loaded.as_text(format, view)
        (print_json if format == "json" else print_csv)(text)


def show(report: Report, view: View) -> None:
    """Print the parts of a report from top to bottom."""
    for part in report.parts(view, width=min(out.width, WIDEST_PLOT)):
        out.print(part, crop=False)


def show_runs(places: Collection[Path], trained: Collection[Path]) -> None:
    """Print the table of records; notes of those just trained were printed before."""
    from clinit.analysis.report.report import View, load_report

    report = load_report([*places])
    new = {place.resolve() for place in trained}
    fresh = [run.record for run in report.runs if run.record.path in new]
    said = {note for record in fresh for note in record.info["notes"]}
    show(report, View(curves=False, said=said))
    out = next(iter(places)).parent
    say(f"{number_of(len(places), 'run record')} at {out}; curves: clinit report {out}")


def show_ranking(records: Sequence[Path]) -> None:
    """Print the runs at `records`, the best first, with mean and deviation over seeds.

    Notes of the records are left out: there may be some of every run.
    """
    from clinit.analysis.report.report import View, load_report

    report = load_report(records)
    said = {note for run in report.runs for note in run.record.info["notes"]}
    show(report, View(means=True, curves=False, said=said))
