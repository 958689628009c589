"""`clinit report`: print the results of runs, from their records only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.analysis.figures import FigureName
from clinit.analysis.metrics.efficiency import Reading
from clinit.analysis.report import Format, View
from clinit.cli.frame.console import note, print_csv, print_json
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.options import AsJson, fills, option
from clinit.cli.frame.results import show
from clinit.files.paths import check_writable

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(View):
    """Options of `clinit report`."""

    as_json: bool = False
    figure: Sequence[FigureName] | None = None
    plot: Path | None = None
    html: Path | None = None
    skip_start: bool = False
    gain: Reading = "equal-level"


_OPTIONS = {
    "format": option(
        Format,
        "Table for the terminal; JSON or CSV for programs; Markdown table of means over seeds.",
        None,
        *("--format", "-f"),
    ),
    "as_json": AsJson,
    "per_task": option(
        bool, "Also show each task (CSV: one line per run and task).", None, "--per-task"
    ),
    "by_seed": option(
        bool,
        "If there are several seeds, show each run, not only mean and deviation.",
        *(None, "--by-seed"),
    ),
    "means": option(
        bool, "Mean and deviation over seeds instead of runs, in JSON and CSV too.", None, "--means"
    ),
    "metrics": option(
        bool,
        "Show a second table: backward transfer, accuracy within tasks, loss spike, cost of the"
        " start. Markdown contains only this table; JSON and CSV contain both.",
        *(None, "--metrics"),
    ),
    "figure": option(
        list[FigureName] | None,
        "Draw this figure into --plot; repeatable. If the records lack the data of one of several"
        " figures, it is skipped with a note.",
        show_default="curves",
    ),
    "plot": option(
        Path | None,
        "Draw the figure into this .png, .pdf or .svg file. With several figures, -NAME is inserted"
        " before the suffix.",
        metavar="FILE",
        dir_okay=False,
    ),
    "html": option(
        Path | None,
        "Write the whole report into this .html file: tables, zoomable curves, settings, commands."
        " The page loads no other files.",
        metavar="FILE",
        dir_okay=False,
    ),
    "curves": option(bool, "Draw the curves in the terminal."),
    "gain": option(
        Reading,
        "Efficiency gain: iterations of random rows over iterations of the run, both to 95 % of"
        " random's best new-task accuracy (equal-level), or random's to its best (random-best)."
        " JSON and CSV contain both.",
    ),
    "skip_start": option(
        bool, "Leave the evaluation before the first step out of averages.", None, "--skip-start"
    ),
}


@keeps("No partial file is left: it is written completely or not at all.")
@fills("asked", Asked, _OPTIONS)
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run records, or folders of run records.", metavar="RUN...")
    ],
    asked: Asked,
) -> None:
    """Print accuracies, loss and efficiency gain of runs, from their records only.

    Runs on different data or test images are shown in separate tables.

    Columns, in % of test images: A_all, accuracy on all classes so far, mean over
    evaluations; A_last, A_all after the last task; A_inc, mean of A_all over the
    ends of tasks; forg., forgetting of earlier tasks; A_0, accuracy on a task's
    classes before its first step; A_new, A_old, A_pre, mean accuracy on the current
    task, on all earlier classes, and on the base classes. L_new: loss on training
    images of the current task. gain: how many times sooner than with random rows a
    task is learnt; ≥: at least. FWT: forward transfer. #: rank; run: number of the
    record.

    With --per-task: end, A_new after the last step; factor and shift of new rows.

    With --metrics: BWT, backward transfer; A_task, A_all if the task of each image
    is known; spike, loss above its last level, summed over iterations; init,
    seconds of all starts; share, their part of the run's time; A_base, A_pre if
    only base classes compete.

    docs/metrics.md has the formulas.
    """
    view = _checked(asked)
    for name, file in (("--plot", asked.plot), ("--html", asked.html)):
        if file is not None:
            check_writable(file, name)
    from clinit.analysis.report.report import load_runs

    loaded = load_runs(*runs, skip_start=asked.skip_start, reading=asked.gain)
    if asked.plot is not None:
        from clinit.analysis.figures.gallery import save_figures

        for told in save_figures(loaded.data, asked.plot, asked.figure or [FigureName.CURVES]):
            note(told)
    if asked.html is not None:
        loaded.save_html(asked.html)
        note(f"the page is {asked.html}")
    if view.format == "table":
        show(loaded, view)
    else:
        (print_json if view.format == "json" else print_csv)(loaded.as_text(view))


def _checked(asked: Asked) -> View:
    if asked.as_json and asked.format not in ("table", "json"):
        raise typer.BadParameter(f"--json does not go with --format {asked.format}")
    form: Format = "json" if asked.as_json else asked.format
    if asked.per_task and form != "table" and (asked.means or form == "markdown"):
        raise typer.BadParameter("means over seeds do not exist by task: leave out --per-task")
    figures = {*(asked.figure or ())}
    drawn = asked.curves and form == "table" and (not figures or FigureName.CURVES in figures)
    if asked.plot is None and not figures <= ({FigureName.CURVES} if drawn else set()):
        raise typer.BadParameter(
            "the terminal draws only curves: add --plot FILE to write other figures",
            param_hint="--figure",
        )
    return replace(asked, format=form, curves=drawn)
