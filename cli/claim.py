"""Claims of the command line: what --out names is written by one process at a time.

The second one is refused before it reads a cache. Where the storage cannot lock, the user is told
and the command goes on: finished files are whole in any case.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from clinit.cli.console import note
from clinit.errors import HeadError
from clinit.extract.lock import claim_file, claim_folder
from clinit.extract.writable import check_writable


def claimed_folder(out: Path) -> AbstractContextManager[None]:
    """Claim the folder `out` as the only process that writes into it; see `claim_folder`."""
    check_writable(out)
    return claim_folder(out, on_unlocked=_say)


def claimed_file(out: Path) -> AbstractContextManager[None]:
    """Claim the file `out` as the only process that writes it; see `claim_file`."""
    check_writable(out)
    return claim_file(out, on_unlocked=_say)


def check_free(path: Path) -> None:
    """Refuse to write over a head.

    Raises:
        HeadError: If there is something at `path`.
    """
    if path.exists():
        raise HeadError(
            f"there is already something at {path}: a head is never overwritten",
            remedy="Choose another --out, or remove the old head first.",
        )


def _say(why: str) -> None:
    note(f"{why[0].upper()}{why[1:]}.")
