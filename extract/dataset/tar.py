"""Find the samples of a WebDataset shard: the position of each image in the tar file, its class.

The path of a member of the tar file is split at the first dot of its base name into key and
extension. Members with the same key are one sample. Its image is the member with the extension of
an image file. If no member with a key has such an extension, but images follow further dots
(`img.v2.001.jpg`), these members are split at their last dot instead. The class is in the first
existing member of these:

1. `cls`: a number or a name;
2. `json`: an object with a number or a name under `label`, `cls` or `class`, and optionally a name
   under `class_name` or `label_name`;
3. `txt`: a number or a name.

If `cls` is a number, its name may be in `json`.

Source: the WebDataset format, `base_plus_ext` of the library webdataset.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import polars as pl

from clinit.errors import ImageError, ManifestError, unreadable
from clinit.extract.dataset.manifest import BUILD_AGAIN, CONTENT_SCHEMA, Container, Contents
from clinit.extract.dataset.tree import IMAGE_SUFFIXES, is_left_by_others
from clinit.files.paths import check_readable
from clinit.files.text import MAX_NAME, is_text
from clinit.words import printable

_IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
_KEY = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d{1,18}")
_LABELS = {"cls": MAX_NAME, "json": 2**20, "txt": MAX_NAME}
"""Extension of a label member -> its largest size in bytes; a longer member is probably a
description."""
CAPTIONS = "images with a class of their own: key.txt look like captions; key.cls gives a class"
"""A warning, if there are many such images in all shards."""
_BLOCK = 512
_BUFFER = 4096
"""Bytes read at a time. The default of network storage is a megabyte, which would read the images
between the headers too."""
_MOST_READ = 2**20
"""Largest size in bytes of a label, a long name or other attributes. `tarfile` reserves as much
memory as a header declares for them."""
_RECORD, _MOST_RECORD = 20 * _BLOCK, 2048 * _BLOCK
"""Bytes of a record. Tar files are padded with zeros to whole records: `tar` and `tarfile` write
the first size, `tar -b 2048` the second. Libraries that do not pad write only the end mark."""
_PACK_AGAIN = "Copy or pack the file again, then build the manifest again."
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"(\xb5/\xfd")
"""First bytes of gzip, bzip2, xz and Zstandard files."""


_Label = tuple[int | None, str | None]
_NOTHING: _Label = None, None
_Samples = dict[str, dict[str, tarfile.TarInfo]]
"""Key -> extension -> member."""


def index_tar(path: Path) -> Contents:
    """List the samples of an uncompressed tar file, without reading images.

    Raises:
        ManifestError: If the file is compressed, damaged or truncated, has no members or two of the
            same name, or has more after its end than the zeros that fill a record.
        StorageError: If the file cannot be read.
    """
    check_readable(path, ManifestError)
    try:
        with _Reader(path) as file:
            if file.read(6).startswith(_COMPRESSED):
                raise ManifestError(
                    f"{printable(path)} is compressed, so single images cannot be read from it",
                    remedy="Decompress it, without unpacking (`gunzip`, `bunzip2`, `unxz`,"
                    " `unzstd`).",
                )
            file.seek(0)
            return _index(path, file)
    except tarfile.TarError as error:
        raise _damaged(path, str(error)) from error
    except (RecursionError, OverflowError, ValueError) as error:  # wrong numbers in a header
        raise _damaged(path, "a header is damaged") from error
    except OSError as error:
        raise unreadable(printable(path), error) from error


class _Reader(io.BufferedReader):
    """A file that reads only few bytes ahead."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path), _BUFFER)

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _MOST_READ:
            raise tarfile.ReadError("a header declares a name without end")
        return super().read(size)


def _index(path: Path, file: IO[bytes]) -> Contents:
    with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape") as tar:
        samples, others = _samples(_members(tar, path), path)
        if not samples and not others:
            raise _damaged(path, "it has no members")
        is_ended = _has_end(path, file, tar.offset)
    dotted = _split_at_last_dot(samples)
    rows, second = list[tuple[str, int, int, int | None, str | None]](), list[str]()
    texts = list[str]()
    for key, parts in samples.items():
        images = [member for extension, member in parts.items() if extension in _IMAGES]
        if not images:
            others.append(key)
            continue
        image = images[0]
        second += [_name(m) for n, m in parts.items() if _last(n) in _IMAGES and m is not image]
        told = {name: _told(file, parts[name], name) for name in _LABELS if name in parts}
        texts += [_name(image)] * ([*told] == ["txt"] and told["txt"][0] is None)
        rows.append((_name(image), image.offset_data, image.size, *_label(told)))
    return Contents(
        pl.DataFrame(rows, schema=CONTENT_SCHEMA, orient="row").sort("position"),
        left_out={
            "members left out, not part of a sample with an image": others,
            "images left out, because their sample already has an image": second,
            "images whose names were split at the last of several dots": dotted,
            "shards without an end mark, perhaps truncated": [""] * (not is_ended),
            CAPTIONS: texts,
        },
    )


def _samples(members: Iterable[tarfile.TarInfo], path: Path) -> tuple[_Samples, list[str]]:
    """Sort members by key and extension; return also the names of members of no sample."""
    samples, others = defaultdict[str, dict[str, tarfile.TarInfo]](dict), list[str]()
    for member in members:
        name = _name(member)
        key = _KEY.fullmatch(name)
        left = any(map(is_left_by_others, name.split("/"))) or not is_text(name)
        if key is None or left or not member.isreg() or member.issparse():
            others.append(name)
            continue
        extension = key[2].lower()
        if extension in samples[key[1]]:
            raise _damaged(path, f"the member {name} occurs twice")
        if _last(extension) in (*_IMAGES, *_LABELS):  # else a caption, boxes or a mask
            samples[key[1]][extension] = member
    return samples, others


def _split_at_last_dot(samples: _Samples) -> list[str]:
    """Replace samples that have images only after further dots; return the names of the images."""
    found: list[str] = []
    for key, parts in list(samples.items()):
        if any(name in _IMAGES for name in parts) or not any(_last(n) in _IMAGES for n in parts):
            continue
        del samples[key]
        for extension, member in parts.items():
            if "." in extension or _last(extension) in _LABELS:
                stem = _name(member).rpartition(".")[0]
                samples.setdefault(stem, {})[_last(extension)] = member
                found += [_name(member)] * (_last(extension) in _IMAGES)
    return found


def _last(extension: str) -> str:
    return extension.rpartition(".")[2]


def _members(tar: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the files in a tar; refuse headers that lead back, which would be read for ever."""
    reached = -1
    for member in tar:
        tar.members = []  # type: ignore[attr-defined] # else tarfile keeps all of them
        if member.size < 0 or member.offset_data <= reached:
            raise _damaged(path, "a header is damaged")
        reached = member.offset_data
        if not member.isdir():
            yield member


def _name(member: tarfile.TarInfo) -> str:
    """Return the name of a member as in manifests: without `./` at the beginning."""
    return member.name.removeprefix("./")


def _told(file: IO[bytes], member: tarfile.TarInfo, extension: str) -> _Label:
    """Return the number and the name of the class in a label; None if one is missing."""
    if member.size > _LABELS[extension]:
        return _NOTHING
    file.seek(member.offset_data)
    content = file.read(member.size)
    if extension != "json":
        return _number_or_name(content.decode("utf-8", "replace"))
    try:
        found = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING
    value = next((found[name] for name in ("label", "cls", "class") if name in found), None)
    named = next((found[name] for name in ("class_name", "label_name") if name in found), None)
    index, name = _number_or_name(value)
    return index, named if isinstance(named, str) and named else name


def _number_or_name(value: object) -> _Label:
    text = str(value).strip() if isinstance(value, str | int) else ""
    if isinstance(value, bool) or not text or len(text) > MAX_NAME or not is_text(text):
        return _NOTHING
    return (int(text), None) if _NUMBER.fullmatch(text) else (None, text)


def _label(told: dict[str, _Label]) -> _Label:
    """Return the first label; if it is a number, with the name that a JSON label gives it."""
    index, name = next((each for each in told.values() if each != _NOTHING), _NOTHING)
    described, called = told.get("json", _NOTHING)
    return index, called if name is None and described in (None, index) else name


def _has_end(path: Path, file: IO[bytes], offset: int) -> bool:
    """Return whether a tar ends with its end mark, a block of zeros.

    `tarfile` also stops at a damaged header, at images that are zeros, and before a second archive.
    An archive may end with zeros that fill a record, whose size is not stored. clinit assumes the
    usual size or, if larger, the largest power of two that divides the length of the file. In a
    file of usual records this power of two is at most a fifth of the file, so a shard of three or
    more such records is still refused if its second half is zeros.

    Raises:
        ManifestError: If anything else follows the last member.
    """
    length = file.seek(0, io.SEEK_END)
    file.seek(offset)
    rest = file.read(min(length - offset, _MOST_RECORD))
    if rest[:_BLOCK].strip(b"\0"):
        raise _damaged(path, f"the header at byte {offset:,} is damaged")
    record = min(max(_RECORD, length & -length), _MOST_RECORD)
    if rest.strip(b"\0") or length - offset >= 2 * _BLOCK + record:
        raise _damaged(
            path,
            f"{length - offset:,} bytes follow its end at byte {offset:,}, and members may be lost",
            remedy=f"{_PACK_AGAIN} Join archives with `tar --concatenate`, not with `cat`, and pack"
            " without `tar -b`.",
        )
    return len(rest) >= _BLOCK


def _damaged(path: Path, why: str, remedy: str = _PACK_AGAIN) -> ManifestError:
    return ManifestError(f"{printable(path)} is not a complete tar file: {why}", remedy=remedy)


_SHORT = 98
"""ASCII names with fewer characters fit into the header of a member, even after `./`; other names
are in a header of their own."""


def read_member(container: Container, member: str, position: int, size: int) -> bytes:
    """Return the content of a member of a tar file.

    Args:
        container: The file.
        member: Name of the member.
        position: First byte of its content.
        size: Number of bytes.

    Raises:
        ImageError: If the header of the member is damaged.
        ManifestError: If the file differs from the manifest.
        OSError: If the file cannot be read.
    """
    changed = ManifestError(
        f"{container.path} does not contain {member} at its position in the manifest: the file was"
        " changed or is damaged",
        remedy=BUILD_AGAIN,
    )
    file = os.open(container.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise changed
        container.check_size(facts.st_size)
        if not _BLOCK <= position <= facts.st_size - size:  # before `pread` reserves memory
            raise changed
        content = os.pread(file, _BLOCK + size, position - _BLOCK)
    finally:
        os.close(file)
    try:
        found = tarfile.TarInfo.frombuf(content[:_BLOCK], "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise ImageError(
            "its header in the tar file is damaged",
            remedy="Get a complete tar file and extract into another folder, or leave its row"
            " invalid.",
        ) from error
    is_told = member.isascii() and len(member) < _SHORT
    if len(content) != _BLOCK + size or found.size != size or (is_told and _name(found) != member):
        raise changed
    return content[_BLOCK:]
