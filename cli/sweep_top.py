"""`clinit sweep --top`: a grid of runs with top blocks, one run after another."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clinit.cli.claim import claimed_folder
from clinit.cli.console import note, say
from clinit.cli.progress import doing
from clinit.cli.run_data import heads_by_loss, show_ranking
from clinit.cli.training_progress import run_progress
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.headtrain.study import Study
    from clinit.headtrain.top.images import Images


def sweep_top(
    runs: list[Study],
    images: Images,
    heads: list[str],
    out: Path,
    *,
    checkpoint_every: int,
    dry_run: bool,
) -> None:
    """Train the runs that the folder does not hold; print all of them, ranked."""
    from clinit.headtrain.record.format import check_free
    from clinit.headtrain.runs import RunData, train_top
    from clinit.headtrain.sweep.folder import open_folder, run_digest
    from clinit.headtrain.sweep.plan import run_names

    def checkpoint_of(run: Study) -> Path:
        """Return the checkpoint of a run: its name does not change when the grid grows."""
        return out / f"{run_digest(run)}.checkpoint"

    with claimed_folder(out):
        with doing("Reading the caches …"):
            sides, data = RunData.of_images(images, heads_by_loss(heads), on_note=note)
        folder = open_folder(out, data, {run.training.loss for run in runs})
        named = zip(runs, run_names(runs, folder.configs), strict=True)
        places = {run: folder.record_of(run) or out / name for run, name in named}
        left = {run: place for run, place in places.items() if folder.record_of(run) is None}
        check_free(left.values())
        for run in places.keys() - left:  # one that was killed after its record was written
            checkpoint_of(run).unlink(missing_ok=True)
        say(f"{number_of(len(runs), 'run')}, {len(runs) - len(left):,} recorded already")
        if dry_run:
            for place in left.values():
                say(f"  {place.name}")
            return
        train_top(
            data,
            left,
            images,
            sides,
            watch=partial(run_progress, verbose=False),
            checkpoint_of=checkpoint_of,
            checkpoint_every=checkpoint_every,
            command=["clinit", *sys.argv[1:]],
        )
    show_ranking([*places.values()])
    say(f"{number_of(len(runs), 'run record')} at {out}; each run: clinit report --by-seed {out}")
