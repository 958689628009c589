"""Image bytes to pixels.

JPEG, PNG, WebP, GIF, AVIF and HEIC are decoded by torchcodec: the same pixels as Pillow
(CMYK too) at several times its rate, without the interpreter lock, truncated files refused,
EXIF orientation applied and 16-bit samples scaled (Pillow clips them to white). What it does
not know (BMP, TIFF, PNM, JPEG 2000) is decoded by Pillow. Of an animation the first frame counts.

Nothing is decoded before its header has said that it is not too large. Where the machine fails,
and not the image, everything stops: a row must not be marked invalid for that.
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

from clinit.errors import ImageError, MachineError, ManifestError
from clinit.extract.image_size import (
    MAX_PIXELS,
    MAX_SCANS,
    ImageSize,
    NoSizeError,
    ScansError,
    first_frame,
    image_size,
)
from clinit.machine import out_of_memory

MISSING = "the file is missing"
EMPTY = "the file is empty"
_BYTES_PER_PIXEL = 24
"""More than any decoder takes: the coefficients of a progressive JPEG with its pixels are 9."""
_SPARE = 2**25
_PILLOW_FORMATS = ("BMP", "DIB", "JPEG2000", "PPM", "TIFF")
"""Pillow knows more, but some start other programs, and some have sizes that no header says."""
_OF_LIMIT = "of --max-pixels"
_REMEDY = "Replace the file and extract into a new folder, or leave its row invalid."
_AGAIN = "then run the same command again: `clinit extract` resumes."


def decoder_version() -> str:
    """Return the decoders and their versions, as they stand in a fingerprint."""
    return f"torchcodec {version('torchcodec')}, pillow {version('pillow')}"


def read_image_file(
    path: Path, root: Path, *, size: int | None = None, need_rights: bool = True
) -> bytes:
    """Return the content of an image file.

    Args:
        path: The file.
        root: The folder that a link may not leave.
        size: Size of the file in bytes, as the manifest has it; None where it is unknown.
        need_rights: Whether a file that may not be read stops everything, as it should among the
            images of a data set. Otherwise it is one bad image.

    Raises:
        ImageError: If this one file is empty or absent, or is no file.
        ManifestError: If the folder around it has vanished, or it has another size: then it is
            not the image of the manifest.
        MachineError: If it may not be read, the storage fails, or memory or open files are short.
            No row may be marked invalid for that.
    """
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise ImageError("a link that leaves the root", remedy=_REMEDY)
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise ImageError("not a regular file", remedy=_REMEDY)
        content = path.read_bytes()
    except PermissionError as error:
        if not need_rights:
            raise ImageError("no permission to read the file", remedy=_REMEDY) from error
        raise read_error(path, error) from error
    except FileNotFoundError as error:
        if path.parent.is_dir():
            raise ImageError(MISSING, remedy=_REMEDY) from error
        raise ManifestError(
            f"the folder {path.parent} has vanished", remedy=f"Mount {root} again, {_AGAIN}"
        ) from error
    except MemoryError as error:
        raise memory_error(path) from error
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise ImageError(f"cannot be read: {error.strerror}", remedy=_REMEDY) from error
        raise read_error(path, error) from error
    if size is not None and len(content) != size:
        raise ManifestError(
            f"{path} has {len(content):,} bytes, the manifest says {size:,}: it is another image",
            remedy="Put the old images back; or build the manifest again with `clinit manifest"
            " build` and extract into a new folder.",
        )
    if not content:
        raise ImageError(EMPTY, remedy=_REMEDY)
    return content


def read_error(path: Path, error: OSError) -> MachineError:
    """Return the error of a file that the machine does not read."""
    if isinstance(error, PermissionError):
        return MachineError(
            f"no permission to read {path}",
            remedy=f"Get the right to read it and its folder (`ls -ld` shows who has it), {_AGAIN}",
        )
    cause = {
        errno.EMFILE: "Raise the number of open files (`ulimit -n`)",
        errno.ENFILE: "End programs that hold many files open",
        errno.ENOMEM: "Free memory",
    }.get(error.errno or 0, "Check the storage")
    return MachineError(
        f"cannot read {path}: {error.strerror or error}", remedy=f"{cause}, {_AGAIN}"
    )


def memory_error(path: Path) -> MachineError:
    """Return the error of an image for which the memory does not suffice."""
    return MachineError(
        f"not enough memory to decode {path}",
        remedy="Free memory, give fewer --workers, or a lower --max-pixels to leave out the"
        f" largest images; {_AGAIN}",
    )


def decode(content: bytes, *, max_pixels: int = MAX_PIXELS) -> UInt8[Tensor, "3 height width"]:
    """Decode an image to RGB, upright.

    Args:
        content: Content of the file.
        max_pixels: Width times height that is still decoded; what is larger is a bad image.

    Raises:
        ImageError: If the content is not a whole image of a known format, or too large.
        MemoryError: If the memory does not suffice.
    """
    try:
        size = image_size(content)
        content = first_frame(content)
    except NoSizeError as error:
        raise ImageError(
            "cannot be decoded: its header is damaged or does not say how large it is",
            remedy=_REMEDY,
        ) from error
    except ScansError as error:
        raise ImageError(
            f"cannot be decoded: a progressive JPEG of more than {MAX_SCANS} scans", remedy=_REMEDY
        ) from error
    if size is not None:
        check_pixels(size, max_pixels)
    try:
        return _decode(content, size, max_pixels)
    except ImageError:
        # Some decoders call a file corrupt where the memory was short.
        _need_memory(size)
        return _decode(content, size, max_pixels)


def check_pixels(size: ImageSize, max_pixels: int, what: str = "") -> None:
    """Check that an image is not too large.

    Raises:
        ImageError: If it is.
    """
    if size.pixels > max_pixels:
        more = f" in {size.pixels:,} pixels of all pictures"
        raise ImageError(
            f"too large: {size.width:,} x {size.height:,} pixels{what}"
            f"{more if size.pixels > size.width * size.height else ''}, more than the"
            f" {max_pixels:,} {_OF_LIMIT}",
            remedy="Raise `--max-pixels`, or leave its row invalid.",
        )


def is_too_large(reason: str) -> bool:
    """Return whether the message of an error, or the reason of a row, is that of `check_pixels`."""
    return reason.endswith(_OF_LIMIT)


def _need_memory(size: ImageSize | None) -> None:
    """Take and give back what an image could need.

    Raises:
        MemoryError: If there is less.
    """
    np.empty(_SPARE + _BYTES_PER_PIXEL * (size.pixels if size is not None else 0), dtype=np.uint8)


def _decode(
    content: bytes, size: ImageSize | None, max_pixels: int
) -> UInt8[Tensor, "3 height width"]:
    if size is None:
        return _decode_with_pillow(content, max_pixels)
    try:
        image = decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode="RGB")
    except (RuntimeError, ValueError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        raise ImageError(f"cannot be decoded: {_reason(error)}", remedy=_REMEDY) from error
    return image[0] if image.ndim == 4 else image


def _reason(error: Exception) -> str:
    """Return the decoder's message without the place in its source."""
    return str(error).splitlines()[0].rsplit(".cpp:", 1)[-1].lstrip("0123456789, ").rstrip(". ")


def _decode_with_pillow(content: bytes, max_pixels: int) -> UInt8[Tensor, "3 height width"]:
    try:
        with warnings.catch_warnings():
            # Pillow warns of odd metadata and of large images; the pixels are what counts.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=_PILLOW_FORMATS) as file:
                check_pixels(ImageSize(*file.size, file.width * file.height), max_pixels)
                image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I;16"):
                samples = np.asarray(image, dtype=np.float32) / 257
                image = Image.fromarray(np.rint(samples).astype(np.uint8))
            pixels = np.array(image.convert("RGB"))
    except UnidentifiedImageError as error:
        raise ImageError("not an image of a known format", remedy=_REMEDY) from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        raise ImageError(f"cannot be decoded: {error}", remedy=_REMEDY) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
