"""`clinit report`: print the results of runs, from their records only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.analysis.report import ReportFormat, ReportView
from clinit.cli.frame.console import note, out, print_csv, print_json
from clinit.cli.frame.process import keeps
from clinit.cli.frame.results import print_content, show
from clinit.cli.frame.study_options import takes
from clinit.files.paths import check_writable
from clinit.setting import setting

if TYPE_CHECKING:
    from clinit.analysis.report.compare import Comparison
    from clinit.analysis.runs import Runs


_COMPARISON = "Comparison"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(ReportView):
    """Options of `clinit report`."""

    as_json: bool = setting(False, "Print JSON for programs.", alias="json")
    compare: str | None = setting(
        None,
        "Print paired differences over seeds between the values of this setting (init, loss, lr)"
        " and --baseline, with 95 % intervals, wins, and p-values adjusted by Holm.",
        panel=_COMPARISON,
        metavar="SETTING",
    )
    baseline: str | None = setting(
        None, "Value of --compare to subtract.", panel=_COMPARISON, metavar="VALUE"
    )
    best_of: str | None = setting(
        None,
        "Keep the runs with the best values of these settings, such as lr,loss: chosen by A_all on"
        " held-out images if there are such runs (`clinit sweep --held-out`).",
        panel=_COMPARISON,
        metavar="SETTINGS",
    )
    by: str | None = setting(
        None,
        "Settings of which each value has its own choice of --best-of.",
        panel=_COMPARISON,
        metavar="SETTINGS",
        otherwise="init",
    )
    figure: tuple[str, ...] | None = setting(
        None,
        "Draw this figure into --plot: curves, efficiency, or a column such as acc_old or"
        " forgetting. If the records lack the data of one of several figures, it is skipped with a"
        " note.",
        metavar="NAME",
        otherwise="curves",
    )
    plot: Path | None = setting(
        None,
        "Draw the figure into this .png, .pdf or .svg file. With several figures, -NAME is inserted"
        " before the suffix.",
        file=True,
    )
    html: Path | None = setting(
        None,
        "Write the whole report into this .html file: tables, zoomable curves, settings, commands."
        " The page loads no other files.",
        file=True,
    )


@keeps("No partial file is left: it is written completely or not at all.")
@takes("asked", Asked)
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
    from clinit.analysis.report.measures import MEANS, measures_of
    from clinit.analysis.runs import MOST_NOTES, load_runs

    if of_tasks := [each.name for each in measures_of(view.columns) if each.name not in MEANS]:
        why = f"runs have no {', '.join(of_tasks)}, only tasks: see --per-task, --format json"
        raise typer.BadParameter(why, param_hint="--columns")
    drawn = ("curves", "efficiency")
    measures_of({*(asked.figure or ())} - {*drawn}, drawn)
    loaded = load_runs(*runs)
    if asked.best_of:
        loaded = loaded.best_of(asked.best_of, asked.by or "init")
    if asked.plot is not None:
        from clinit.analysis.figures.gallery import save_figures

        for told in save_figures(loaded.data, asked.plot, asked.figure or ["curves"]):
            note(told)
    if asked.html is not None:
        loaded.save_html(asked.html)
        note(f"the page is {asked.html}")
        view = replace(view, said=loaded.notes[MOST_NOTES:])  # the page has them
    if asked.compare and asked.baseline:
        found = loaded.comparison(asked.compare, asked.baseline, view.columns)
        _show_comparison(loaded, found, view)
    elif view.format == "table":
        show(loaded, view)
    else:
        (print_json if view.format == "json" else print_csv)(loaded.as_text(view))


def _show_comparison(runs: Runs, found: Comparison, view: ReportView) -> None:
    """Print a comparison in the form of a report, with the notes on its runs."""
    if view.format == "json":
        print_content(found.frame().to_dicts())
    elif view.format == "csv":
        print_csv(found.frame().write_csv())
    elif view.format == "table":
        out.print(found.table(), crop=False)
        for told in runs.told(view):
            note(told)
    else:
        table = found.table()
        print_csv(table.latex() if view.format == "latex" else table.markdown())


def _checked(asked: Asked) -> ReportView:
    if asked.as_json and asked.format not in ("table", "json"):
        raise typer.BadParameter(f"--json does not go with --format {asked.format}")
    if (asked.compare is None) != (asked.baseline is None):
        raise typer.BadParameter("--compare needs --baseline and vice versa: give both or neither")
    if asked.by and not asked.best_of:
        raise typer.BadParameter("--by belongs to --best-of")
    form: ReportFormat = "json" if asked.as_json else asked.format
    if asked.per_task and form not in ("table", "json"):
        raise typer.BadParameter("--per-task is for the terminal, and --json has every task")
    if asked.figure and asked.plot is None:
        raise typer.BadParameter("--figure needs a file: add --plot FILE")
    if asked.curves and (form != "table" or asked.compare):
        raise typer.BadParameter("--curves are drawn below the tables of a report only")
    return replace(asked, format=form)
