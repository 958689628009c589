"""`clinit train-head`: heads over a stream of new classes, from cached features."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.choices import BaseCache, BaseHead, Memory, NewCache, VerboseStarts
from clinit.cli.claim import claimed_folder
from clinit.cli.config_file import ConfigOption
from clinit.cli.console import say
from clinit.cli.context import Context
from clinit.cli.interruption import keeps
from clinit.cli.places import check_caches
from clinit.cli.progress import doing
from clinit.cli.study_options import takes_studies
from clinit.cli.training_progress import training_progress
from clinit.extract.number_of import number_of
from clinit.extract.writable import check_writable
from clinit.headtrain.study import Study, names_of

if TYPE_CHECKING:
    from clinit.extract.head import Head
    from clinit.headtrain.init import Rows
    from clinit.headtrain.least_squares.statistics import ClassStatistics
    from clinit.headtrain.record.format import RunRecord
    from clinit.headtrain.stream.source import Source


_DIAGNOSIS_LAMBDA = 0.05
"""Ridge of the W_LS that heads are compared with, as in the paper."""


_KEPT = (
    "Heads in training are lost: the heads of a call are recorded together, at its end. Records"
    " that are there stay. `clinit sweep` records bank by bank."
)


@keeps(_KEPT)
@takes_studies(top=False)
def train_head(
    context: Context,
    base: BaseCache,
    new: NewCache,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the records, one sub-folder per head.",
            metavar="FOLDER",
            show_default=False,
            rich_help_panel="Output",
        ),
    ],
    studies: list[Study],
    head: BaseHead = None,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose",
            help="Measure NC1 to NC4 and D_LS of each head at the end of each task.",
            rich_help_panel="Evaluation",
        ),
    ] = False,
    memory: Memory = None,
    config_file: ConfigOption = None,
    verbose: VerboseStarts = False,
) -> None:
    """Train heads on new classes that arrive in tasks, with a frozen backbone.

    Heads of one call share class order and batches, so that their initialisations
    are compared on the same samples. Writes a record per head and prints the
    table of their results; what an earlier call with the same command has
    recorded stays as it is.
    """
    check_caches(base, new, head=head)
    check_writable(out)
    from clinit.extract.device import choose_device
    from clinit.headtrain.bank.precision import check_precision
    from clinit.headtrain.record.finished import unrecorded
    from clinit.headtrain.record.format import INFO, check_free, write_records

    training = studies[0].training
    check_precision(training.precision, choose_device(training.device))
    folders = [out / name for name in names_of(studies)]
    with claimed_folder(out):
        # Before anything is read: a folder that is not a record is in the way.
        check_free(folder for folder in folders if not (folder / INFO).is_file())
        data = read_data(base, new, head, memory)
        left = unrecorded(studies, folders, data.base, data.new, data.head, diagnosed=diagnose)
        _say_what_is_there(folders, left)
        records = []
        if left:
            trained = _train(data, studies, diagnose=diagnose, verbose=verbose)
            records = [trained[number] for number in left]
            write_records(records, [folders[number] for number in left])
    _show(records, folders)


@dataclass(frozen=True, slots=True, eq=False)
class HeadData:
    """The data that all heads of a call read."""

    base: Source
    new: Source
    head: Head
    head_facts: dict[str, Any]


def read_data(base: Path, new: Path, head_file: Path | None, memory: int | None = None) -> HeadData:
    """Open both caches, in memory as far as they fit, and the head that runs start from.

    Raises:
        ExperimentError: If there is no head.
    """
    from clinit.headtrain.stream.base_head import starting_head
    from clinit.headtrain.stream.source import read_sources

    with doing("Reading the feature caches …"):
        base_source, new_source = read_sources(base, new, memory=memory)
    return HeadData(base_source, new_source, *starting_head(base_source, head_file))


def _say_what_is_there(folders: list[Path], left: list[int]) -> None:
    for number, folder in enumerate(folders):
        if number not in left:
            say(f"{folder} is there already")
    if 0 < len(left) < len(folders):
        say("All heads are trained once more: side by side, the others get the same numbers")


def _train(
    data: HeadData,
    studies: list[Study],
    *,
    diagnose: bool,
    verbose: bool,
) -> list[RunRecord]:
    from clinit.headtrain.experiment import run_experiment

    with training_progress(verbose=verbose) as observer:
        return run_experiment(
            data.base,
            data.new,
            data.head,
            studies,
            observer=observer,
            diagnose=_diagnosis if diagnose else None,
            head_facts=data.head_facts,
            command=["clinit", *sys.argv[1:]],
        )


def _diagnosis(statistics: ClassStatistics, head: Rows) -> dict[str, Any]:
    from clinit.analysis.diagnosis import diagnose

    return diagnose(statistics, head.weight, head.bias, lam=_DIAGNOSIS_LAMBDA).content()


def _show(records: list[RunRecord], folders: list[Path]) -> None:
    from clinit.analysis.report import load_report
    from clinit.cli.report import show

    said = {note for record in records for note in record.info["notes"]}  # before the training
    show(load_report(folders), figures=(), said=said)
    parent = folders[0].parent
    say(f"{number_of(len(folders), 'run record')} at {parent}; curves: clinit report {parent}")
