"""Train on a stream of new classes: heads from cached features, or top blocks from images."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clinit.cli.frame import options
from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.context import Context
from clinit.cli.frame.process import claimed_folder, keeps
from clinit.cli.frame.progress import training_progress
from clinit.cli.frame.results import show_runs
from clinit.cli.frame.run_data import check_base, check_caches, read_data, read_images, tell_left
from clinit.cli.frame.study_options import takes, takes_studies
from clinit.files.paths import check_writable
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.images import ImageOptions

if TYPE_CHECKING:
    from clinit.extract.cache.fingerprint import Fingerprint
    from clinit.headtrain.heads.linear import Rows
    from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics


_DIAGNOSIS_LAMBDA = 0.05
"""Ridge of the least-squares head that --diagnose compares heads with, as in the paper."""


_KEPT = (
    "Heads in training are lost, because the heads of a seed are recorded together when all are"
    " trained. Existing records are kept."
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
    check_base(base, head, studies)
    check_caches(*new, *(base or ()), head=head)
    check_writable(out)
    from clinit.headtrain.protocol import runs
    from clinit.headtrain.protocol.train.heads import check_precision
    from clinit.machine import choose_device

    training = studies[0].training
    check_precision(training.precision, choose_device(training.device))
    with claimed_folder(out):
        places = runs.places_of(studies, out, overwrite=overwrite)
        data = read_data(base, new, {"": head}, memory)
        left = runs.left_of(places, data, diagnosed=diagnose, overwrite=overwrite)
        tell_left(places.values(), left.values())
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
    check_caches(base, new, head=head)
    with claimed_folder(out):
        from clinit.headtrain.protocol import runs

        places = runs.places_of(studies, out, overwrite=overwrite)
        data = read_images(images.of(base, new, out), {"": head})
        # Refuse existing records before the slow computation of activations.
        left = runs.left_of(places, data, overwrite=overwrite)
        tell_left(places.values(), left.values())
        from clinit.headtrain.top.experiment import train_top as train_recorded

        with training_progress() as observer:
            every = images.checkpoint_every
            train_recorded(
                data, left, observer=observer, checkpoint_every=every, overwrite=overwrite
            )
    show_runs(places.values(), left.values())
