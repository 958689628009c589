"""Claims of the command line: one process at a time writes to the path of --out.

The second one is refused before it reads a cache. If the storage cannot lock, the user gets a note
and the command continues: finished files are whole in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from clinit.cli.frame.console import note
from clinit.errors import HeadError
from clinit.files.lock import claim_file, claim_folder
from clinit.files.paths import check_free, check_writable


def claimed_folder(out: Path) -> AbstractContextManager[None]:
    """Claim the folder `out` as the only process that writes into it; see `claim_folder`."""
    check_writable(out)
    return claim_folder(out, on_unlocked=_say)


def claimed_file(out: Path) -> AbstractContextManager[None]:
    """Claim the file `out` as the only process that writes it; see `claim_file`."""
    check_writable(out)
    return claim_file(out, on_unlocked=_say)


@contextmanager
def claimed_head(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Claim the head file `out`, which may be written: only a head of clinit is replaced.

    Raises:
        HeadError: If there is something that may not be replaced.
    """
    with claimed_file(out):
        from clinit.extract.cache.head import foreign_to_head

        check_free(out, "head", foreign_to_head, HeadError, overwrite=overwrite)
        tell_replaced([out], overwrite=overwrite)
        yield


def tell_replaced(paths: Iterable[Path], *, overwrite: bool) -> None:
    """Print which results will be replaced."""
    for path in paths if overwrite else ():
        if path.exists():
            note(f"{path} is replaced when the new one is complete")


def _say(why: str) -> None:
    note(f"{why[0].upper()}{why[1:]}.")
