"""Claim the path of --out, so that only one process at a time writes to it.

A second process is refused before it reads a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from clinit.errors import HeadError
from clinit.files.lock import claim_file, claim_folder
from clinit.files.paths import check_free, check_writable


def claimed_folder(out: Path) -> AbstractContextManager[None]:
    """Make this the only process that writes into the folder `out`; see `claim_folder`."""
    check_writable(out)
    return claim_folder(out)


def claimed_file(out: Path) -> AbstractContextManager[None]:
    """Make this the only process that writes the file `out`; see `claim_file`."""
    check_writable(out)
    return claim_file(out)


@contextmanager
def claimed_head(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Claim the head file `out`, and check that it is new or, with `overwrite`, a head of clinit.

    Raises:
        HeadError: If `out` exists and may not be replaced.
    """
    with claimed_file(out):
        from clinit.extract.cache.head import foreign_to_head

        check_free(out, "head", foreign_to_head, HeadError, overwrite=overwrite)
        yield
