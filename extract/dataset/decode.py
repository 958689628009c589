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
import re
import struct
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torchcodec.decoders import decode_image

from clinit.errors import ImageError, MachineError, ManifestError
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.machine import out_of_memory

_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers that a size follows. The others of their row are tables."""
_SEGMENT = re.compile(rb"\xff[^\xff\x00\x01\xd0-\xd8]")
"""The next JPEG marker that a length follows; the stuffed zero and those that stand alone are
passed over, and so is a run of 0xFF before a marker."""
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
MAX_SCANS = 500
"""Most scans of a progressive JPEG; encoders write about ten. Each passes over all pixels, whatever
it says of them: the decoder takes 2 ns per pixel even for a scan of 53 bytes."""
_MAX_PARTS = 4096
"""Segments before the size in a JPEG file; boxes in a box. Photographs have tens of them."""
_ISO_BRANDS = tuple(b"avif avis heic heix heim heis hevc hevx mif1 msf1".split())
_ISO_PARTS = 4
"""Tiles, thumbnails, transparency and depth maps may hold this many times the picture's pixels."""

_Span = tuple[int, int]
"""Start and end of the content of a box, in bytes."""


class NoSizeError(Exception):
    """The header does not say how large the image is."""


class ScansError(Exception):
    """A progressive JPEG has more than `MAX_SCANS` scans."""


class ImageSize(NamedTuple):
    """The largest picture in a file."""

    width: int
    height: int
    pixels: int
    """All that the decoder would decode; more than width x height in a sequence of pictures."""


def image_size(content: bytes) -> ImageSize | None:
    """Return the size that stands in the header of an image; None for a format not known here.

    Raises:
        NoSizeError: If the format is one that torchcodec decodes, and its header does not say.
        ScansError: If it is a progressive JPEG that would take the decoder minutes.
    """
    try:
        if content[:3] == b"\xff\xd8\xff":
            width, height = _jpeg(content)
        elif content[:8] == b"\x89PNG\r\n\x1a\n":
            width, height = _png(content)
        elif content[:6] in (b"GIF87a", b"GIF89a"):
            width, height = _gif(content)
        elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            width, height = _webp(content)
        elif content[4:8] == b"ftyp" and any(brand in content[8:64] for brand in _ISO_BRANDS):
            return _iso(content)
        else:
            return None
    except (struct.error, IndexError) as error:
        raise NoSizeError from error
    return ImageSize(width, height, width * height)


def first_frame(content: bytes) -> bytes:
    """Return the content of a GIF or WebP file without the frames behind its first one.

    Raises:
        NoSizeError: If it cannot be told where the first frame ends.
    """
    try:
        if content[:4] == b"GIF8":
            return _gif_first(content)
        if content[:4] == b"RIFF" and content[12:16] == b"VP8X" and content[20] & 2:
            return _webp_first(content)
    except (struct.error, IndexError) as error:
        raise NoSizeError from error
    return content


def _jpeg(content: bytes) -> tuple[int, int]:
    for marker, at in _segments(content, 2):
        if marker in _FRAME_HEADERS:
            height, width = struct.unpack_from(">HH", content, at + 5)
            if marker & 3 == 2:  # progressive
                _check_scans(content, at)
            return width, height
    raise NoSizeError


def _segments(content: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield marker and place of the segments; as libjpeg, which skips what is no marker."""
    for _ in range(_MAX_PARTS):
        found = _SEGMENT.search(content, at)
        if found is None:
            return
        at = found.start()
        yield content[at + 1], at
        at += 2 + struct.unpack_from(">H", content, at + 2)[0]


def _check_scans(content: bytes, frame: int) -> None:
    """Check the number of scans behind the frame header of a progressive JPEG.

    Raises:
        ScansError: If there are too many.
    """
    # With the zero that the length of a scan header begins with, which makes it faster.
    if content.count(bytes((0xFF, _START_OF_SCAN, 0)), frame) <= MAX_SCANS:
        return
    # What follows the image, such as the film of a live photograph, holds those bytes by chance.
    scans = 0
    for marker, _ in _segments(content, frame):
        if marker == _END_OF_IMAGE:
            return
        scans += marker == _START_OF_SCAN
        if scans > MAX_SCANS:
            raise ScansError
    raise NoSizeError


def _png(content: bytes) -> tuple[int, int]:
    kind, width, height = struct.unpack_from(">4sII", content, 12)
    if kind != b"IHDR":
        raise NoSizeError
    return width, height


def _gif(content: bytes) -> tuple[int, int]:
    """Return the larger of canvas and first frame, a frame may be larger than its canvas."""
    width, height = struct.unpack_from("<HH", content, 6)
    frame_width, frame_height = struct.unpack_from("<HH", content, _gif_frame(content) + 5)
    return max(width, frame_width), max(height, frame_height)


def _gif_frame(content: bytes) -> int:
    """Return where the first frame begins."""
    at = 13 + _palette_bytes(content[10])
    while content[at] == 0x21:  # an extension
        at = _blocks_end(content, at + 2)
    if content[at] != 0x2C:
        raise NoSizeError
    return at


def _gif_first(content: bytes) -> bytes:
    at = _gif_frame(content)
    try:
        end = _blocks_end(content, at + 11 + _palette_bytes(content[at + 9]))
    except IndexError:  # truncated: this frame is all that there is, and the decoder says so
        return content
    return content if content[end : end + 1] in (b"", b";") else content[:end] + b";"


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _blocks_end(content: bytes, at: int) -> int:
    while length := content[at]:
        at += length + 1
    return at + 1


def _webp(content: bytes) -> tuple[int, int]:
    kind = content[12:16]
    if kind == b"VP8X":  # libwebp refuses pictures that differ from this canvas or leave it
        numbers = struct.unpack_from("<HBHB", content, 24)
        return 1 + numbers[0] + (numbers[1] << 16), 1 + numbers[2] + (numbers[3] << 16)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", content, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    raise NoSizeError


def _webp_first(content: bytes) -> bytes:
    kept, at, frames = [content[8:12]], 12, 0
    while at < len(content):
        kind, length = struct.unpack_from("<4sI", content, at)
        end = at + 8 + length + length % 2
        frames += kind == b"ANMF"
        if kind != b"ANMF" or frames == 1:
            kept.append(content[at:end])
        at = end
    if frames <= 1:
        return content
    rest = b"".join(kept)
    return b"RIFF" + struct.pack("<I", len(rest)) + rest


def _iso(content: bytes) -> ImageSize:
    """Return the size of an AVIF or HEIC file: of its pictures, or of its tracks of pictures."""
    whole = (0, len(content))
    found = [size for span in _find(content, whole, b"meta") for size in _items(content, span)]
    parts = sum(width * height * count for width, height, count in found)
    tracks = [_track(content, span) for span in _find(content, whole, b"moov", b"trak")]
    found += tracks
    if not found:
        raise NoSizeError
    width, height, _ = max(found, key=lambda size: size[0] * size[1])
    sequence = sum(width * height * count for width, height, count in tracks)
    return ImageSize(width, height, max(width * height, parts // _ISO_PARTS, sequence))


def _items(content: bytes, meta: _Span) -> list[tuple[int, int, int]]:
    """Return width, height and number of the items of each size."""
    sizes: dict[int, tuple[int, int]] = {}
    for span in _find(content, (meta[0] + 4, meta[1]), b"iprp", b"ipco"):
        for index, (kind, (start, _)) in enumerate(_boxes(content, span), start=1):
            if kind == b"ispe":
                sizes[index] = struct.unpack_from(">II", content, start + 4)
    counts = dict.fromkeys(sizes, 0)
    for span in _find(content, (meta[0] + 4, meta[1]), b"iprp", b"ipma"):
        for index in _associations(content, span):
            if index in counts:
                counts[index] += 1
    return [(*sizes[index], count) for index, count in counts.items()]


def _associations(content: bytes, ipma: _Span) -> Iterator[int]:
    """Yield the number of each property of each item."""
    at, end = ipma
    head, items = struct.unpack_from(">II", content, at)
    at += 8
    number_bytes, entry = (4 if head >> 24 else 2), (">H" if head & 1 else ">B")
    mask = 0x7FFF if head & 1 else 0x7F
    for _ in range(items):
        at += number_bytes + 1
        if at > end:
            raise NoSizeError
        for _ in range(content[at - 1]):
            yield struct.unpack_from(entry, content, at)[0] & mask
            at += struct.calcsize(entry)


def _track(content: bytes, trak: _Span) -> tuple[int, int, int]:
    """Return width, height and number of the pictures of a track."""
    table = next(_find(content, trak, b"mdia", b"minf", b"stbl"), (0, 0))
    boxes = dict(_boxes(content, table))
    if b"stsd" not in boxes or not {b"stsz", b"stz2"} & set(boxes):
        raise NoSizeError
    width, height = struct.unpack_from(">HH", content, boxes[b"stsd"][0] + 40)
    sizes = boxes[b"stsz"] if b"stsz" in boxes else boxes[b"stz2"]
    (count,) = struct.unpack_from(">I", content, sizes[0] + 8)
    return width, height, count


def _find(content: bytes, span: _Span, *path: bytes) -> Iterator[_Span]:
    """Yield the content of the boxes at a path of box types."""
    for kind, inside in _boxes(content, span):
        if kind == path[0]:
            yield from _find(content, inside, *path[1:]) if path[1:] else [inside]


def _boxes(content: bytes, span: _Span) -> Iterator[tuple[bytes, _Span]]:
    """Yield type and content of the boxes in a part of the file.

    Raises:
        NoSizeError: If one is shorter than its header or longer than this part, or if there are
            thousands: what is read more than once would take the square of the file's size.
    """
    at, end = span
    boxes = 0
    while at + 8 <= end:
        length, kind = struct.unpack_from(">I4s", content, at)
        start = at + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", content, start)
            start += 8
        stop = at + length if length else end
        boxes += 1
        if not start <= stop <= end or boxes > _MAX_PARTS:
            raise NoSizeError
        yield kind, (start, stop)
        at = stop


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
