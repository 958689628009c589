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
from clinit.words import number_of, visible

if TYPE_CHECKING:
    from clinit.analysis.report.report import Report

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
    from clinit.analysis.report.report import load_report

    if as_json and format not in ("table", "json"):
        raise typer.BadParameter(f"--json does not go with --format {format}")
    format = "json" if as_json else format
    if per_task and format != "table" and (means or format in ("markdown", "latex")):
        raise typer.BadParameter("means over seeds are not told by task: leave out --per-task")
    is_table = format == "table"
    drawn = curves and is_table and (figure is None or FigureName.CURVES in figure)
    if plot is None and not {*(figure or ())} <= ({FigureName.CURVES} if drawn else set()):
        raise typer.BadParameter(
            "figures are files, the terminal draws the curves alone: add --plot FILE",
            param_hint="--figure",
        )
    loaded = load_report(runs, skip_start=skip_start)
    if plot is not None:
        _save(loaded, list(dict.fromkeys(figure or [FigureName.CURVES])), plot)
    if html is not None:
        loaded.save_html(html, reading=gain)
        note(f"the page is {html}")
    if format == "json":
        print_json(loaded.means_json() if means else loaded.json())
    elif format == "csv":
        print_csv(loaded.means_csv() if means else loaded.csv(per_task=per_task))
    elif format == "markdown":
        print_csv(loaded.markdown(reading=gain, metrics=metrics))
    elif format == "latex":
        print_csv(loaded.latex(reading=gain, metrics=metrics))
    else:
        show(
            loaded,
            gain=gain,
            per_task=per_task,
            by_seed=by_seed,
            means=means,
            metrics=metrics,
            matrix=matrix,
            curves=drawn,
        )


def _save(report: Report, figures: Sequence[FigureName], plot: Path) -> None:
    """Draw figures into files; note those that the records lack the facts of.

    Raises:
        RecordError: If none of them can be drawn.
    """
    from clinit.analysis.report.settings import headings
    from clinit.errors import RecordError

    parts = report.by_data()
    told: list[str] = []
    errors: list[RecordError] = []
    for name in figures:
        for number, heading in enumerate(headings([part.runs for part in parts])):
            of_figure = f"-{name}" if len(figures) > 1 else ""
            of_data = f"-data{number + 1}" if heading else ""
            file = plot.with_name(f"{plot.stem}{of_figure}{of_data}{plot.suffix}")
            what = "the curves are" if name is FigureName.CURVES else f"{name} is"
            try:
                parts[number].save_figure(file, name)
                told.append(f"{what} drawn in {file}")
            except RecordError as error:
                errors.append(error)
                where = f" for {heading}" if heading else ""
                told.append(f"{what} not drawn{where}: {error}. {error.remedy}")
    if len(errors) == len(told):
        raise errors[0]
    for text in told:
        note(text)


def show(
    report: Report,
    *,
    gain: GainReading = "equal-level",
    per_task: bool = False,
    by_seed: bool = False,
    means: bool = False,
    metrics: bool = False,
    matrix: bool = False,
    curves: bool = True,
    said: Collection[str] = (),
) -> None:
    """Print a report: tables, further metrics and tasks if asked for, diagnoses, notes, curves.

    Where there are several seeds or trials of a search, or `means` are asked for, the table ranks
    means over seeds. Notes that were `said` before are not repeated.
    """
    from rich.text import Text

    ranked = means or report.is_ranked
    if ranked:
        out.print(report.ranking(reading=gain))
    if by_seed or not ranked:
        out.print(report.table(reading=gain))
    if metrics:
        say()
        out.print(report.metrics_table(ranked=ranked))
    if matrix:
        say()
        out.print(report.matrix(width=min(out.width, WIDEST_PLOT)))
    if per_task:
        out.print(report.task_table(reading=gain))
    if (diagnoses := report.diagnosis_table(per_task=per_task)) is not None:
        say()
        out.print(diagnoses)
    out.print(Text("Columns: clinit report --help", style="dim"))
    for line in report.legend:
        out.print(Text(line, style="dim"), soft_wrap=True)
    for remark in report.notes:
        if remark not in said:
            out.print(Text.assemble(("Note: ", "bold cyan"), visible(remark)))
    if curves:
        say()
        out.print(report.curves(width=min(out.width, WIDEST_PLOT)))
    for sentence in report.conclusions:
        out.print(Text(visible(sentence)))


def show_runs(places: Collection[Path], trained: Collection[Path]) -> None:
    """Print the table of records; notes of those just trained were printed before."""
    from clinit.analysis.report.report import load_report

    report = load_report([*places])
    new = {place.resolve() for place in trained}
    fresh = [run.record for run in report.runs if run.record.path in new]
    said = {note for record in fresh for note in record.info["notes"]}
    show(report, curves=False, said=said)
    out = next(iter(places)).parent
    say(f"{number_of(len(places), 'run record')} at {out}; curves: clinit report {out}")


def show_ranking(records: Sequence[Path]) -> None:
    """Print the runs at `records`, the best first, with mean and deviation over seeds.

    Notes of the records are left out: there may be some of every run.
    """
    from clinit.analysis.report.report import load_report

    report = load_report(records)
    said = {note for run in report.runs for note in run.record.info["notes"]}
    show(report, means=True, curves=False, said=said)
