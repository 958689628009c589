"""Decode images.

torchcodec decodes JPEG, PNG, WebP, GIF and AVIF. It returns the same pixels as Pillow (for CMYK
too), several times as fast and without the interpreter lock, refuses truncated files, applies the
EXIF orientation, and scales 16-bit samples (Pillow clips them to white). Pillow decodes the formats
that torchcodec does not support (BMP, TIFF, PNM, JPEG 2000, HEIC if pillow-heif is installed), and
the first frame of animations.

PyTorch is imported when it is needed: ONNX files are used without it, and Pillow alone decodes.

The header is read first, so that images above the size limit are never decoded: by Pillow, unless
the first bytes are of a usual JPEG file. Pillow would hold the interpreter lock ten times as long.

A CUDA device can decode the JPEG files of a batch at once (nvJPEG, through torchcodec) if they are
whole, RGB or grey, and stored upright. It enlarges the coarser colours of a file differently (mean
difference 1 to 3 of 255 levels, up to 30 at edges), so the fingerprint contains the decoder. The
CPU decodes the images that the device refuses.

If the machine fails, and not the image, the extraction stops, because such a failure must not mark
the row invalid.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from clinit.errors import ImageError, MachineError, ManifestError, reason
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.dataset.tree import HEIC_READER, READS_HEIC
from clinit.files.paths import is_folder
from clinit.machine import out_of_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")
MAX_SCANS = 500
"""Maximum number of scans of a progressive JPEG; encoders write about ten. The decoder passes over
all pixels for each scan: even a scan of 53 bytes takes 2 ns per pixel."""
MAX_FILE_BYTES = 2**30
"""Larger files are refused before memory is reserved: `MAX_PIXELS` pixels of 8 bytes fit."""
MISSING = "the file is missing"
EMPTY = "the file is empty"
_BYTES_PER_PIXEL = 24
"""Upper bound for any decoder; coefficients and pixels of a progressive JPEG take 9."""
_SPARE = 2**26
_MOST_TOGETHER = 2**25
"""Pixels that a device decodes at a time: 100 MB, and up to 13 times that to resize them."""
_MOST_DIFFERENCE = 2.0
"""Of 255 levels; on an H200, decoders differ by 0.3 in noise, and by 5 if a tenth is missing."""
_TOO_MANY = 8
_END_OF_IMAGE = b"\xff\xd9"
_START_OF_SCAN = b"\xff\xda\0"
"""The marker of a scan, and the zero byte with which the length of its header begins."""
_ORIENTATION = 0x0112
"""EXIF tag of the orientation; 1 means upright."""
_WHITE = {"I": (255, 65535), "F": (1, 255, 65535)}
"""Values that white may have in the modes of Pillow for samples of 32 bits."""
_ANIMATIONS = ("GIF", "WEBP")
_PILLOW_FORMATS = ("BMP", "DIB", "JPEG2000", "PPM", "TIFF", *(("HEIF",) if READS_HEIC else ()))
"""Other formats of Pillow are left out: some start other programs, some have no size in the
header."""
_FORMATS = (*_ANIMATIONS, "AVIF", "JPEG", "PNG", *_PILLOW_FORMATS)
_HEIC = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
_REMEDY = "Replace the file and extract into a new folder, or leave its row invalid."
_AGAIN = "then run the same command again: `clinit extract` resumes."
# Pillow's own limit would refuse images before `decode` checks them against `--max-pixels`.
Image.MAX_IMAGE_PIXELS = None
if READS_HEIC:
    from pillow_heif import register_heif_opener

    register_heif_opener()


def decoder_version(decoder: str = "cpu") -> str:
    """Return the decoders and their versions as text, for fingerprints.

    Args:
        decoder: `cpu`, or `cuda` if the device decodes the images that it can.
    """
    of_device = {"cpu": "", "cuda": "nvjpeg, "}[decoder]
    return f"{of_device}torchcodec {version('torchcodec')}, pillow {version('pillow')}"


def read_whole(path: Path) -> bytes:
    """Return the content of an image file.

    Raises:
        ImageError: If it is no regular file, or too large, as sparse files may be.
        OSError: If it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe must not wait
    try:
        status = os.fstat(file)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise ImageError("not a regular file", remedy=_REMEDY)
        check_bytes(status.st_size)
        content = os.read(file, status.st_size)
        if len(content) < status.st_size:
            content += b"".join(iter(lambda: os.read(file, 2**20), b""))
        return content
    finally:
        os.close(file)


def check_bytes(size: int) -> None:
    """Check that the file of an image is not too large.

    Raises:
        ImageError: If it is.
    """
    if size > MAX_FILE_BYTES:
        raise ImageError(f"too large: {size:,} bytes, more than {MAX_FILE_BYTES:,}", remedy=_REMEDY)


def read_image_file(
    path: Path, root: Path, *, size: int | None = None, need_rights: bool = True
) -> bytes:
    """Return the content of an image file.

    Args:
        path: The file.
        root: The folder that the file must be in after links are resolved.
        size: Size of the file in bytes, from the manifest; None if unknown.
        need_rights: Whether missing read permission is an error of the machine, which stops an
            extraction, instead of a bad image.

    Raises:
        ImageError: If this one file is empty, absent, too large or not a regular file.
        ManifestError: If the folder of the file has vanished, or the size of the file differs from
            the manifest.
        MachineError: If read permission, memory or file handles are missing, or the storage fails.
            No row may be marked invalid for that.
    """
    try:
        # Only the last part is looked at again for each image.
        real = os.path.realpath(path) if path.is_symlink() else _real(str(path.parent)) + path.name
        if not f"{real}/".startswith(_real(str(root))):
            raise ImageError("a link that leaves the root", remedy=_REMEDY)
        content = read_whole(path)
    except PermissionError as error:
        if not need_rights:
            raise ImageError("no permission to read the file", remedy=_REMEDY) from error
        raise read_error(path, error) from error
    except FileNotFoundError as error:
        if is_folder(path.parent):
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


@lru_cache(maxsize=2**12)
def _real(folder: str) -> str:
    """Return a folder without links, with `/` at the end."""
    return f"{os.path.realpath(folder).rstrip('/')}/"


def read_error(path: Path, error: OSError) -> MachineError:
    """Return the error for a file that the machine cannot read."""
    if isinstance(error, PermissionError):
        return MachineError(
            f"no permission to read {path}",
            remedy=f"Allow reading it and its folder (`ls -ld` shows permissions), {_AGAIN}",
        )
    return MachineError(
        f"cannot read {path}: {reason(error)}",
        remedy=f"Check the storage, the memory and the open files (`ulimit -n`), {_AGAIN}",
    )


def memory_error(path: Path) -> MachineError:
    """Return the error for an image that needs more memory than is free."""
    return MachineError(
        f"not enough memory to decode {path}",
        remedy="Free memory, give fewer --workers, or give a lower --max-pixels to leave out the"
        f" largest images; {_AGAIN}",
    )


def decode(content: bytes, *, max_pixels: int = MAX_PIXELS) -> UInt8[Tensor, "3 height width"]:
    """Decode an image to RGB, upright.

    Args:
        content: Content of the file.
        max_pixels: Maximum width times height; larger images are refused.

    Raises:
        ImageError: If the image is incomplete, damaged, too large, or of an unsupported format.
        MemoryError: If there is too little memory.
    """
    import torch

    usual, by_pillow = _usual_jpeg(content), False
    if usual is not None:
        size = usual.size
    else:
        file = _checked(content, max_pixels)
        size = file.size
        is_animated = file.format in _ANIMATIONS and getattr(file, "is_animated", False)
        by_pillow = is_animated or file.format in _PILLOW_FORMATS
    check_pixels(*size, max_pixels)
    if by_pillow:
        pixels = _tried_twice(_decode_with_pillow, size, content)
        return torch.from_numpy(pixels).permute(2, 0, 1)
    return _tried_twice(_decode_with_torchcodec, size, content)


def decode_with_pillow(
    content: bytes, *, max_pixels: int = MAX_PIXELS
) -> UInt8[np.ndarray, "height width 3"]:
    """Decode an image as `decode` does, with Pillow alone."""
    return _tried_twice(_decode_with_pillow, _checked(content, max_pixels).size, content)


def _tried_twice(decode_with: Callable[[bytes], T], size: tuple[int, int], content: bytes) -> T:
    try:
        return decode_with(content)
    except ImageError:
        # Some decoders call a file corrupt if memory is short: check the memory, then try again.
        _need_memory(size[0] * size[1])
        return decode_with(content)


_SEGMENTS = {0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE}
"""Markers that may precede the size in a usual JPEG file: tables and metadata."""
_EXIF, _ADOBE = 0xE1, 0xEE


class _UsualJpeg(NamedTuple):
    """The header of a JPEG file."""

    size: tuple[int, int]
    """Width and height."""
    is_plain: bool
    """Whether its colours are the usual ones, grey included, and no metadata may turn it."""


def _usual_jpeg(content: bytes) -> _UsualJpeg | None:
    """Return the header of a JPEG file; None if it is progressive, unusual or damaged."""
    place, is_plain = 2 if content.startswith(b"\xff\xd8") else len(content), True
    while place + 10 <= len(content):
        start, marker, length, bits, height, width, colours = struct.unpack_from(
            ">BBHBHHB", content, place
        )
        if start == 0xFF and marker in (0xC0, 0xC1):
            plain = is_plain and colours in (1, 3)
            return _UsualJpeg((width, height), plain) if bits == 8 and height else None
        if start != 0xFF or marker not in _SEGMENTS:
            return None
        is_plain = is_plain and marker not in (_EXIF, _ADOBE)
        place += 2 + length
    return None


class ForDevice(NamedTuple):
    """A JPEG file for a CUDA device."""

    content: bytes
    encoded: UInt8[Tensor, " bytes"]
    """The content, as the decoder takes it."""
    pixels: int

    @classmethod
    def of(cls, content: bytes, width: int, height: int) -> ForDevice:
        """Return the file for a device, with its size in pixels."""
        import torch

        encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return cls(content, encoded, width * height)


def for_device(content: bytes, *, max_pixels: int = MAX_PIXELS) -> ForDevice | None:
    """Return an image that a device can decode: a whole JPEG file, RGB or grey, stored upright.

    A device decodes a truncated file without an error, so all files that do not end with the mark
    of their end are left to the CPU.

    Raises:
        ImageError: As in `decode`, if the header is enough to refuse the image.
    """
    whole, usual = content.endswith(_END_OF_IMAGE), _usual_jpeg(content)
    if usual is not None and usual.is_plain:
        check_pixels(*usual.size, max_pixels)
        return ForDevice.of(content, *usual.size) if whole else None
    file = _checked(content, max_pixels)
    upright = file.getexif().get(_ORIENTATION, 1) == 1
    fits = whole and file.format == "JPEG" and upright and file.mode in ("RGB", "L")
    fits = fits and file.info.get("adobe_transform", 1) == 1
    return ForDevice.of(content, *file.size) if fits else None


def decode_on(
    device: torch.device, files: Sequence[ForDevice]
) -> Iterator[list[UInt8[Tensor, "3 _h _w"] | None]]:
    """Yield the pixels of the next files on a CUDA device; None for a file that it refuses.

    Files are decoded together; if one is refused, or memory is short, each alone, so that pixels do
    not depend on other files.

    Raises:
        MachineError: If the device refuses many files and decodes none.
        MemoryError: If there is too little memory for one image.
    """
    first = 0
    while first < len(files):
        sizes = accumulate(each.pixels for each in files[first:])
        together = files[first : first + max(1, sum(size <= _MOST_TOGETHER for size in sizes))]
        first += len(together)
        if (images := _decoded_on(device, together)) is not None:
            yield [*images]
            continue
        alone: list[Tensor | None] = []
        for each in together:
            alone += _decoded_on(device, [each]) or [None]
            if len(alone) == _TOO_MANY and not any(image is not None for image in alone):
                raise wrong_decoder(f"decodes none of {_TOO_MANY} JPEG files")
        yield alone


def _decoded_on(device: torch.device, files: Sequence[ForDevice]) -> list[Tensor] | None:
    from torchcodec.decoders import decode_jpeg

    try:
        # Of bytes it would make tensors itself, one by one, in the thread that all wait for.
        found = decode_jpeg([each.encoded for each in files], mode="RGB", device=device)
    except (RuntimeError, ValueError) as error:
        if out_of_memory(error) and len(files) == 1:
            raise MemoryError from error
        return None
    return list(found)


def wrong_decoder(what: str) -> MachineError:
    """Return the error for a device whose decoder does not work."""
    return MachineError(
        f"the decoder of the CUDA device {what}",
        remedy="Give `--decoder cpu` and another folder with `--out`; or update the driver of the"
        " GPU.",
    )


def differs(one: UInt8[Tensor, "3 height width"], other: UInt8[Tensor, "3 height width"]) -> bool:
    """Return whether two decoders disagree about an image.

    Only lightness is compared: decoders enlarge the coarser colours of a JPEG file differently.
    """
    if one.shape != other.shape:
        return True
    red, green, blue = (one.cpu().float() - other.cpu().float()).unbind()
    return bool((0.299 * red + 0.587 * green + 0.114 * blue).abs().mean() > _MOST_DIFFERENCE)


def _checked(content: bytes, max_pixels: int) -> Image.Image:
    """Read the header of an image, and check it.

    Raises:
        ImageError: If the format of the image is not supported, or the image is too large.
        MemoryError: If there is too little memory.
    """
    try:
        file = _opened(content)
    except ImageError:
        _need_memory(0)  # libwebp reserves a canvas, and fails if memory is short
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
    """Check that an image has at most `max_pixels` pixels.

    Raises:
        ImageError: If it has more.
    """
    if width * height > max_pixels:
        raise ImageError(
            f"too large: {width:,} x {height:,} pixels{what}, more than the {max_pixels:,}"
            " of --max-pixels",
            remedy="Raise `--max-pixels`, or leave its row invalid.",
        )


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Sizes and numbers of what a network is given: resize, centre crop, normalise."""

    resize: int | tuple[int, int]
    """Length of the shorter side, or (height, width) without keeping the aspect, in pixels."""
    crop: tuple[int, int]
    """(height, width) in pixels."""
    interpolation: str
    """nearest, bilinear or bicubic."""
    mean: tuple[float, ...]
    """Finite mean of each of the three channels, for pixels in [0, 1]."""
    std: tuple[float, ...]
    """Positive, finite standard deviation of each channel, for pixels in [0, 1]."""

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing; the longer side of a thin image can be huge."""
        if not isinstance(self.resize, int):
            return self.resize
        shorter = min(height, width)
        return self.resize * height // shorter, self.resize * width // shorter

    def check_resized(self, size: Sequence[int], max_pixels: int) -> tuple[int, int]:
        """Return height and width after resizing; refuse an image of too many pixels then."""
        height, width = self.resized(*size)
        check_pixels(width, height, max_pixels, " after resizing")
        return height, width

    def corner(self, resized: tuple[int, int]) -> tuple[int, int]:
        """Return top and left of the crop in a resized image, negative if that is smaller."""
        spare = [side - crop for side, crop in zip(resized, self.crop, strict=True)]
        top, left = (round(each / 2) if each > 0 else -(-each // 2) for each in spare)
        return top, left


def _need_memory(pixels: int) -> None:
    """Check that there is enough memory to decode an image, by allocating it for a moment.

    Raises:
        MemoryError: If there is too little.
    """
    np.empty(_SPARE + _BYTES_PER_PIXEL * pixels, dtype=np.uint8)


def _opened(content: bytes) -> Image.Image:
    is_heic = content[4:8] == b"ftyp" and content[8:12] in _HEIC and b"avif" not in content[:64]
    if is_heic and not READS_HEIC:  # often under the name .jpg
        raise ImageError(f"a photograph in HEIC: {HEIC_READER} lets clinit read it", remedy=_REMEDY)
    with _pillow_errors():
        return Image.open(io.BytesIO(content), formats=_FORMATS)


def _decode_with_torchcodec(content: bytes) -> UInt8[Tensor, "3 height width"]:
    import torch
    from torchcodec.decoders import decode_image

    try:
        image = decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode="RGB")
    except (RuntimeError, ValueError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        # Strip the position in torchcodec's source from its message.
        why = str(error).splitlines()[0].rsplit(".cpp:", 1)[-1].lstrip("0123456789, ").rstrip(". ")
        raise ImageError(f"cannot be decoded: {why}", remedy=_REMEDY) from error
    return image[0] if image.ndim == 4 else image


def _decode_with_pillow(content: bytes) -> UInt8[np.ndarray, "height width 3"]:
    with _pillow_errors():
        return _rgb(Image.open(io.BytesIO(content), formats=_FORMATS))


def pixels_of_pillow(image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
    """Return the pixels of an image in memory as `decode` would.

    Raises:
        ImageError: If its file is damaged, or white is unknown.
    """
    with _pillow_errors():
        return _rgb(image)


def _rgb(image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
    """Return RGB, upright; samples of 16 or 32 bits are scaled by the range that they fit."""
    image = ImageOps.exif_transpose(_on_background(image))
    if image.mode in _WHITE or image.mode.startswith("I;16"):
        samples = np.asarray(image, dtype=np.float64)
        least, most = float(samples.min()), float(samples.max())
        white = next((w for w in _WHITE.get(image.mode, (65535,)) if 0 <= least <= most <= w), None)
        if white is None:
            raise ImageError(
                f"samples of 32 bits from {least:g} to {most:g}, of unknown range", remedy=_REMEDY
            )
        image = Image.fromarray(np.rint(samples / white * 255).astype(np.uint8))
    return np.array(image.convert("RGB"))


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
            warnings.simplefilter("ignore")  # about odd metadata, which clinit does not use
            yield
    except UnidentifiedImageError as error:
        raise ImageError(
            "not an image of a known format, or its header is damaged", remedy=_REMEDY
        ) from error
    except (OSError, SyntaxError, ValueError, OverflowError, EOFError) as error:
        if out_of_memory(error):
            raise MemoryError from error
        raise ImageError(f"cannot be decoded: {error}", remedy=_REMEDY) from error
