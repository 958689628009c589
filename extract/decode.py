"""Image bytes to pixels.

JPEG, PNG, WebP, GIF, AVIF and HEIC are decoded by torchcodec: the same pixels as Pillow
(CMYK too) at several times its rate, without the interpreter lock, truncated files refused,
EXIF orientation applied and 16-bit samples scaled (Pillow clips them to white). What it does
not know (BMP, TIFF, PNM) is decoded by Pillow. Of an animation the first frame counts.
"""

from __future__ import annotations

import errno
import io
import os
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchcodec.decoders import decode_image

from clinit.errors import ImageError, ManifestError

MISSING = "the file is missing"
_REMEDY = "Replace the file and extract into a new folder, or leave its row invalid."


def decoder_version() -> str:
    """Return the decoders and their versions, as they stand in a fingerprint."""
    return f"torchcodec {version('torchcodec')}, pillow {version('pillow')}"


def read_image_file(path: Path, root: Path) -> bytes:
    """Return the content of an image file.

    Raises:
        ImageError: If this one file is empty, absent or may not be read.
        ManifestError: If the folder around it has vanished or the storage fails: then it is
            not this file that is bad, and no row may be marked invalid for it.
    """
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise ImageError("a link that leaves the root", remedy=_REMEDY)
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise ImageError("not a regular file", remedy=_REMEDY)
        content = path.read_bytes()
    except PermissionError as error:
        raise ImageError("no permission to read the file", remedy=_REMEDY) from error
    except FileNotFoundError as error:
        if path.parent.is_dir():
            raise ImageError(MISSING, remedy=_REMEDY) from error
        raise ManifestError(
            f"the folder {path.parent} has vanished",
            remedy=f"Mount {root} again, then run the same `clinit extract` command: it resumes.",
        ) from error
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise ImageError(f"cannot be read: {error.strerror}", remedy=_REMEDY) from error
        raise ManifestError(
            f"cannot read {path}: {error.strerror}",
            remedy="Check the storage, then run the same `clinit extract` command: it resumes.",
        ) from error
    if not content:
        raise ImageError("the file is empty", remedy=_REMEDY)
    return content


def decode(content: bytes) -> UInt8[Tensor, "3 height width"]:
    """Decode an image to RGB, upright.

    Raises:
        ImageError: If the content is not a whole image of a known format.
    """
    encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    try:
        image = decode_image(encoded, mode="RGB")
    except ValueError:
        return _decode_with_pillow(content)
    except RuntimeError as error:
        raise ImageError(f"cannot be decoded: {_reason(error)}", remedy=_REMEDY) from error
    return image[0] if image.ndim == 4 else image


def _reason(error: RuntimeError) -> str:
    """Return the decoder's message without the place in its source."""
    return str(error).splitlines()[0].rsplit(".cpp:", 1)[-1].lstrip("0123456789, ").rstrip(". ")


def _decode_with_pillow(content: bytes) -> UInt8[Tensor, "3 height width"]:
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content)) as file:
            # Pillow warns of odd metadata and of large images; the pixels are what counts.
            warnings.simplefilter("ignore")
            image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I;16"):
                samples = np.asarray(image, dtype=np.float32) / 257
                image = Image.fromarray(np.rint(samples).astype(np.uint8))
            pixels = np.array(image.convert("RGB"))
    except UnidentifiedImageError as error:
        raise ImageError("not an image of a known format", remedy=_REMEDY) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"cannot be decoded: {error}", remedy=_REMEDY) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
