"""Models in use from Python."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from clinit.api.caches import Cache
from clinit.extract.work.run import ExtractConfig
from clinit.files.lock import claim_file
from clinit.headtrain.events import Observer, ignore
from clinit.headtrain.model.add import Addition, AddRequest, add_images
from clinit.headtrain.model.edit import open_model
from clinit.headtrain.model.folder import check_free
from clinit.headtrain.model.images import Listener
from clinit.headtrain.model.settings import AddConfig


def add_classes(
    model: str | Path,
    images: str | Path,
    out: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    old: Cache | None = None,
    replace: bool = False,
    features: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    observer: Observer = ignore,
) -> Addition:
    """Add the classes of a folder of images to a model, and write the new model to `out`.

    The numbers are those of `clinit add`. What is there of the features is kept: a call that was
    interrupted goes on.

    Args:
        model: Folder or file of a model; it is not changed.
        images: A folder of images for each class, or `train` and `val` with such folders.
        out: Folder of the new model, or a file that ends in .safetensors.
        settings: Those of `clinit.headtrain.model.settings.AddConfig`, by name.
        old: Features of old classes, in place of what the model remembers.
        replace: Whether classes that the model has are replaced.
        features: Folder of the features of the images; default: `out` with `-features`.
        overwrite: Whether a model that is at `out` is replaced.
        device: `auto`, `cuda` or `cpu`.
        observer: Called with each event of the training.

    Raises:
        ValueError: If a setting is wrong.
        ClinitError: If the model, the images or the features cannot be used, or there is
            something at `out` that may not be replaced.
    """
    config, path = AddConfig(**(settings or {})), Path(out)
    listener = Listener(training=lambda: nullcontext(observer))
    with claim_file(path, on_busy=lambda: None):
        check_free(path, overwrite=overwrite)
        opened = open_model(model, device=device)
        request = AddRequest(
            images=Path(images),
            out=path,
            config=config,
            extraction=ExtractConfig(backbone=opened.backbone.config),
            overwrite=overwrite,
            replacing=replace,
            old=Path(old) if isinstance(old, str) else old,
            features=None if features is None else Path(features),
        )
        added, _ = add_images(opened, request, listener=listener)
    return added
