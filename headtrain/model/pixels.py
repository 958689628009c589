"""Read images for an engine: from files, from Pillow, or as pixels; nothing imports PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from clinit.errors import ImageError, StorageError
from clinit.extract.dataset import decode
from clinit.files.paths import exists
from clinit.headtrain.heads.array import as_array, to_numpy

P = TypeVar("P")


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
    """Return the pixels of a PIL image or an array, (height, width, 3) in uint8."""
    if hasattr(image, "convert"):
        from PIL import ImageOps

        image = ImageOps.exif_transpose(image).convert("RGB")
    elif hasattr(image, "ndim"):
        image = to_numpy(as_array(image))
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(
            f"expected an image file, a PIL image, pixels (height, width, 3) of uint8 or features"
            f" (rows, dim), got {pixels.dtype} of shape {pixels.shape}"
        )
    return np.array(pixels)


def is_there(path: Path) -> bool:
    """Return whether a file exists, or cannot be looked for."""
    try:
        return exists(path)
    except StorageError:  # a folder above may not be entered: the reader says so
        return True
