"""What the rows of a classifier stand for, where its weights do not say it themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clinit.errors import HeadError
from clinit.extract.cache.head import Head
from clinit.extract.class_names import read_class_names
from clinit.extract.dataset import read_dataset

_IMAGENET_ROWS = 1000


def name_rows(head: Head, class_names: tuple[str, ...], choice: str | None) -> tuple[Head, str]:
    """Give the rows of `head` their class names; return the head and where they came from.

    Args:
        head: The pretrained classifier, with the names stored in its weights file, if any.
        class_names: The classes of the data set that is extracted.
        choice: A file with one name per line; `dataset` for the classes of the data set, in their
            order; None for the names stored with the weights or, for a classifier of 1,000
            rows, those of ImageNet-1K.

    Raises:
        HeadError: If the number of names is not the number of rows.
        CacheError: If the file cannot be read or names a class twice.
    """
    if choice == "dataset":
        return _named(head, class_names, "the classes of the data set")
    if choice is not None:
        return _named(head, read_class_names(Path(choice)), choice)
    if head.class_names is not None:
        return head, "stored with the weights"
    if head.num_classes == _IMAGENET_ROWS:
        return _named(head, read_dataset("imagenet1k").classes, "ImageNet-1K (1,000 rows)")
    return head, "unknown"


def _named(head: Head, names: tuple[str, ...], source: str) -> tuple[Head, str]:
    if len(names) != head.num_classes:
        raise HeadError(
            f"{source}: {len(names):,} names for a classifier of {head.num_classes:,} rows",
            remedy="Give one name per row with `--head-classes FILE`.",
        )
    return replace(head, class_names=names), source
