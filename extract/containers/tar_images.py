"""Images out of tar files, each by itself: one read of a header and the image behind it.

The header is compared with the manifest, because tar files of the same size are common: they end
at a multiple of 10,240 bytes. A header whose checksum is right, but that is of something else, is
of another file, which stops everything; one whose checksum is wrong is damage of one image.
"""

from __future__ import annotations

import os
import stat

from clinit.errors import ImageError, ManifestError
from clinit.extract.containers.container import BUILD_AGAIN, Container
from clinit.extract.containers.tar_index import member_name

_BLOCK = 512
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
