"""`clinit train-top`: train top blocks of a backbone on a stream of new classes, from images."""

from __future__ import annotations

from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.context import Context
from clinit.cli.frame.options import BaseCache, BaseHeadOption, NewCache, Overwrite, RunsFolder
from clinit.cli.frame.process import claimed_folder, keeps
from clinit.cli.frame.progress import training_progress
from clinit.cli.frame.results import show_runs
from clinit.cli.frame.run_data import check_caches, read_images, tell_left
from clinit.cli.frame.study_options import takes, takes_studies
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.images import ImageOptions


@keeps("Finished runs and the last checkpoint are kept: run the same command again to resume.")
@takes_studies(top=True)
@takes("images", ImageOptions)
def train_top(
    context: Context,
    base: BaseCache,
    new: NewCache,
    out: RunsFolder,
    studies: list[Study],
    head: BaseHeadOption = None,
    *,
    images: ImageOptions,
    config_file: ConfigOption = None,
    overwrite: Overwrite = False,
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
