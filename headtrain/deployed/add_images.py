"""The whole of an addition: from a folder of images to a written model with their classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from clinit.extract.run import ExtractConfig
from clinit.headtrain.deployed.add import Addition, add, replaced_rows
from clinit.headtrain.deployed.edit import Extra, no_extra, write_classes
from clinit.headtrain.deployed.images import SILENT, Listener, image_features, where_from
from clinit.headtrain.deployed.model import Model, check_features
from clinit.headtrain.deployed.settings import AddConfig
from clinit.headtrain.stream.source import Source, read_source
from clinit.words import examples


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """What is to be added, and where it goes."""

    images: Path
    """A folder of images for each class, or `train` and `val` with such folders."""
    out: Path
    """Folder of the new model, or a file that ends in .safetensors."""
    config: AddConfig
    extraction: ExtractConfig
    overwrite: bool = False
    """Whether a model that is at `out` is replaced."""
    replacing: bool = False
    """Whether classes that the model has are replaced."""
    old: Source | Path | None = None
    """Features of old classes, in place of what the model remembers."""
    features: Path | None = None
    """Folder of the features of the images; None for one beside `out`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the history is to say beside where everything is from."""


def add_images(
    model: Model, request: AddRequest, *, listener: Listener = SILENT, extra: Extra = no_extra
) -> tuple[Addition, Path]:
    """Add the classes of a folder of images to a model, and write the new model.

    What is there of the features is kept: work that was interrupted goes on.

    Args:
        model: The model; it is not changed.
        request: What is to be added.
        listener: Hears of it.
        extra: Writers of further files of the model folder; see `write_classes`.

    Returns:
        What it led to, and the folder of the features.

    Raises:
        ClinitError: If the model, the images or the features cannot be used, or there is
            something at `request.out`.
    """
    if request.config.recognises_nothing:
        listener.warn(
            f"{request.config.init} rows that are not trained recognise nothing: leave out"
            " `--init`, or train the head with `--iterations 200`"
        )
    check = partial(replaced_rows, model.facts, allowed=request.replacing)
    images, folder = image_features(
        model,
        request.images,
        out=request.out,
        features=request.features,
        config=request.extraction,
        check=check,
        listener=listener,
    )
    old = None if request.old is None else _old_classes(request.old, model, listener)
    with listener.training() as observer:
        added = add(
            model,
            images,
            request.config,
            old=old,
            replacing=request.replacing,
            data={
                **request.data,
                **where_from(model, request.images, images),
                **({} if old is None else {"old": old.description}),
            },
            observer=observer,
        )
    with listener.doing("Putting backbone and head together …"):
        write_classes(model, added.classes, request.out, extra, overwrite=request.overwrite)
    return added, folder


def _old_classes(given: Source | Path, model: Model, listener: Listener) -> Source:
    if isinstance(given, Source):
        source = given
    else:
        with listener.doing("Reading the features of old classes …"):
            source = read_source(given)
    check_features(model, source)
    known = set(model.facts.class_names)
    if unknown := [name for name in source.class_names if name not in known]:
        listener.note(
            f"{len(unknown):,} of {len(source.class_names):,} classes in {source.path} are none of"
            f" the model ({examples(unknown)}): they are left out"
        )
    return source
