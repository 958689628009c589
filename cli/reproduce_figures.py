"""The figures of the paper, drawn from our runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clinit.cli.console import note, say
from clinit.cli.reproduce_runs import Asked, runs_of

if TYPE_CHECKING:
    from clinit.analysis.report.run import RunSummary
    from clinit.cli.reproduce_steps import Places

FORMATS = ("png", "pdf", "svg")
_OF_TABLES = (
    ("2", "last-layer", "mse"),
    ("3", "last-layer", "sqen"),
    ("4", "top-layers", "ce"),
    ("5", "top-layers", "sqen"),
    ("6", "top-layers", "mse"),
)
"""Number of the figure, name of the table and loss."""
_Picture = tuple[str, str, "tuple[RunSummary, ...]"]
"""Name of the file without its ending, figure as `clinit report` calls it, and its runs."""


def draw(where: Places, runs: Sequence[RunSummary], asked: Asked) -> None:
    """Write the figures below the folder; say which lack runs.

    Args:
        where: Places of the reproduction.
        runs: The runs of figure 1.
        asked: What says which runs of tables 2 and 3 figures 2 to 6 are drawn from.
    """
    from clinit.analysis.report.report import report_of

    folder = where.out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    say()
    for file, name, members in [*_first(runs), *_of_tables(where, asked)]:
        report = report_of([run.record for run in members])
        for ending in FORMATS:
            report.save_figure(folder / f"{file}.{ending}", name)
        note(f"{name}: {folder / file}.{{{','.join(FORMATS)}}}")


def _first(runs: Sequence[RunSummary]) -> Iterator[_Picture]:
    """Yield panels a and b, of all tasks, and c, of the first task trained longer."""
    alone = tuple(run for run in runs if run.config.get("stop_after") == 1)
    for file, name, members in (
        ("figure1ab", "curves", tuple(run for run in runs if run not in alone)),
        ("figure1c", "efficiency", alone),
    ):
        if members:
            yield file, name, members


def _of_tables(where: Places, asked: Asked) -> Iterator[_Picture]:
    """Yield figures 2 to 6, the smaller budget of each loss, as far as there are runs."""
    from clinit.analysis.paper.tables import table_named

    for number, name, loss in _OF_TABLES:
        table = table_named(name)
        studies = [each for each in asked.studies(table) if each.training.loss == loss]
        least = min((each.stream.iterations for each in studies), default=0)
        smaller = [each for each in studies if each.stream.iterations == least]
        if found := runs_of(where.runs(table), smaller):
            yield f"figure{number}", "curves", found
        else:
            note(
                f"figure {number} is drawn from the runs of table {table.number}: give {name} too,"
                f" `clinit reproduce {name} figures …`"
            )
