"""Images out of tar files, each by itself: one read of a header and the image behind it.

The header is compared with the manifest, because tar files of the same size are common: they end
at a multiple of 10,240 bytes.
"""

from __future__ import annotations

import os
import stat

from clinit.errors import ManifestError
from clinit.extract.containers.container import BUILD_AGAIN, Container
from clinit.extract.containers.tar_index import member_name

_BLOCK = 512
_SIZE = slice(124, 136)
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
    if len(content) != _BLOCK + size or not _is_header(content[:_BLOCK], member, size):
        raise _changed(container, member)
    return content[_BLOCK:]


def _is_header(block: bytes, member: str, size: int) -> bool:
    """Compare size and name; `tarfile` takes longer for this than the system for the read."""
    if int.from_bytes(block[_SIZE], "big") >> 95:  # GNU's form of what 11 octal digits cannot say
        found = int.from_bytes(block[_SIZE], "big") & ((1 << 95) - 1)
    else:
        digits = block[_SIZE].strip(b" \0")
        if not digits.isdigit() or b"8" in digits or b"9" in digits:
            return False
        found = int(digits, 8)
    is_told = member.isascii() and len(member) < _SHORT - len("./") and not block[_PREFIX]
    name = block[:_SHORT].rstrip(b"\0").decode("utf-8", "replace")
    return found == size and (not is_told or member_name(name) == member)


def _changed(container: Container, member: str) -> ManifestError:
    return ManifestError(
        f"{container.path} does not hold {member} where the manifest says: it was changed or is"
        " damaged there",
        remedy=BUILD_AGAIN,
    )
