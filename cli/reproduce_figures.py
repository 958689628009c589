"""The figures of the paper, drawn from our runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.console import note, say

if TYPE_CHECKING:
    from clinit.analysis.run_summary import RunSummary
    from clinit.cli.reproduce_steps import Places

FORMATS = ("png", "pdf", "svg")
_OF_TABLES = (
    ("2", "last-layer", "mse"),
    ("3", "last-layer", "sqen"),
    ("4", "top-layers", "ce"),
    ("5", "top-layers", "sqen"),
    ("6", "top-layers", "mse"),
)
"""Number of the figure, folder of the runs and loss."""


@dataclass(frozen=True, slots=True)
class _Picture:
    """A figure of the paper."""

    file: str
    """Without its ending."""
    name: str
    """Of the figure, as `clinit report --figure` calls it."""
    runs: tuple[RunSummary, ...]


def draw(where: Places, runs: Sequence[RunSummary]) -> None:
    """Write the figures below the folder; say which lack runs.

    Args:
        where: Places of the reproduction.
        runs: The runs of figure 1.
    """
    from clinit.analysis.report import report_of

    folder = where.out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    say()
    for picture in [*_first(runs), *_of_tables(where)]:
        report = report_of([run.record for run in picture.runs])
        for ending in FORMATS:
            report.save_figure(folder / f"{picture.file}.{ending}", picture.name)
        note(f"{picture.name}: {folder / picture.file}.{{{','.join(FORMATS)}}}")


def _first(runs: Sequence[RunSummary]) -> Iterator[_Picture]:
    """Yield panels a and b, of all tasks, and c, of the first task trained longer."""
    longest = max(run.config["iterations"] for run in runs)
    yield _Picture(
        "figure1ab", "curves", tuple(run for run in runs if run.config["iterations"] < longest)
    )
    yield _Picture(
        "figure1c", "efficiency", tuple(run for run in runs if run.config["iterations"] == longest)
    )


def _of_tables(where: Places) -> Iterator[_Picture]:
    """Yield figures 2 to 6, the smaller budget of each loss, as far as there are runs."""
    for number, folder, loss in _OF_TABLES:
        found = _runs(where.out / "runs" / folder, loss)
        if found:
            yield _Picture(f"figure{number}", "curves", found)
        else:
            note(
                f"figure {number} is drawn from the runs of table"
                f" {2 if folder == 'last-layer' else 3}: `clinit reproduce {folder} figures`"
            )


def _runs(folder: Path, loss: str) -> tuple[RunSummary, ...]:
    from clinit.analysis.report import load_report
    from clinit.headtrain.record.format import find_records

    if not folder.is_dir() or not find_records(folder):
        return ()
    runs = [run for run in load_report([folder]).runs if run.config["loss"] == loss]
    least = min((run.config["iterations"] for run in runs), default=0)
    return tuple(run for run in runs if run.config["iterations"] == least)
