"""`clinit remember`: let a model keep the statistics of its classes, for classes to come."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import typer

from clinit.cli.claim import claimed_file
from clinit.cli.config import ConfigOption
from clinit.cli.console import say
from clinit.cli.interruption import keeps
from clinit.cli.model_source import (
    ModelAndImages,
    ModelOut,
    NetworkOptions,
    check_out,
    check_paths,
    listener,
    open_source,
    takes_network,
)
from clinit.cli.options import Overwrite
from clinit.cli.progress import doing
from clinit.cli.study_options import takes
from clinit.headtrain.deployed.settings import RememberConfig
from clinit.words import number_of

if TYPE_CHECKING:
    from pathlib import Path

    from clinit.headtrain.deployed.remember import Remembered


@keeps("The features computed so far are kept: the same command goes on after them.")
@takes("config", RememberConfig)
@takes_network
def remember(
    paths: ModelAndImages,
    out: ModelOut,
    config: RememberConfig,
    network: NetworkOptions,
    overwrite: Overwrite = False,
    config_file: ConfigOption = None,
) -> None:
    """Let a model remember its classes: no image, but their statistics.

    IMAGES is a folder with a folder of images for each class, named as the model
    names it. `clinit add` then needs none of these images: it draws features from
    the statistics, and measures old accuracy on the features kept aside. With
    --backbone a network of timm becomes a model that remembers.

    clinit remember scenes/ photographs/ --out scenes-with-memory/
    """
    check_paths(paths, network)
    if out.suffix == ".safetensors":
        raise typer.BadParameter(f"--out is a folder here: a file remembers nothing, got {out}")
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.deployed.edit import write_classes
    from clinit.headtrain.deployed.images import image_features, where_from
    from clinit.headtrain.deployed.remember import check_own
    from clinit.headtrain.deployed.remember import remember as remember_classes

    with claimed_file(out):
        model, images = open_source(paths, network)
        source, folder = image_features(
            model,
            images,
            out=out,
            features=network.features,
            config=network.extraction(),
            check=partial(check_own, model.facts),
            listener=listener(),
        )
        data = {"command": ["clinit", *sys.argv[1:]], **where_from(model, images, source)}
        found = remember_classes(model, source, config, data=data)
        with doing("Putting backbone and head together …"):
            write_classes(model, found.classes, out, overwrite=overwrite)
    _show(found, folder, out)


def _show(found: Remembered, folder: Path, out: Path) -> None:
    memory, change = found.classes.memory, found.classes.facts.history[-1]
    assert memory is not None
    say(
        f"{found.num_remembered:,} of {found.classes.facts.num_classes:,} classes remembered, of"
        f" {number_of(sum(change.images.values()), 'image')}; their features are at {folder}"
    )
    if found.kept_from_before:
        say(f"{found.kept_from_before:,} others as they were remembered before")
    if found.accuracy.percent is not None:
        say(
            f"Top-1 {found.accuracy.percent:.2f} % on"
            f" {number_of(found.accuracy.total, 'image')} kept aside"
        )
    say(
        f"Means of {memory.dim} numbers, one covariance,"
        f" {number_of(len(memory.held_out.labels), 'feature')} kept aside,"
        f" {len(memory.kept.labels):,} for rehearsal: {memory.num_bytes / 1e6:,.1f} MB"
    )
    say(f"Model folder at {out}")
