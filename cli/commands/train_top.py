"""`clinit train-top`: the top blocks of a backbone over a stream of new classes, from images."""

from __future__ import annotations

from clinit.cli.commands.report import show_runs
from clinit.cli.frame.claim import claimed_folder
from clinit.cli.frame.config import ConfigOption
from clinit.cli.frame.context import Context
from clinit.cli.frame.image_options import CheckpointEvery, takes_images
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.options import (
    BaseCache,
    BaseHead,
    NewCache,
    Overwrite,
    RunsFolder,
)
from clinit.cli.frame.run_data import check_caches, read_images, tell_left
from clinit.cli.frame.study_options import takes_studies
from clinit.cli.frame.work_progress import training_progress
from clinit.files.paths import check_writable
from clinit.headtrain.study.study import Study
from clinit.headtrain.top.images import Images


@keeps("Finished runs and the last checkpoint are kept: run the same command again to resume.")
@takes_studies(top=True)
@takes_images
def train_top(
    context: Context,
    base: BaseCache,
    new: NewCache,
    out: RunsFolder,
    studies: list[Study],
    head: BaseHead = None,
    *,
    images: Images,
    checkpoint_every: CheckpointEvery = 100,
    config_file: ConfigOption = None,
    overwrite: Overwrite = False,
) -> None:
    """Train the top blocks of a backbone, and its head, on new classes that arrive in tasks.

    Reads the caches of `clinit extract` for rows, backbone and images, so that a
    run sees the same stream as `clinit train-head`. Everything below the top
    blocks is frozen: its output is computed once and stored. Give the same
    command again to resume a killed run.
    """
    check_caches(base, new, head=head)
    check_writable(out)
    from clinit.headtrain import runs

    with claimed_folder(out):
        places = runs.places_of(studies, out, overwrite=overwrite)
        data = read_images(images, {"": head})
        # Before activations are computed: a place that is taken is refused at once.
        left = runs.left_of(places, data, overwrite=overwrite)
        tell_left(places.values(), left.values())
        runs.train_top(
            data,
            left,
            watch=training_progress,
            checkpoint_every=checkpoint_every,
            overwrite=overwrite,
        )
    show_runs(places.values(), left.values())
