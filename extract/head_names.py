"""Find class names for the rows of a pretrained head, and their source."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clinit.errors import HeadError
from clinit.extract.cache.head import Head, read_head
from clinit.extract.cache.read import HEAD_FILE
from clinit.extract.cache.summary import UNKNOWN, FileFacts
from clinit.extract.dataset.known import read_dataset
from clinit.extract.dataset.names import HEAD_LIST, read_class_names

NAMED_EARLIER = "named by an earlier command"
"""Source of class names that another command has already stored with the head."""


@dataclass(frozen=True, slots=True)
class HeadNames:
    """Class names of the rows of a head."""

    names: tuple[str, ...] | None = None
    """One name per row; None if the names are unknown."""
    source: str = UNKNOWN
    file: FileFacts | None = None
    """The file that lists the names, if they are from a file."""


def find_head_names(
    head: Head, class_names: tuple[str, ...], choice: str | None, out: Path
) -> HeadNames:
    """Return the class names of a head that is about to be stored in the cache `out`.

    Args:
        head: The pretrained classifier.
        class_names: The classes of the data set that is extracted.
        choice: As in `name_rows`. If it finds no names, names that an earlier command has stored in
            `out` are used.
        out: The folder of the cache.

    Raises:
        ClinitError: As in `name_rows`.
    """
    named, source = name_rows(head, class_names, choice)
    if named.class_names is None:
        with suppress(HeadError):
            stored = read_head(out / HEAD_FILE)
            if stored.class_names is not None and stored.num_classes == head.num_classes:
                return HeadNames(stored.class_names, NAMED_EARLIER)
    file = None if choice in (None, "dataset") else FileFacts.of(Path(choice))
    return HeadNames(named.class_names, source, file)


_IMAGENET_ROWS = 1000
ASSUMED = "ImageNet-1K (1,000 rows)"
"""Source of names that are not stored with the weights, but assumed for the number of rows."""


def name_rows(head: Head, class_names: tuple[str, ...], choice: str | None) -> tuple[Head, str]:
    """Return `head` with class names for its rows, and the source of the names.

    Args:
        head: The pretrained classifier, with the names stored in its weights file, if any.
        class_names: The classes of the data set that is extracted.
        choice: A file with one name per line; `dataset` for the classes of the data set, in their
            order; None for the names stored with the weights. If the weights contain no names and
            the classifier has 1,000 rows, None means the names of ImageNet-1K.

    Raises:
        HeadError: If the numbers of names and rows differ.
        CacheError: If the file cannot be read or names a class twice.
    """
    names, source = (
        head.class_names,
        UNKNOWN if head.class_names is None else "stored with the weights",
    )
    if choice == "dataset":
        names, source = class_names, "the classes of the data set"
    elif choice is not None:
        names, source = read_class_names(Path(choice), HEAD_LIST), choice
    elif names is None and head.num_classes == _IMAGENET_ROWS:
        names, source = read_dataset("imagenet1k").classes, ASSUMED
    if names is not None and len(names) != head.num_classes:
        raise HeadError(
            f"{source}: {len(names):,} names for a classifier of {head.num_classes:,} rows",
            remedy="Give one name per row with `--head-classes FILE`.",
        )
    return replace(head, class_names=names), source
