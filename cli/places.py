"""What a command reads is there: asked before PyTorch is loaded, which takes seconds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from clinit.errors import ModelError, RecordError
from clinit.extract.cache_folder import split_names


def check_caches(*paths: Path | None, head: Path | None = None) -> None:
    """Check that there are caches, and a head file where one is given.

    Raises:
        CacheError: If there is no cache at one of the paths.
        HeadError: If there is no file of a head.
    """
    for path in paths:
        if path is not None:
            split_names(path)
    if head is not None and not head.is_file():
        from clinit.extract.head import read_head

        read_head(head)  # says what is wrong with it


def check_model(path: Path, images: Sequence[Path] = ()) -> None:
    """Check that there is something that may be a model, and that it is not among the images.

    Args:
        path: What is given as the model.
        images: What is given behind it.

    Raises:
        ModelError: If there is nothing at `path`, or it is no model and one of the images is.
    """
    if not path.exists():
        raise ModelError(
            f"no model file at {path}", remedy="Write one with `clinit export RUN --out FILE`."
        )
    model = next(filter(_looks_like_model, images), None)
    if model is not None and not _looks_like_model(path):
        raise ModelError(
            f"{path} is not a model, but {model} is one: are they swapped?",
            remedy=f"Give the model first: {shlex.quote(str(model))} {shlex.quote(str(path))}",
        )


def _looks_like_model(path: Path) -> bool:
    if path.is_dir():
        return (path / "model.safetensors").is_file()
    return path.suffix.lower() in (".safetensors", ".onnx", ".npz") and path.is_file()


def check_run(path: Path) -> None:
    """Check that there is something that may be a run record.

    Raises:
        RecordError: If there is nothing at `path`.
    """
    if not path.exists():
        raise RecordError(
            f"no run record at {path}: there is no such folder",
            remedy="Give a folder that `clinit train-head ... --out FOLDER` has written.",
        )
