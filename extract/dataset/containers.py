"""*Containers* are files with many images: WebDataset tar shards and Hugging Face Parquet files.

Images are read in place: a manifest contains the container of each row, and the position in it. A
word in the path names the split, as in the Hugging Face library (WebDataset has no rule): first in
the file name (`train-00000-of-00012.parquet`, `imagenet1k-train-0001.tar`), then in the nearest
folder with such a word (`train/00000.tar`, `data/validation/0.parquet`). The same words
(`class_folders.part_of`) mark folders of class folders as splits.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.class_folders import PARTS_OF, part_of
from clinit.files.text import MAX_NAME
from clinit.words import contrast

BUILD_AGAIN = (
    "Put the old file back; or build the manifest again with `clinit manifest build` and extract"
    " into a new folder."
)


@dataclass(frozen=True, slots=True)
class Container:
    """A file with many images."""

    path: Path
    root: Path
    """The folder that a link may not leave."""
    size_bytes: int
    """Size of the file when the manifest was built."""
    column: str
    """Column of the images in a Parquet file; empty for a tar file."""

    def check_place(self) -> None:
        """Check that the file is under its root.

        Raises:
            ManifestError: If a link leads out of the root.
        """
        if not Path(os.path.realpath(self.path)).is_relative_to(os.path.realpath(self.root)):
            raise ManifestError(
                f"{self.path} is a link that leaves {self.root}",
                remedy="Give a folder that contains both the link and its target.",
            )

    def check_size(self, found: int) -> None:
        """Check that the size of the file is still the size in the manifest.

        Raises:
            ManifestError: If the size has changed.
        """
        if found != self.size_bytes:
            raise ManifestError(
                f"{self.path} has {found:,} bytes, not {self.size_bytes:,} as in the manifest:"
                " it was changed",
                remedy=BUILD_AGAIN,
            )


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The containers of one split of a data set."""

    paths: tuple[str, ...]
    """Paths, sorted."""
    warnings: tuple[str, ...] = ()
    """Warnings about files that are left out."""


def split_files(paths: Sequence[str], split: str = "val") -> dict[str, SplitFiles]:
    """Sort containers into the splits train and val; omit splits without containers.

    If no path names a split, all files are training files.

    Args:
        paths: Paths relative to the root, with `/` between folders.
        split: The split to read: train, val, or test, which takes the place of val.
    """
    parts = {path: _part(path) for path in sorted(paths)}
    if not any(parts.values()):
        return {"train": SplitFiles(tuple(parts))} if parts else {}
    nameless = [path for path, part in parts.items() if not part]
    found: dict[str, SplitFiles] = {}
    for each in ("train", "test" if split == "test" else "val"):
        present = [part for part in PARTS_OF[each] if part in parts.values()]
        if present:
            first, *more = present
            found[each] = SplitFiles(
                tuple(path for path, part in parts.items() if part == first),
                (
                    *(f"the files of {part} were left out: {first} comes first" for part in more),
                    *(
                        f"{path} was left out: no part of its path names a split"
                        for path in nameless
                    ),
                ),
            )
    return found


def _part(path: str) -> str:
    """Return train, validation or test; an empty text if the path contains none of the words."""
    *folders, name = path.split("/")
    for text in (name.rpartition(".")[0], *reversed(folders)):
        if found := next(filter(None, map(part_of, re.split(r"[^A-Za-z]+", text))), ""):
            return found
    return ""


LABEL_SCHEMA = pl.Schema({"index": pl.Int64, "name": pl.String})
"""Number and name of the class of an image; null if unknown."""
CONTENT_SCHEMA = pl.Schema(
    [
        ("member", pl.String),
        ("position", pl.Int64),
        ("size_bytes", pl.Int64),
        *LABEL_SCHEMA.items(),
    ]
)
"""Columns of `Contents.table`. `position` is the first byte of the image in a tar file, or its row
in a Parquet file; an unknown `size_bytes` is 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The images in a container."""

    table: pl.DataFrame
    """Columns of `CONTENT_SCHEMA`, in the order of the file."""
    column: str = ""
    """Column of the images in a Parquet file; empty for a tar file."""
    class_names: tuple[str, ...] | None = None
    """Class names in label order, if the file contains them."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Text of a warning -> names of members; an empty name means the container."""


MAX_CLASSES = 1_000_000
"""Larger labels are refused, because they are probably other numbers, such as of images."""


def classes_of(told: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Return the class names in the labels of images, in label order.

    A number without a name is its own name. Names without numbers are sorted.

    Args:
        told: Labels of all splits, with the columns of `LABEL_SCHEMA`.
        where: Name of the files, for messages.

    Raises:
        ManifestError: If only some labels are numbers, or a number has two names.
    """
    told = told.select(LABEL_SCHEMA.names()).unique().filter(~_UNLABELLED)
    numbered = told.filter(pl.col("index").is_not_null())
    if numbered.is_empty():
        return checked_names(tuple(told["name"].sort().to_list()), where)
    if len(numbered) < len(told):
        name = told.filter(pl.col("index").is_null())["name"].sort()[0]
        raise ManifestError(
            f"some labels of {where} are numbers and some are names ({name!r}), so the numbers of"
            " these names are unknown",
            remedy="Write the class names, one per line in label order, into classnames.txt in the"
            " root, then run the same command again.",
        )
    last = _checked_largest(numbered, where, MAX_CLASSES)
    names = dict[int, str]()
    for index, name in numbered.drop_nulls().sort("index", "name").iter_rows():
        if names.setdefault(index, name) != name:
            one, other = contrast(names[index], name)
            raise ManifestError(
                f"label {index:,} of {where} has two names, {one} and {other}",
                remedy="Correct the labels, or name the classes in classnames.txt in the root.",
            )
    return checked_names(tuple(names.get(index, str(index)) for index in range(last + 1)), where)


def checked_names(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Check class names that labels or descriptions contain; return them.

    Raises:
        ManifestError: If a name occurs twice, is empty or too long.
    """
    wrong = [name for name in names if not 1 <= len(name) <= MAX_NAME]
    if wrong:
        raise ManifestError(
            f"{where} have a class name of {len(wrong[0]):,} characters, expected 1 to"
            f" {MAX_NAME:,}",
            remedy="Check that the labels are classes and not descriptions of images.",
        )
    if len(set(names)) < len(names):
        raise ManifestError(
            f"{where} have two classes named {Counter(names).most_common(1)[0][0]!r}",
            remedy="Name the classes, one per line in label order, in classnames.txt in the root.",
        )
    return names


def labels_of(told: pl.DataFrame, classes: Sequence[str], where: str) -> pl.Series:
    """Return the label (int64) of each image; null for an image without a label.

    Args:
        told: Labels with the columns of `LABEL_SCHEMA`.
        classes: All classes in label order.
        where: Name of the file, for messages.

    Raises:
        ManifestError: If no class has the number or the name of a label.
    """
    _checked_largest(told, where, len(classes))
    named = told["name"].replace_strict(
        list(classes), list(range(len(classes))), default=None, return_dtype=pl.Int64
    )
    unknown = told.filter(
        pl.col("index").is_null() & pl.col("name").is_not_null() & named.is_null()
    )
    if len(unknown):
        name = unknown["name"][0][:MAX_NAME]
        raise ManifestError(
            f"{where} contains the label {name!r}, which is not among the {len(classes):,} classes",
            remedy="Correct the label or the list of class names, then run the same command again.",
        )
    return told.select(
        label=pl.when(_UNLABELLED).then(None).otherwise(pl.coalesce("index", named))
    )["label"]


_UNLABELLED = (pl.col("index").is_null() & pl.col("name").is_null()) | (
    pl.col("index") < 0
).fill_null(value=False)
"""Selects images without a label: neither number nor name, or a negative number."""


def _checked_largest(told: pl.DataFrame, where: str, num_classes: int) -> int:
    """Check and return the largest number of a class; -1 if there are no numbers."""
    largest = told.select(pl.col("index").max().fill_null(-1)).item()
    if largest >= num_classes:
        raise ManifestError(
            f"a label of {where} is {largest:,}, but labels must lie in [0, {num_classes:,})",
            remedy="Correct the labels or the list of class names; labels count from 0.",
        )
    return int(largest)
