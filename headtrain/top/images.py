"""The two data sets of a top-block run: features for the stream, images for the network."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import ExperimentError
from clinit.extract.backbone import Backbone
from clinit.extract.cache import open_cache
from clinit.extract.reload import reload
from clinit.extract.transform import Transform
from clinit.headtrain.stream.source import read_source
from clinit.headtrain.top.inputs import Side


def open_side(cache: Path, root: Path | None, *, option: str) -> Side:
    """Open a feature cache and find its images.

    Args:
        cache: The feature cache.
        root: The folder of its images; default: where they were at extraction.
        option: The option that gives `root`, for the message.

    Raises:
        CacheError: If the cache cannot be read.
        ExperimentError: If its images are not there.
    """
    opened = open_cache(cache)
    train = opened.split("train")
    stored = train.summary.run.root
    if root is None and stored is None:
        raise ExperimentError(
            f"no images are known for the features in {cache}: they were imported",
            remedy="Extract the images with `clinit extract`; imported features are"
            " for `clinit train-head` alone.",
        )
    if root is None and not Path(stored or "").is_absolute():
        raise ExperimentError(
            f"the images of {cache} were in {stored}, seen from a folder that an earlier version of"
            " clinit has not recorded",
            remedy=f"Say where they are with {option}, or run the `clinit extract` command of this"
            " cache again: it records it and computes nothing.",
        )
    found = root if root is not None else Path(stored or "")
    # Not simply the first image: a bad image may have been missing from the start.
    first = found / train.manifest.file_of(int(train.valid.argmax()))
    if not first.is_file():
        raise ExperimentError(
            f"the images of {cache} are not in {found}: there is no {first}",
            remedy=f"Say where they are with {option}.",
        )
    return Side(read_source(cache), opened, found)


def reload_backbone(base: Side, weights: Path | None, device: str) -> tuple[Backbone, Transform]:
    """Return the network that computed the features, and the transform of its images.

    Raises:
        ClinitError: If the weights cannot be loaded, or differ from those of the extraction.
    """
    return reload(base.cache.split("train"), weights=weights, device=device)
