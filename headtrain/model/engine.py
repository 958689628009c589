"""What computes the logits of images: an engine, and how images are read for it.

Images are files, Pillow's, or pixels; nothing here imports PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from clinit.errors import ImageError, ModelError, StorageError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.extract.dataset import decode
from clinit.files.paths import exists
from clinit.headtrain.heads.array import as_array, to_numpy
from clinit.headtrain.model.reading import Reading

P = TypeVar("P")
AnyPath = str | os.PathLike[str]
Logits = Float[np.ndarray, "images classes"]
AnsweredBatch = tuple[Sequence[int], Logits, Mapping[int, str]]
"""Numbers of images, their logits, and by number why an image cannot be read."""
MODEL_FILE, MEMORY_FILE = "model.safetensors", "memory.safetensors"


@runtime_checkable
class Engine(Protocol):
    """What turns images into logits: a timm network, or an ONNX graph."""

    @property
    def transform(self) -> Any:
        """The transform of the images (`clinit.extract.network.transform.Transform`)."""

    @property
    def device(self) -> str:
        """Where it computes."""

    @property
    def depends_on(self) -> dict[str, str]:
        """The facts that the features depend on, as in a memory."""

    def answered(self, images: Sequence[Any], reading: Reading) -> Generator[AnsweredBatch]:
        """Yield the logits of images (files, PIL images, arrays of pixels), in batches.

        Raises:
            ModelError: If the network cannot process the images.
            MachineError: If the memory does not suffice, or the storage fails.
        """

    def fingerprint(self, dtype: str) -> Fingerprint:
        """Return the fingerprint of features that are stored as `dtype`."""

    def with_heads(self, heads: Sequence[Head]) -> Engine:
        """Return the engine with the logits of these heads, one after the other."""


def refused_size(error: Exception, crop: Sequence[int]) -> ModelError:
    """Return the error to raise if a network fails on images of the size in its file."""
    size = " x ".join(map(str, crop))
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return ModelError(
        f"the network of the model cannot process images of {size} pixels, the size in its file:"
        f" {why}",
        remedy="Export the run again.",
    )


def read_image(image: Any, prepare: Callable[[Any], P]) -> tuple[P | None, str | None]:
    """Return what `prepare` makes of an image, or why it cannot be read.

    Args:
        image: A path, a PIL image or an array of pixels.
        prepare: Called with the content of the file, or with pixels (height, width, 3).

    Raises:
        MachineError: If there is too little memory, or the storage fails.
        ValueError: If an array contains no pixels.
    """
    try:
        if not isinstance(image, Path):
            return prepare(pixels_of(image)), None
        if not is_there(image):
            return None, decode.MISSING
        return prepare(decode.read_image_file(image.absolute(), Path("/"), need_rights=False)), None
    except ImageError as error:
        return None, str(error)
    except MemoryError as error:
        raise decode.memory_error(Path(str(image))) from error


def pixels_of(image: Any) -> np.ndarray:
    """Return the pixels of a PIL image or an array, (height, width, 3) in uint8; grey is three."""
    if hasattr(image, "convert"):
        image = decode.pixels_of_pillow(image)
    pixels = to_numpy(as_array(image)) if hasattr(image, "ndim") else np.asarray(image)
    if pixels.ndim == 2:
        pixels = np.stack([pixels] * 3, axis=2)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(
            "expected an image file, a PIL image, pixels of uint8 (height, width, 3), or grey"
            f" (height, width), or features (rows, dim), got {pixels.dtype} of {pixels.shape}"
        )
    if not pixels.size:
        raise ImageError(f"no pixels: {pixels.shape[1]} x {pixels.shape[0]}", remedy="")
    return np.array(pixels)


def is_there(path: Path) -> bool:
    """Return whether a file exists, or cannot be looked for."""
    try:
        return exists(path)
    except StorageError:  # a folder above may not be entered: the reader says so
        return True
