"""Open the caches and heads of commands that train runs.

Commands first check that the files exist, before they load PyTorch, which takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clinit.cli.frame.console import note, say, tell, warn
from clinit.cli.frame.progress import doing
from clinit.errors import ExperimentError, HeadError
from clinit.extract.cache.plan import split_names
from clinit.files.paths import is_file

if TYPE_CHECKING:
    from clinit.headtrain.protocol.experiment import RunData
    from clinit.headtrain.protocol.study.study import Study
    from clinit.headtrain.top.images import TopImages
    from clinit.headtrain.top.inputs import ImageData


def check_caches(*paths: Path | None, head: Path | None = None) -> None:
    """Check that caches and a head file exist.

    Args:
        paths: The caches; None is skipped.
        head: The head file, if any.

    Raises:
        CacheError: If a path is not a cache.
        HeadError: If the head file does not exist.
    """
    for path in paths:
        if path is not None:
            split_names(path)
    if head is not None and not is_file(head):
        raise HeadError(
            f"no head file at {head}",
            remedy="`clinit extract` stores the pretrained head as head.safetensors in its cache.",
        )


def check_base(base: Sequence[Path] | None, head: object, studies: Sequence[Study] = ()) -> None:
    """If there are no base classes, check that no option needs them, and print a note."""
    if base:
        return
    widths = {study.start.head_width for study in studies}
    for option, found in (("--head", head), ("--head-width full", "full" in widths)):
        if found:
            raise typer.BadParameter(f"{option} needs base classes: add --base")
    note("no --base: the stream starts without classes, and its first task makes the head")


def read_data(
    base: Sequence[Path] | None,
    new: Sequence[Path],
    heads: Mapping[str, Path | None],
    memory: int | None = None,
) -> RunData:
    """Open the base and new caches, in memory if they fit, and the heads of each loss.

    Without `base`, streams start without classes.

    Raises:
        ExperimentError: If the base has no pretrained head, or the user gives a head without a
            base.
    """
    from clinit.headtrain.protocol.experiment import RunData
    from clinit.headtrain.protocol.stream.source import read_sources

    with doing("Reading the feature caches …"):
        *old, arriving = read_sources(*filter(None, (base, new)), memory=memory)
    tell_near(arriving.class_names, old[0].class_names if old else (), "--new", "--base")
    return RunData.of(
        old[0] if old else None, arriving, heads, observer=tell, command=["clinit", *sys.argv[1:]]
    )


def tell_near(names: Sequence[str], others: Sequence[str], of_names: str, of_others: str) -> None:
    """Warn about names that differ in spelling only, before anything is computed."""
    from clinit.extract.dataset.names import alike, near_names

    for text in (near_names(names, others, of_names, of_others), alike(names)):
        if text is not None:
            warn(text)


def read_images(images: TopImages, heads: Mapping[str, Path | None]) -> ImageData:
    """Open two caches with their images, and the heads of each loss."""
    from clinit.headtrain.top.inputs import ImageData

    with doing("Reading the caches …"):
        return ImageData.open(images, heads, observer=tell, command=["clinit", *sys.argv[1:]])


def heads_by_loss(words: Sequence[str]) -> dict[str, Path]:
    """Return the files of `--head [LOSS=]FILE` by loss; "" is the key of a file without a loss.

    Raises:
        ExperimentError: If two files are for the same runs.
    """
    from clinit.headtrain.heads.losses import LOSSES

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


def tell_left(places: Collection[Path], left: Collection[Path]) -> None:
    """Print the records in `places` that exist already: all that are not in `left`."""
    for place in places:
        if place not in left:
            say(f"{place} is already recorded")
