"""`clinit report`: print the results of runs, from their records only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.analysis.report import Format, View
from clinit.cli.frame.console import note, print_csv, print_json
from clinit.cli.frame.options import AsJson, fills, option
from clinit.cli.frame.process import keeps
from clinit.cli.frame.results import show, show_comparison
from clinit.files.paths import check_writable

if TYPE_CHECKING:
    from clinit.analysis.runs import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(View):
    """Options of `clinit report`."""

    columns: str = ""
    as_json: bool = False
    compare: str | None = None
    baseline: str | None = None
    best_of: str | None = None
    by: str | None = None
    figure: Sequence[str] | None = None
    plot: Path | None = None
    html: Path | None = None
    skip_start: bool = False


_COMPARISON = "Comparison"
_OPTIONS = {
    "format": option(
        Format,
        "Table for the terminal; JSON or CSV for programs; Markdown or LaTeX (booktabs) table of"
        " means over seeds.",
        None,
        *("--format", "-f"),
    ),
    "as_json": AsJson,
    "columns": option(
        str,
        "Columns in place of the default ones, such as acc_all,acc_new,gain,backward_transfer;"
        " docs/metrics.md lists them.",
        metavar="NAMES",
        show_default=False,
    ),
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
    "compare": option(
        str | None,
        "Print paired differences over seeds between the values of this setting (init, loss, lr)"
        " and --baseline, with 95 % intervals, wins, and p-values adjusted by Holm.",
        _COMPARISON,
        metavar="SETTING",
    ),
    "baseline": option(
        str | None,
        "Value of --compare to subtract.",
        _COMPARISON,
        metavar="VALUE",
    ),
    "best_of": option(
        str | None,
        "Keep the runs with the best values of these settings, such as lr,loss: chosen by A_all on"
        " held-out images if there are such runs (`clinit sweep --held-out`).",
        _COMPARISON,
        metavar="SETTINGS",
    ),
    "by": option(
        str | None,
        "Settings of which each value has its own choice of --best-of.",
        _COMPARISON,
        metavar="SETTINGS",
        show_default="init",
    ),
    "figure": option(
        list[str] | None,
        "Draw this figure into --plot; repeatable: curves, efficiency, or a column such as acc_old"
        " or forgetting. If the records lack the data of one of several figures, it is skipped with"
        " a note.",
        metavar="NAME",
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
    task is learnt; ≥: at least, <: at most. FWT: forward transfer. With --per-task:
    end, A_new after the last step; factor and shift of new rows.

    clinit report runs --compare init --baseline random --columns acc_all,gain

    docs/metrics.md has the formulas.
    """
    view = _checked(asked)
    for name, file in (("--plot", asked.plot), ("--html", asked.html)):
        if file is not None:
            check_writable(file, name)
    from clinit.analysis.report.measures import measures_of
    from clinit.analysis.runs import load_runs

    measures_of(view.columns)
    measures_of({*(asked.figure or ())} - {"curves", "efficiency"})
    loaded = load_runs(*runs, skip_start=asked.skip_start)
    if asked.best_of:
        loaded = loaded.best_of(asked.best_of, asked.by or "init")
    if asked.plot is not None:
        from clinit.analysis.figures.gallery import save_figures

        for told in save_figures(loaded.data, asked.plot, asked.figure or ["curves"]):
            note(told)
    if asked.html is not None:
        loaded.save_html(asked.html)
        note(f"the page is {asked.html}")
    if asked.compare and asked.baseline:
        show_comparison(
            loaded, loaded.comparison(asked.compare, asked.baseline, view.columns), view
        )
    else:
        _print(loaded, view)


def _print(loaded: Runs, view: View) -> None:
    if view.format == "table":
        show(loaded, view)
    else:
        (print_json if view.format == "json" else print_csv)(loaded.as_text(view))


def _checked(asked: Asked) -> View:
    if asked.as_json and asked.format not in ("table", "json"):
        raise typer.BadParameter(f"--json does not go with --format {asked.format}")
    if (asked.compare is None) != (asked.baseline is None):
        raise typer.BadParameter("--compare needs --baseline and vice versa: give both or neither")
    if asked.by and not asked.best_of:
        raise typer.BadParameter("--by belongs to --best-of")
    form: Format = "json" if asked.as_json else asked.format
    if asked.per_task and form != "table" and (asked.means or form in ("markdown", "latex")):
        raise typer.BadParameter("means over seeds do not exist by task: leave out --per-task")
    figures = {*(asked.figure or ())}
    drawn = asked.curves and form == "table" and (not figures or "curves" in figures)
    if asked.plot is None and not figures <= ({"curves"} if drawn else set()):
        raise typer.BadParameter(
            "the terminal draws only curves: add --plot FILE to write other figures",
            param_hint="--figure",
        )
    return replace(asked, format=form, curves=drawn)
