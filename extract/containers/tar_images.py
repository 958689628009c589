"""Images out of tar files, each by itself: one read of a header and the image behind it.

The header is compared with the manifest, because tar files of the same size are common: they end
at a multiple of 10,240 bytes.
"""

from __future__ import annotations

import os
import stat
import tarfile

from clinit.errors import ManifestError
from clinit.extract.containers.container import BUILD_AGAIN, Container
from clinit.extract.containers.tar_index import member_name

_BLOCK = 512
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
    container.check_place()
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
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    is_told = member.isascii() and len(member) < _SHORT - len("./")
    return header.size == size and (not is_told or member_name(header.name) == member)


def _changed(container: Container, member: str) -> ManifestError:
    return ManifestError(
        f"{container.path} does not hold {member} where the manifest says: it was changed or is"
        " damaged there",
        remedy=BUILD_AGAIN,
    )
