"""`clinit sweep`: many runs from one grid, in banks, each recorded as soon as it is trained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli import completion
from clinit.cli.claim import claimed_folder
from clinit.cli.config import OF_IMAGES, ConfigOption, commands_with_files, grids_of
from clinit.cli.console import note, say
from clinit.cli.context import Context, given
from clinit.cli.image_options import CheckpointEvery, takes_images
from clinit.cli.interruption import keeps
from clinit.cli.options import BaseCaches, Memory, NewCaches
from clinit.cli.run_data import check_caches, heads_by_loss, read_data, show_ranking
from clinit.cli.sweep_search import SearchOptions, run_search
from clinit.cli.training_progress import sweep_progress
from clinit.files.paths import check_writable
from clinit.headtrain.top.images import Images
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.study import Study
    from clinit.headtrain.sweep.folder import SweepFolder
    from clinit.headtrain.sweep.grid import Choice
    from clinit.headtrain.sweep.plan import SweepPlan


class Search(StrEnum):
    """Libraries that propose settings."""

    optuna = "optuna"


class Direction(StrEnum):
    """Directions of the objective."""

    maximize = "maximize"
    minimize = "minimize"


@keeps("Recorded runs are kept: the same command trains those that are left.")
@takes_images
def sweep(
    context: Context,
    base: BaseCaches,
    new: NewCaches,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the sweep, one sub-folder per run record.",
            metavar="FOLDER",
            show_default=False,
            rich_help_panel="Output",
        ),
    ],
    grid: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GRID...",
            help="Values of each field that varies: init=random,least-square seed=0:5"
            " lr=1e-4..1e-2:log5 (lin for even steps); buffer,iterations=24000,600;192000,1200 for"
            " fields that vary together. Fields are the options of train-head.",
            show_default=False,
            autocompletion=completion.grid,
        ),
    ] = None,
    config_file: ConfigOption = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="Pretrained head to start from instead of the base cache's, for all runs or for"
            " those of one loss; repeatable.",
            metavar="[LOSS=]FILE",
            show_default=False,
            rich_help_panel="Data",
        ),
    ] = None,
    bank_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most runs that are trained together. A kill loses at most the bank in training.",
            show_default="what fits into half of the free memory; 12 on a CPU",
            rich_help_panel="Computation",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Train the banks as tasks of the Ray cluster at this address, one GPU each where"
            " it has GPUs; smaller banks (--bank-size) are spread over more nodes.",
            metavar="ADDRESS",
            show_default=False,
            rich_help_panel="Computation",
        ),
    ] = None,
    search: Annotated[
        Search | None,
        typer.Option(
            help="Let Optuna propose the settings instead of training all combinations: lists"
            " are choices, lr=1e-4..1e-1:log any value between; each trial is repeated for every"
            " seed. Judged on held-out training rows, never on the test rows.",
            show_default=False,
            rich_help_panel="Search",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="Trials of the search.", show_default="50", rich_help_panel="Search"
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What the search improves: acc_all, acc_new, acc_old, acc_pre, loss_new,"
            " average_incremental_accuracy or forgetting.",
            show_default="acc_all",
            autocompletion=completion.objectives,
            rich_help_panel="Search",
        ),
    ] = None,
    direction: Annotated[
        Direction | None,
        typer.Option(
            help="Which direction is better.",
            show_default="that of the objective",
            rich_help_panel="Search",
        ),
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=0.9,
            help="Share of the training rows of each class that the search judges by.",
            show_default="0.1",
            rich_help_panel="Search",
        ),
    ] = None,
    search_seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**32 - 1,
            help="Seed of the proposals and of the held-out rows.",
            show_default="0",
            rich_help_panel="Search",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and banks; train nothing.")
    ] = False,
    top: Annotated[
        bool,
        typer.Option(
            "--top",
            help="Runs of train-top, one after another, instead of banks of heads; a killed run"
            " goes on from its checkpoint. Fields are the options of train-top.",
        ),
    ] = False,
    memory: Memory = None,
    *,
    images: Images,
    checkpoint_every: CheckpointEvery = 100,
) -> None:
    """Train every combination of a grid in banks of heads; go on where an earlier call stopped.

    Runs of one stream and seed share their batches. A run that is recorded in the
    folder is not trained again, so a grid may grow, and the same command resumes
    a killed sweep. A file (--config) may hold several grids, as an array of
    tables `sweep.grid`: their union is trained.
    """
    commands = commands_with_files(context.find_root().command)
    asked = SearchOptions(
        trials, objective, direction.value if direction else None, held_out, search_seed
    )
    if top:
        if search is not None or ray is not None or bank_size is not None:
            raise typer.BadParameter("--top trains one run after another: no search, banks or Ray")
        if memory is not None:
            raise typer.BadParameter("--memory is for banks of heads, not for runs of --top")
        asked.reject()
        from clinit.cli.sweep_top import sweep_top

        runs = _runs(grids_of(config_file, grid or [], commands, top=True), top=True)
        _check_places((*base, *new), out)
        sweep_top(runs, images, head or [], out, checkpoint_every=checkpoint_every, dry_run=dry_run)
        return
    _reject_images(context)
    if search is None:
        asked.reject()
        places = (base, new, head or [])
        grids = grids_of(config_file, grid or [], commands)
        _check_places((*base, *new), out)
        _sweep(grids, places, out, bank_size, memory=memory, ray=ray, dry_run=dry_run)
        return
    if ray is not None:
        raise typer.BadParameter("--ray trains the banks of a grid; a search runs in one process")
    if dry_run:
        raise typer.BadParameter("--dry-run lists the runs of a grid; a search has no list")
    asked.checked_objective()
    chosen, *others = grids_of(config_file, grid or [], commands)
    if others:
        raise typer.BadParameter(
            f"--search takes one grid, but there are {len(others) + 1}: of tables [[sweep.grid]],"
            " or of methods with settings of their own"
        )
    _check_places((*base, *new), out)
    with claimed_folder(out):
        run_search(
            chosen, read_data(base, new, heads_by_loss(head or []), memory), out, asked, bank_size
        )


def _check_places(caches: Sequence[Path], out: Path) -> None:
    """Check that the caches are there, and that the runs can be written."""
    check_caches(*caches)
    check_writable(out)


def _sweep(
    grids: list[dict[str, Choice]],
    places: tuple[list[Path], list[Path], list[str]],
    out: Path,
    bank_size: int | None,
    *,
    memory: int | None,
    ray: str | None,
    dry_run: bool,
) -> None:
    """Train what is left of the union of grids and print the ranked runs."""
    from clinit.headtrain.sweep.folder import open_folder
    from clinit.headtrain.sweep.plan import plan_sweep, run_sweep, train_here

    runs = _runs(grids, top=False)
    with ExitStack() as stack:
        stack.enter_context(claimed_folder(out))
        base, new, heads = places
        data = read_data(base, new, heads_by_loss(heads), memory)
        folder = open_folder(out, data, {run.training.loss for run in runs})
        plan = plan_sweep(runs, folder, data, bank_size=bank_size)
        _announce(plan, runs)
        if dry_run:
            _list(plan)
            return
        observer = stack.enter_context(sweep_progress(len(runs), len(plan.done)))
        command = ["clinit", *sys.argv[1:]]
        if ray is None or not plan.banks:
            train = train_here(data, observer, command=command)
        else:
            from clinit.headtrain.sweep.on_ray import SHARED, train_on_ray

            if not data.is_loaded:
                note(SHARED)
            train = stack.enter_context(train_on_ray(data, ray, command=command))
        run_sweep(plan, folder, train, observer)
        records = _records(folder, runs)
    show_ranking(records)
    say(f"{number_of(len(runs), 'run record')} at {out}; each run: clinit report --by-seed {out}")


def _runs(grids: list[dict[str, Choice]], *, top: bool) -> list[Study]:
    """Return the distinct runs of grids."""
    from clinit.headtrain.sweep.plan import distinct, runs_of

    combinations = [run for grid in grids for run in runs_of(grid, top=top)]
    runs = distinct(combinations)
    if len(runs) < len(combinations):
        note(
            f"{len(combinations) - len(runs):,} of {len(combinations):,} combinations differ only"
            " in settings without an effect on them (random rows have no scale, lambda is of least"
            f" squares): {number_of(len(runs), 'run')}"
        )
    return runs


def _reject_images(context: Context) -> None:
    """Refuse options that only runs of top blocks read."""
    for key in OF_IMAGES:
        if given(context, key.replace("-", "_")) is not None:
            raise typer.BadParameter(f"--{key} is for runs of top blocks: add --top")


def _announce(plan: SweepPlan, runs: list[Study]) -> None:
    streams = len({run.shared for run in runs})
    line = f"{number_of(len(runs), 'run')} on {number_of(streams, 'stream')}"
    line += f", {len(plan.done):,} recorded already"
    if plan.banks:
        line += (
            f"; {number_of(plan.num_left, 'run')} to train in {number_of(len(plan.banks), 'bank')}"
        )
    say(line)


def _list(plan: SweepPlan) -> None:
    for number, bank in enumerate(plan.banks, start=1):
        say(f"Bank {number}, seed {bank.seed}:")
        for run in bank.runs:
            say(f"  {plan.names.get(run.identity, 'one that is recorded, beside the others')}")


def _records(folder: SweepFolder, runs: list[Study]) -> list[Path]:
    return [path for run in runs if (path := folder.record_of(run)) is not None]
