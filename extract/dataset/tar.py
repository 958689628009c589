"""The samples of a WebDataset shard: where each image lies in the tar file, and its class.

The key of a member is its path up to the first dot of its base name, and what follows is its
extension; members of one key are one sample. The image is a member whose extension is that of an
image file. The class is, in this order,

1. `cls`: a number, or a name;
2. `json`: an object with a number or a name under `label`, `cls` or `class`, and perhaps a name
   under `class_name` or `label_name`;
3. `txt`: a number, or a name.

Where `cls` is a number, `json` may name its class.

Source: the WebDataset format, `base_plus_ext` of the library webdataset.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import polars as pl

from clinit.errors import LOOK_AT_STORAGE, ImageError, ManifestError, StorageError
from clinit.extract.dataset.containers import BUILD_AGAIN, LABEL_SCHEMA, Container
from clinit.extract.dataset.known import MAX_NAME, is_text
from clinit.extract.dataset.tree import IMAGE_SUFFIXES
from clinit.files.paths import check_readable
from clinit.words import printable

SCHEMA = pl.Schema(
    [
        ("member", pl.String),
        ("position", pl.Int64),
        ("size_bytes", pl.Int64),
        *LABEL_SCHEMA.items(),
    ]
)
_IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_LABELS = ("cls", "json", "txt")
_KEY = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d{1,18}")
_MOST = {"cls": MAX_NAME, "json": 2**20, "txt": MAX_NAME}
"""Bytes of a label; what is longer is none, but perhaps the description of an image."""
_BLOCK = 512
_BUFFER = 4096
"""Network storage asks for blocks of a megabyte, and the images between the headers would come
with them."""
_MOST_READ = 2**20
"""Bytes of a label, and of a long name or other attributes: `tarfile` reserves what a header
declares of these."""
_RECORD, _MOST_RECORD = 20 * _BLOCK, 2048 * _BLOCK
"""Tar files are filled up with zeros to records: `tar` and `tarfile` write these, `tar -b 2048`
those. A library that fills up nothing writes the mark of the end alone."""
_PACK_AGAIN = "Copy or pack the file again, then build the manifest again."


@dataclass(frozen=True, slots=True, eq=False)
class TarIndex:
    """The images of a tar file."""

    table: pl.DataFrame
    """Columns of `SCHEMA`, in the order of the file; `position` is that of the first byte."""
    others: tuple[str, ...]
    """Members that belong to no sample with an image."""
    second: tuple[str, ...]
    """Images of samples that have an earlier one."""
    is_ended: bool
    """Whether the file ends with the mark of an end, as it should."""


@dataclass(slots=True)
class _Sample:
    image: tarfile.TarInfo | None = None
    told: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)
    extensions: set[str] = field(default_factory=set)


def index_tar(path: Path) -> TarIndex:
    """List the samples of an uncompressed tar file; image data are not read.

    Raises:
        ManifestError: If it is compressed, damaged, cut off, has no members, names a member twice,
            or more follows its end than zeros to the end of a record.
        StorageError: If it cannot be read.
    """
    check_readable(path, ManifestError)
    try:
        with _Reader(path) as file:
            _refuse_compressed(path, file.read(6))
            file.seek(0)
            return _index(path, file)
    except tarfile.TarError as error:
        raise _damaged(path, str(error)) from error
    except (RecursionError, OverflowError, ValueError) as error:  # of numbers in a header
        raise _damaged(path, "a header is damaged") from error
    except OSError as error:
        raise StorageError(
            f"cannot read {printable(path)}: {error.strerror or error}", remedy=LOOK_AT_STORAGE
        ) from error


class _Reader(io.BufferedReader):
    """A file that reads little at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path), _BUFFER)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _MOST_READ:
            raise tarfile.ReadError("a header declares a name without end")
        return super().read(size)


def member_name(name: str) -> str:
    """Return the name of a member as manifests have it: `./` at its beginning means nothing."""
    return name.removeprefix("./")


def _index(path: Path, file: IO[bytes]) -> TarIndex:
    samples: dict[str, _Sample] = {}
    others: list[str] = []
    second: list[str] = []
    with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape") as tar:
        for member in _members(tar, path):
            name = member_name(member.name)
            key = _KEY.fullmatch(name)
            if key is None or not is_text(name) or not member.isreg() or member.issparse():
                others.append(name)
                continue
            sample, extension = samples.setdefault(key[1], _Sample()), key[2].lower()
            if extension in sample.extensions:
                raise _damaged(path, f"the member {name} occurs twice")
            sample.extensions.add(extension)
            if extension in _LABELS:
                sample.told[extension] = _told(extension, _content(file, member, extension))
            elif extension not in _IMAGES:
                continue  # what else is known of a sample: captions, boxes, masks
            elif sample.image is None:
                sample.image = member
            else:
                second.append(name)
        if not samples and not others:
            raise _damaged(path, "it has no members")
        is_ended = _has_end(path, file, tar.offset)
    with_image = {key: sample for key, sample in samples.items() if sample.image is not None}
    others += [key for key in samples if key not in with_image]
    rows = list(map(_row, with_image.values()))
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row")
    return TarIndex(table.sort("position"), tuple(others), tuple(second), is_ended)


def _members(tar: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the files of a tar; a header that leads back would be read for ever."""
    reached = -1
    for member in tar:
        tar.members = []  # type: ignore[attr-defined] # or all are held until the end
        if member.size < 0 or member.offset_data <= reached:
            raise _damaged(path, "a header is damaged")
        reached = member.offset_data
        if not member.isdir():
            yield member


def _content(file: IO[bytes], member: tarfile.TarInfo, extension: str) -> bytes:
    if member.size > _MOST[extension]:
        return b""
    file.seek(member.offset_data)
    return file.read(member.size)


def _told(extension: str, content: bytes) -> tuple[int | None, str | None]:
    """Return the number and the name of a class, as far as a label says them."""
    if extension != "json":
        return _number_or_name(content.decode("utf-8", "replace"))
    try:
        found = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None, None
    value = next((found[name] for name in ("label", "cls", "class") if name in found), None)
    named = next((found[name] for name in ("class_name", "label_name") if name in found), None)
    index, name = _number_or_name(value) if isinstance(value, str | int) else (None, None)
    return index, named if isinstance(named, str) and named else name


def _number_or_name(value: str | int) -> tuple[int | None, str | None]:
    text = str(value).strip()
    if isinstance(value, bool) or not text or len(text) > MAX_NAME or not is_text(text):
        return None, None
    return (int(text), None) if _NUMBER.fullmatch(text) else (None, text)


def _row(sample: _Sample) -> tuple[str, int, int, int | None, str | None]:
    image = sample.image
    assert image is not None
    told = [sample.told[name] for name in _LABELS if name in sample.told]
    index, name = next((each for each in told if each != (None, None)), (None, None))
    described, called = sample.told.get("json", (None, None))
    if name is None and described in (None, index):
        name = called
    return member_name(image.name), image.offset_data, image.size, index, name


def _has_end(path: Path, file: IO[bytes], offset: int) -> bool:
    """Return whether a tar ends with the mark of an end: a block of zeros.

    Python ends there too where a header is damaged, images are zeros, or a second archive follows.
    Zeros to the end of a record are part of an archive; its length is not written down. So it is
    taken for the usual one, or for the largest power of two that divides the length of the file:
    no shard of usual records whose second half is zeros passes by that.

    Raises:
        ManifestError: If something else is there.
    """
    length = file.seek(0, io.SEEK_END)
    file.seek(offset)
    rest = file.read(min(length - offset, _MOST_RECORD))
    if rest[:_BLOCK].strip(b"\0"):
        raise _damaged(path, f"the header at byte {offset:,} is damaged")
    if rest.strip(b"\0"):
        raise _damaged(
            path,
            f"more follows its end at byte {offset:,}, as where `cat` has joined archives",
            remedy="Keep the archives as files of their own, or join them with `tar --concatenate`,"
            " then build the manifest again.",
        )
    record = min(max(_RECORD, length & -length), _MOST_RECORD)
    if length - offset >= 2 * _BLOCK + record:
        raise _damaged(
            path,
            f"from byte {offset:,} on it holds {length - offset:,} zeros, and members may be lost",
            remedy=f"{_PACK_AGAIN} If `tar --list` shows all members, its blocking factor is"
            " unusual: pack it without `tar -b`.",
        )
    return len(rest) >= _BLOCK


def _refuse_compressed(path: Path, start: bytes) -> None:
    known = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"(\xb5/\xfd": "Zstandard"}
    for mark, name in known.items():
        if start.startswith(mark):
            raise compressed(path, name)


def compressed(path: Path, how: str) -> ManifestError:
    """Return the error of a compressed tar file."""
    return ManifestError(
        f"{printable(path)} is compressed ({how}): an image in it cannot be read by itself",
        remedy="Unpack its compression alone (`gunzip`, `bunzip2`, `unxz` or `unzstd`), so that a"
        " .tar file is left; images in it are compressed already.",
    )


def _damaged(path: Path, why: str, remedy: str = _PACK_AGAIN) -> ManifestError:
    return ManifestError(f"{printable(path)} is not a whole tar file: {why}", remedy=remedy)


_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_PREFIX = 345
"""First byte of what may stand before a name."""
_SHORT = 100
"""Bytes of a name that every header can hold; a longer one, or one that is not ASCII, stands in
another header."""


def read_member(container: Container, member: str, position: int, size: int) -> bytes:
    """Return the content of a member of a tar file.

    Args:
        container: The file.
        member: Name of the member.
        position: Its first byte.
        size: Its number of bytes.

    Raises:
        ImageError: If the header of the member is damaged.
        ManifestError: If the file is not the one of the manifest.
        OSError: If it cannot be read.
    """
    file = os.open(container.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise _changed(container, member)
        container.check_size(facts.st_size)
        if not _BLOCK <= position <= facts.st_size - size:  # before anything is reserved
            raise _changed(container, member)
        content = os.pread(file, _BLOCK + size, position - _BLOCK)
    finally:
        os.close(file)
    if len(content) != _BLOCK + size:
        raise _changed(container, member)
    header = content[:_BLOCK]
    if not _is_header(header, member, size):
        if _is_whole(header):
            raise _changed(container, member)
        raise ImageError(
            "its header in the tar file is damaged",
            remedy="Replace the tar file by a whole one and extract again with `--retry-invalid`,"
            " or leave its row invalid.",
        )
    return content[_BLOCK:]


def _is_header(block: bytes, member: str, size: int) -> bool:
    """Compare size and name; `tarfile` takes longer for this than the system for the read."""
    is_told = member.isascii() and len(member) < _SHORT - len("./") and not block[_PREFIX]
    name = block[:_SHORT].split(b"\0", 1)[0].decode("utf-8", "replace")
    return _number(block[_SIZE]) == size and (not is_told or member_name(name) == member)


def _is_whole(block: bytes) -> bool:
    """Return whether a header has the checksum that it says: the sum of its bytes."""
    blanks = sum(b" " * 8)  # they stand for the checksum itself
    found = sum(block) - sum(block[_CHECKSUM]) + blanks
    return _number(block[_CHECKSUM]) == found


def _number(field: bytes) -> int | None:
    """Return a number of a header; None where it is none."""
    value = int.from_bytes(field, "big")
    top = 8 * len(field) - 1
    if value >> top:  # GNU's form of what octal digits cannot say
        return value & ((1 << top) - 1)
    digits = field.strip(b" \0")
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        return None
    return int(digits, 8)


def _changed(container: Container, member: str) -> ManifestError:
    return ManifestError(
        f"{container.path} does not hold {member} where the manifest says: it was changed or is"
        " damaged there",
        remedy=BUILD_AGAIN,
    )
