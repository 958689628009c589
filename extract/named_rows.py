"""What the rows of a pretrained head stand for, and who says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clinit.errors import HeadError
from clinit.extract.cache.head import Head, read_head
from clinit.extract.cache.read import HEAD_FILE
from clinit.extract.cache.summary import UNKNOWN, FileFacts
from clinit.extract.head_names import name_rows

NAMED_EARLIER = "named by an earlier command"
"""Where the class names of a head are from, when another command has given them."""


@dataclass(frozen=True, slots=True)
class HeadNames:
    """Class names of the rows of a head."""

    names: tuple[str, ...] | None = None
    """One per row; None where nobody knows them."""
    source: str = UNKNOWN
    """Where they are from."""
    file: FileFacts | None = None
    """The file that they are from, where it is one."""


def find_head_names(
    head: Head, class_names: tuple[str, ...], choice: str | None, out: Path
) -> HeadNames:
    """Return the names of the rows of a head that is to be stored in the cache `out`.

    Args:
        head: The pretrained classifier.
        class_names: The classes of the data set that is extracted.
        choice: As in `name_rows`. Where nothing names the rows, an earlier command may have.
        out: The folder of the cache.

    Raises:
        ClinitError: As `name_rows`.
    """
    named, source = name_rows(head, class_names, choice)
    if named.class_names is None and (stored := _stored_names(out, head)) is not None:
        return HeadNames(stored, NAMED_EARLIER)
    file = None if choice in (None, "dataset") else FileFacts.of(Path(choice))
    return HeadNames(named.class_names, source, file)


def _stored_names(out: Path, head: Head) -> tuple[str, ...] | None:
    """Return the class names in the head file of an earlier command, if it is there."""
    try:
        stored = read_head(out / HEAD_FILE)
    except HeadError:
        return None
    return stored.class_names if stored.num_classes == head.num_classes else None
