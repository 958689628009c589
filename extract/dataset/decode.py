"""Image bytes to pixels.

JPEG, PNG, WebP, GIF and AVIF are decoded by torchcodec: the same pixels as Pillow (CMYK too) at
several times its rate, without the interpreter lock, truncated files refused, EXIF orientation
applied and 16-bit samples scaled (Pillow clips them to white). Formats unknown to it (BMP, TIFF,
PNM, JPEG 2000) are decoded by Pillow, and so is the first frame of an animation, which counts.

Pillow reads every header first: an image that is too large is never decoded.

A CUDA device can decode the JPEG files of a batch at once (nvJPEG, by torchcodec) if their pixels
are RGB or grey and stored upright. Its pixels differ from torchcodec's by a few steps of 255, so
that the decoder is in the fingerprint. Images that it refuses are decoded here after all.
If the machine fails, and not the image, everything stops: a row must not be marked invalid for
that.
"""

from __future__ import annotations

import errno
import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchcodec.decoders import decode_image, decode_jpeg

from clinit.errors import ImageError, MachineError, ManifestError, reason
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.machine import out_of_memory

MAX_SCANS = 500
"""Most scans of a progressive JPEG; encoders write about ten. Each passes over all pixels, however
few it changes: the decoder takes 2 ns per pixel even for a scan of 53 bytes."""
MISSING = "the file is missing"
EMPTY = "the file is empty"
_BYTES_PER_PIXEL = 24
"""More than any decoder takes: the coefficients of a progressive JPEG with its pixels are 9."""
_SPARE = 2**26
_START_OF_SCAN = b"\xff\xda\0"
"""With the zero that the length of a scan header begins with."""
_ORIENTATION = 0x0112
"""The EXIF tag of the side that is up; 1 is the top."""
_ANIMATIONS = ("GIF", "WEBP")
_PILLOW_FORMATS = ("BMP", "DIB", "JPEG2000", "PPM", "TIFF")
"""Pillow knows more, but some start other programs, and some have no size in their header."""
_FORMATS = (*_ANIMATIONS, "AVIF", "JPEG", "PNG", *_PILLOW_FORMATS)
_REMEDY = "Replace the file and extract into a new folder, or leave its row invalid."
_AGAIN = "then run the same command again: `clinit extract` resumes."
# Pillow's own limit would come before `--max-pixels`, which `decode` checks.
Image.MAX_IMAGE_PIXELS = None


def decoder_version(decoder: str = "cpu") -> str:
    """Return the decoders and their versions, as they stand in a fingerprint.

    Args:
        decoder: `cpu`, or `cuda`: the device decodes what it can.
    """
    of_device = {"cpu": "", "cuda": "nvjpeg, "}[decoder]
    return f"{of_device}torchcodec {version('torchcodec')}, pillow {version('pillow')}"


def read_image_file(
    path: Path, root: Path, *, size: int | None = None, need_rights: bool = True
) -> bytes:
    """Return the content of an image file.

    Args:
        path: The file.
        root: The folder that a link may not leave.
        size: Size of the file in bytes, from the manifest; None if it is unknown.
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
            f"{path} has {len(content):,} bytes, not {size:,} as in the manifest: another image",
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
    return MachineError(
        f"cannot read {path}: {reason(error)}",
        remedy=f"Check the storage, the memory and the open files (`ulimit -n`), {_AGAIN}",
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
        max_pixels: Largest width times height; a larger image is a bad one.

    Raises:
        ImageError: If the content is not a whole image of a known format, or too large.
        MemoryError: If the memory does not suffice.
    """
    file = _checked(content, max_pixels)
    is_animated = file.format in _ANIMATIONS and getattr(file, "is_animated", False)
    by_pillow = is_animated or file.format in _PILLOW_FORMATS
    decode_with = _decode_with_pillow if by_pillow else _decode_with_torchcodec
    try:
        return decode_with(content)
    except ImageError:
        # Some decoders call a file corrupt when memory is short.
        _need_memory(file.width * file.height)
        return decode_with(content)


def is_for_device(content: bytes, *, max_pixels: int = MAX_PIXELS) -> bool:
    """Return whether a device may decode an image: a JPEG file, RGB or grey, stored upright.

    Raises:
        ImageError: As `decode`, from the header alone.
    """
    file = _checked(content, max_pixels)
    upright = file.getexif().get(_ORIENTATION, 1) == 1
    return file.format == "JPEG" and file.mode in ("RGB", "L") and upright


def decode_on(
    device: torch.device, contents: Sequence[bytes], *, max_pixels: int = MAX_PIXELS
) -> Iterator[UInt8[Tensor, "3 _h _w"] | ImageError]:
    """Yield the pixels of JPEG files on a CUDA device, or why an image is bad.

    Those that the device refuses are decoded by `decode` and sent.

    Args:
        device: The device that decodes.
        contents: Of files that are for a device, see `is_for_device`.
        max_pixels: As of `decode`.
    """
    try:
        yield from decode_jpeg([*contents], mode="RGB", device=device)
        return
    except (RuntimeError, ValueError) as error:  # one bad file refuses the batch
        if out_of_memory(error):
            raise MemoryError from error
    for content in contents:
        try:
            yield decode(content, max_pixels=max_pixels).to(device)
        except ImageError as error:
            yield error


def _checked(content: bytes, max_pixels: int) -> Image.Image:
    """Read the header of an image, and check it.

    Raises:
        ImageError: If the image is of no known format, or too large.
        MemoryError: If the memory does not suffice.
    """
    try:
        file = _opened(content)
    except ImageError:
        _need_memory(0)  # libwebp reserves a canvas
        file = _opened(content)
    # torchcodec decodes all pictures of an AVIF sequence.
    pictures = getattr(file, "n_frames", 1) if file.format == "AVIF" else 1
    check_pixels(file.width, file.height * pictures, max_pixels)
    if file.info.get("progressive") and content.count(_START_OF_SCAN) > MAX_SCANS:
        raise ImageError(
            f"cannot be decoded: a progressive JPEG of more than {MAX_SCANS} scans", remedy=_REMEDY
        )
    return file


def check_pixels(width: int, height: int, max_pixels: int, what: str = "") -> None:
    """Check that an image is not too large.

    Raises:
        ImageError: If it is.
    """
    if width * height > max_pixels:
        raise ImageError(
            f"too large: {width:,} x {height:,} pixels{what}, more than the {max_pixels:,}"
            " of --max-pixels",
            remedy="Raise `--max-pixels`, or leave its row invalid.",
        )


def _need_memory(pixels: int) -> None:
    """Take and give back what an image could need.

    Raises:
        MemoryError: If there is less.
    """
    np.empty(_SPARE + _BYTES_PER_PIXEL * pixels, dtype=np.uint8)


def _opened(content: bytes) -> Image.Image:
    """Read the header of an image; nothing is decoded."""
    with _pillow_errors():
        return Image.open(io.BytesIO(content), formats=_FORMATS)


def _decode_with_torchcodec(content: bytes) -> UInt8[Tensor, "3 height width"]:
    try:
        image = decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode="RGB")
    except (RuntimeError, ValueError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        # The decoder's message without the place in its source.
        why = str(error).splitlines()[0].rsplit(".cpp:", 1)[-1].lstrip("0123456789, ").rstrip(". ")
        raise ImageError(f"cannot be decoded: {why}", remedy=_REMEDY) from error
    return image[0] if image.ndim == 4 else image


def _decode_with_pillow(content: bytes) -> UInt8[Tensor, "3 height width"]:
    with _pillow_errors():
        file = Image.open(io.BytesIO(content), formats=_FORMATS)
        image = ImageOps.exif_transpose(_on_background(file))
        if image.mode.startswith("I;16"):
            samples = np.asarray(image, dtype=np.float32) / 257
            image = Image.fromarray(np.rint(samples).astype(np.uint8))
        pixels = np.array(image.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _on_background(file: Image.Image) -> Image.Image:
    """Give the transparent pixels of a GIF the colour of its background, as torchcodec does."""
    palette = getattr(file, "global_palette", None)
    if palette is None or "transparency" not in file.info:
        return file
    index = 3 * file.info.get("background", 0)
    canvas = Image.new("RGBA", file.size, tuple(palette.palette[index : index + 3]))
    canvas.alpha_composite(file.convert("RGBA"))
    return canvas


@contextmanager
def _pillow_errors() -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata: the pixels are what counts
            yield
    except UnidentifiedImageError as error:
        raise ImageError(
            "not an image of a known format, or its header is damaged", remedy=_REMEDY
        ) from error
    except (OSError, SyntaxError, ValueError, OverflowError, EOFError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        raise ImageError(f"cannot be decoded: {error}", remedy=_REMEDY) from error
