"""What commands read before they train runs, and what they print before and after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.claim import tell_replaced
from clinit.cli.console import note, say
from clinit.cli.progress import doing
from clinit.errors import ExperimentError
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.runs import RunData


def read_data(
    base: Path, new: Path, heads: Mapping[str, Path | None], memory: int | None = None
) -> RunData:
    """Open both caches, in memory as far as they fit, and the pretrained heads by loss.

    Raises:
        ExperimentError: If there is no pretrained head.
    """
    from clinit.headtrain.runs import RunData
    from clinit.headtrain.stream.source import read_sources

    with doing("Reading the feature caches …"):
        base_source, new_source = read_sources(base, new, memory=memory)
    return RunData.of(base_source, new_source, heads, on_note=note)


def heads_by_loss(words: Sequence[str]) -> dict[str, Path]:
    """Return the files of `--head [LOSS=]FILE` by loss; "" for all others.

    Raises:
        ExperimentError: If there are two for the same runs.
    """
    from clinit.headtrain.losses import LOSSES

    paths: dict[str, Path] = {}
    for word in words:
        loss, equals, path = word.partition("=")
        if not equals or loss not in LOSSES:
            loss, path = "", word
        if loss in paths:
            raise ExperimentError(
                f"--head is given twice for {f'the loss {loss}' if loss else 'all runs'}",
                remedy="Name the loss that each head is for: --head mse=aligned.safetensors.",
            )
        paths[loss] = Path(path)
    return paths


def tell_left(places: Collection[Path], left: Collection[Path], *, overwrite: bool) -> None:
    """Print which records are replaced, and which stay because they are those of the runs."""
    tell_replaced(places, overwrite=overwrite)
    for place in places:
        if place not in left:
            say(f"{place} is there already")


def show_runs(places: Collection[Path], trained: Collection[Path]) -> None:
    """Print the table of records; notes of those just trained were printed before."""
    from clinit.analysis.report.report import load_report
    from clinit.cli.report import show

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
    from clinit.cli.report import show

    report = load_report(records)
    said = {note for run in report.runs for note in run.record.info["notes"]}
    show(report, means=True, curves=False, said=said)
