"""The head of a cache imported without one: fitted to its rows, judged and stored with them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.folder import split_names
from clinit.extract.cache.head import Head, read_head, store_head, tensors_sha256
from clinit.extract.cache.plan import WRITE_AGAIN
from clinit.extract.cache.read import HEAD_FILE, CacheSplit, open_split
from clinit.extract.cache.summary import write_summary
from clinit.extract.dataset.known import SPLITS
from clinit.files.lock import claim_folder

FIT_AGAIN = (
    "Run the `clinit cache import` command of this cache with its `--fit-head` again: it fits the"
    " head anew and keeps undamaged parts."
)
"""Remedy for a fitted head that is damaged or missing."""


def was_fitted(path: Path) -> bool:
    """Return whether the splits at `path` were judged with a head that no file has brought."""
    runs = [split.summary.run for split in _readable_splits(path)]
    is_imported = all(run.features is not None for run in runs)
    brought = any(run.head is not None or run.merged for run in runs)
    return bool(judged_heads(path)) and is_imported and not brought


def judged_heads(path: Path) -> set[str]:
    """Return the digests of the heads that the splits in a cache were judged with."""
    told = (split.summary.head.tensors for split in _readable_splits(path))
    return {tensors for tensors in told if tensors is not None}


def readable_head(path: Path) -> Head | None:
    """Read a head file; None if it is missing or damaged."""
    try:
        return read_head(path)
    except HeadError:
        return None


def _readable_splits(path: Path) -> list[CacheSplit]:
    found = []
    for name in SPLITS:
        with suppress(CacheError):
            found.append(open_split(path / name))
    return found


def give_head(path: Path, head: Head) -> bool:
    """Store a head in the cache at `path`, and its accuracy with every split.

    The head is written last: killed before, this leaves a cache that has lost its head, and a
    cache without its head accepts another one.

    Args:
        path: A cache that takes one (`check_takes_head`); others that write it are waited for.
        head: With a name per row, and the fingerprint of the features.

    Returns:
        Whether it is the one that the splits were judged with before, if they were.

    Raises:
        HeadError: If the cache has a head.
        ClinitError: If it cannot be written.
    """
    with claim_folder(path, leaves_lock=False, on_busy=lambda: None):
        known = judged_heads(path)
        remove_lost_head(path)
        for split in (open_split(path / name) for name in split_names(path)):
            with claim_folder(split.path, within=path):
                write_summary(
                    split.path,
                    split.plan,
                    split.manifest,
                    head=head,
                    head_classes="the classes of the data set",
                    run=split.summary.run,
                )
        store_head(head, path / HEAD_FILE)
    return not known or known == {tensors_sha256(head)}


def check_takes_head(path: Path) -> None:
    """Check that a head can be fitted for the cache at `path`: it has none, or has lost it.

    Raises:
        HeadError: If it has one, or one that was not fitted.
    """
    stored, known = path / HEAD_FILE, judged_heads(path)
    head, fitted = readable_head(stored), was_fitted(path)
    if known and head is None and not fitted:
        raise HeadError(
            f"{stored} is damaged or missing, and it was not fitted to the features of its cache",
            remedy=WRITE_AGAIN,
        )
    if head is not None and fitted and tensors_sha256(head) not in known:
        raise HeadError(
            f"{stored} is not the head that was stored with the features of its cache",
            remedy="Put it into another place; then the same command fits the head anew.",
        )
    if head is not None or (stored.exists() and not known):
        raise HeadError(
            f"{stored} exists: the cache has a head",
            remedy="Leave out `--fit-head`, or import into another folder.",
        )


def remove_lost_head(path: Path) -> None:
    """Remove the rest of a damaged head from a cache that is to get another one."""
    check_takes_head(path)
    (path / HEAD_FILE).unlink(missing_ok=True)
