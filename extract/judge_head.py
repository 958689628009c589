"""A head for a cache that came without one, stored beside the features and judged on them."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import HeadError
from clinit.extract.cache.folder import split_names
from clinit.extract.cache.head import Head, store_head, tensors_sha256
from clinit.extract.cache.plan import WRITE_AGAIN
from clinit.extract.cache.read import HEAD_FILE, open_split
from clinit.extract.cache.summary import write_summary
from clinit.extract.fitted_head import judged_heads, readable_head, was_fitted
from clinit.files.lock import claim_folder


def give_head(path: Path, head: Head, *, class_names_from: str) -> bool:
    """Store a head in the cache at `path`, and its accuracy with every split.

    The head comes last: where this is killed, the cache is one that has lost its head, and takes
    another one.

    Args:
        path: A cache that takes one (`check_takes_head`); others that write it are waited for.
        head: With a name per row, and the fingerprint of the features.
        class_names_from: Where these names are from.

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
                    head_classes=class_names_from,
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
    head = readable_head(stored)
    if known and head is None and not was_fitted(path):
        raise HeadError(
            f"{stored} is damaged or missing, and it was not fitted to the features beside it",
            remedy=WRITE_AGAIN,
        )
    if head is not None and was_fitted(path) and tensors_sha256(head) not in known:
        raise HeadError(
            f"{stored} is not the head that was stored with the features beside it",
            remedy="Put it into another place; then the same command fits the head anew.",
        )
    if head is not None or (stored.exists() and not known):
        raise HeadError(
            f"{stored} is there already: the cache has a head",
            remedy="Leave out `--fit-head`, or import into another folder.",
        )


def remove_lost_head(path: Path) -> None:
    """Remove what is left of a damaged head from a cache that takes another one."""
    check_takes_head(path)
    (path / HEAD_FILE).unlink(missing_ok=True)
