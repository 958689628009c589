"""Train on a stream of new classes: heads from cached features, or top blocks from images.

`clinit sweep` trains the runs of a grid in banks, and records each bank when it is trained.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.frame import options, run_data
from clinit.cli.frame.config import OF_IMAGES, ConfigOption, grids_of
from clinit.cli.frame.console import note, say
from clinit.cli.frame.context import Context, refuse_idle
from clinit.cli.frame.process import claimed_folder, keeps
from clinit.cli.frame.progress import sweep_progress, training_progress
from clinit.cli.frame.results import show_records, show_runs
from clinit.cli.frame.study_options import takes, takes_studies
from clinit.files.paths import check_writable
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.images import ImageOptions, TopImages
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.extract.cache.fingerprint import Fingerprint
    from clinit.headtrain.heads.linear import Rows
    from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
    from clinit.headtrain.protocol.experiment import RunData
    from clinit.headtrain.protocol.sweep.grid import Choice


_DIAGNOSIS_LAMBDA = 0.05
"""Ridge of the least-squares head that --diagnose compares heads with, as in the paper."""


_KEPT = (
    "Heads in training are lost, because the heads of a seed are recorded together when all are"
    " trained. Existing records are kept: run the same command again to train the rest."
)


@keeps(_KEPT)
@takes_studies(top=False)
def train_head(
    context: Context,
    *,
    base: options.BaseCaches = None,
    new: options.NewCaches,
    out: options.RunsFolder,
    studies: list[Study],
    head: options.BaseHeadOption = None,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose",
            help="Measure neural collapse (NC1 to NC4) and D_LS, the distance from the"
            " least-squares head, of each head after each task.",
            rich_help_panel="Evaluation",
        ),
    ] = False,
    memory: options.MemoryOption = None,
    config_file: ConfigOption = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Train heads on new classes that arrive in tasks, with a frozen backbone.

    With --base, the new classes join the classes of a pretrained head. Without
    --base, the stream starts without classes, and its first task makes the head.
    Heads of one seed share class order and batches, so that their initialisations
    are compared on the same samples. Writes a record per head and prints a table
    of the results. Existing records of the same settings are kept, unless
    --overwrite is given.
    """
    run_data.check_base(base, head, studies)
    run_data.check_caches(*new, *(base or ()), head=head)
    check_writable(out)
    from clinit.headtrain.protocol import runs
    from clinit.headtrain.protocol.train.heads import check_precision
    from clinit.machine import choose_device

    training = studies[0].training
    check_precision(training.precision, choose_device(training.device))
    with claimed_folder(out):
        places = runs.places_of(studies, out, overwrite=overwrite)
        data = run_data.read_data(base, new, {"": head}, memory)
        left = runs.left_of(places, data, diagnosed=diagnose, overwrite=overwrite)
        run_data.tell_left(places.values(), left.values())
        with training_progress() as observer:
            how = partial(_diagnosis, data.new.fingerprint) if diagnose else None
            runs.train_heads(
                data, studies, left, observer=observer, diagnose=how, overwrite=overwrite
            )
    show_runs(places.values(), left.values())


def _diagnosis(features: Fingerprint, statistics: ClassStatistics, head: Rows) -> dict[str, Any]:
    from clinit.analysis.metrics.diagnosis import diagnose

    if len(statistics.totals) < 2:  # the measures are undefined for a single class
        return {}
    return diagnose(statistics, head, lam=_DIAGNOSIS_LAMBDA, fingerprint=features).content()


@keeps("Finished runs and the last checkpoint are kept: run the same command again to resume.")
@takes_studies(top=True)
@takes("images", ImageOptions)
def train_top(
    context: Context,
    base: options.BaseCache,
    new: options.NewCache,
    out: options.RunsFolder,
    studies: list[Study],
    head: options.BaseHeadOption = None,
    *,
    images: ImageOptions,
    config_file: ConfigOption = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Train the top blocks of a backbone, and its head, on new classes that arrive in tasks.

    The caches of `clinit extract` determine rows, backbone and images, so a run
    sees the same stream as `clinit train-head`. All layers below the top blocks are
    frozen; their output is computed once and stored. To resume a killed run, run
    the same command again.
    """
    run_data.check_caches(base, new, head=head)
    with claimed_folder(out):
        from clinit.headtrain.protocol import runs

        places = runs.places_of(studies, out, overwrite=overwrite)
        data = run_data.read_images(images.of(base, new, out), {"": head})
        # Refuse existing records before the slow computation of activations.
        left = runs.left_of(places, data, overwrite=overwrite)
        run_data.tell_left(places.values(), left.values())
        from clinit.headtrain.top.experiment import train_top as train_recorded

        with training_progress() as observer:
            every = images.checkpoint_every
            train_recorded(
                data, left, observer=observer, checkpoint_every=every, overwrite=overwrite
            )
    show_runs(places.values(), left.values())


@keeps("Recorded runs are kept: run the same command again to train the rest.")
@takes("images", ImageOptions)
def sweep(
    context: Context,
    *,
    base: options.BaseCaches = None,
    new: options.NewCaches,
    out: options.RunsFolder,
    grid: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GRID...",
            help="Values of each field that varies: init=random,least-square seed=0:5"
            " lr=1e-4..1e-2:log5 (or lin5 for even steps); for fields that vary together,"
            " buffer,iterations=24000,600;192000,1200. Fields are the options of train-head.",
        ),
    ] = None,
    config_file: ConfigOption = None,
    head: options.HeadsByLoss = None,
    bank_size: Annotated[
        int | None,
        options.described(
            "Maximum number of runs trained together (a bank). A kill loses only the current bank.",
            default="as many as fit into half of the free memory; 12 on a CPU",
            min=1,
            rich_help_panel="Computation",
        ),
    ] = None,
    held_out: Annotated[
        float | None,
        options.described(
            "Measure the runs on this share of the training rows of each class instead of the test"
            " rows, to choose settings.",
            "SHARE",
            min=0.001,
            max=0.9,
            rich_help_panel="Data",
        ),
    ] = None,
    top: Annotated[
        bool,
        typer.Option(
            "--top",
            help="Train runs of train-top, one after another, instead of banks of heads. A killed"
            " run resumes from its checkpoint. Fields are the options of train-top.",
        ),
    ] = False,
    memory: options.MemoryOption = None,
    images: ImageOptions,
) -> None:
    """Train every combination of a grid in banks of heads; resume an interrupted sweep.

    A bank is a set of runs with the same stream and seed, which are trained
    together on the same batches. Recorded runs are not trained again, so a grid
    may grow; to resume a killed sweep, run the same command again. A file
    (--config) may contain several grids, each below a line [[sweep.grid]]; their
    union is trained.
    """
    unread = {each.replace("-", "_"): "is for runs of top blocks: add --top" for each in OF_IMAGES}
    if top:
        why = "is for banks of heads: --top trains run by run"
        unread = dict.fromkeys(("bank_size", "memory", "held_out"), why)
    refuse_idle(context, unread)
    grids = grids_of(config_file, grid or [], top=top)
    sides = [*(base or ()), *new]
    if top and (not base or len(sides) > 2):
        raise typer.BadParameter("--top takes only one cache each for --base and --new")
    runs = _runs(grids, top=top)
    run_data.check_base(base, head, runs)
    run_data.check_caches(*sides)
    heads = head or []
    with claimed_folder(out):
        if top:
            chosen = images.of(sides[0], sides[1], out)
            records = _sweep_top(runs, chosen, heads, out, images.checkpoint_every)
        else:
            data = run_data.read_data(base, new, run_data.heads_by_loss(heads), memory)
            if held_out is not None:
                data = data.held_out(held_out)
                rows = len(data.base.val.labels) + len(data.new.val.labels)
                say(f"Measured on {rows:,} held-out training rows ({held_out:g}), not on test rows")
            records = _sweep(runs, data, out, bank_size)
    show_records(records, records, means=True)  # every run may have notes
    where = f"at {out}; each run: clinit report --by-seed {out}"
    say(f"{number_of(len(runs), 'run record')} {where}")


def _runs(grids: list[dict[str, Choice]], *, top: bool) -> list[Study]:
    """Return the distinct runs of grids; note how many combinations are equal runs."""
    from clinit.headtrain.protocol.sweep.grid import distinct, runs_of

    combinations = [run for grid in grids for run in runs_of(grid, top=top)]
    runs = distinct(combinations)
    if len(runs) < len(combinations):
        note(
            f"{number_of(len(runs), 'run')}: {len(combinations) - len(runs):,} of"
            f" {len(combinations):,} combinations repeat another run, because they differ only in"
            " settings without effect (for example the scale of random rows)"
        )
    return runs


def _sweep(runs: list[Study], data: RunData, out: Path, bank_size: int | None) -> list[Path]:
    from clinit.headtrain.protocol.runs import train_banks
    from clinit.headtrain.protocol.sweep import plan as sweeps

    folder = sweeps.open_folder(out, data, {run.training.loss for run in runs})
    plan = sweeps.plan_sweep(runs, folder, data, bank_size=bank_size)
    streams = number_of(len({run.shared for run in runs}), "stream")
    say(
        f"{number_of(len(runs), 'run')} on {streams}, {len(runs) - len(plan.names):,} already"
        f" recorded; {len(plan.names):,} to train in {number_of(len(plan.banks), 'bank')}"
    )
    with sweep_progress(len(runs), len(runs) - len(plan.names)) as observer:
        sweeps.run_sweep(plan, folder, train_banks(data, plan.banks, observer), observer)
    return [folder.recorded[run.identity] for run in runs]


def _sweep_top(
    runs: list[Study], images: TopImages, heads: list[str], out: Path, every: int
) -> list[Path]:
    """Train the runs of train-top that are not recorded; return the records of all runs.

    A checkpoint is written after `every` updates.
    """
    from clinit.headtrain.protocol.record.format import check_free
    from clinit.headtrain.protocol.sweep.plan import open_folder, run_names
    from clinit.headtrain.top.experiment import train_top as train_recorded

    # Checkpoints are named by digests, which do not change when the grid grows.
    digests = {run: sha256(run.identity.encode()).hexdigest()[:32] for run in runs}
    checkpoints = {run: out / f"{name}.checkpoint" for run, name in digests.items()}
    data = run_data.read_images(images, run_data.heads_by_loss(heads))
    folder = open_folder(out, data, {run.training.loss for run in runs})
    named = zip(runs, run_names(runs, folder.configs), strict=True)
    places = {run: folder.recorded.get(run.identity, out / name) for run, name in named}
    left = {run: place for run, place in places.items() if run.identity not in folder.recorded}
    check_free(left.values())
    for run in places.keys() - left:  # left by a process killed after it wrote the record
        checkpoints[run].unlink(missing_ok=True)
    say(f"{number_of(len(runs), 'run')}, {len(runs) - len(left):,} already recorded")
    begun = checkpoints.__getitem__
    with training_progress() as observer:
        train_recorded(data, left, observer=observer, resume_from=begun, checkpoint_every=every)
    return [*places.values()]
