"""A head for a cache that came without one, stored beside the features and judged on them."""

from __future__ import annotations

from pathlib import Path

from clinit.errors import HeadError
from clinit.extract.cache import HEAD_FILE, open_cache
from clinit.extract.head import Head, store_head
from clinit.extract.lock import claim_folder
from clinit.extract.summary import write_summary


def give_head(path: Path, head: Head, *, class_names_from: str) -> None:
    """Store a head in the cache at `path`, and its accuracy with every split.

    Args:
        path: A cache without a head; what of it is killed meanwhile is a cache with a head whose
            accuracy is not known.
        head: With a name per row, and the fingerprint of the features.
        class_names_from: Where these names are from.

    Raises:
        HeadError: If the cache has a head.
        ClinitError: If it cannot be written.
    """
    check_headless(path)
    store_head(head, path / HEAD_FILE)
    for split in open_cache(path).splits.values():
        with claim_folder(split.path, within=path):
            write_summary(
                split.path,
                split.plan,
                split.manifest,
                head=head,
                head_classes=class_names_from,
                run=split.summary.run,
            )


def check_headless(path: Path) -> None:
    """Check that a head can be stored in the cache at `path`.

    Raises:
        HeadError: If it has one.
    """
    if (path / HEAD_FILE).exists():
        raise HeadError(
            f"{path / HEAD_FILE} is there already: the cache has a head",
            remedy="Leave out `--fit-head`, or import into another folder.",
        )
