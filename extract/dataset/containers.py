"""Files that hold many images: tar shards of WebDataset, Parquet files of Hugging Face data sets.

They are read in place: a manifest contains the container of each row, and the position in it. The
split follows from words in names, the same as in the Hugging Face library (WebDataset has no rule):
first from the name of the file (`train-00000-of-00012.parquet`, `imagenet1k-train-0001.tar`), then
from the nearest folder with such a word (`train/00000.tar`, `data/validation/0.parquet`). A folder
of class folders is a split if its name is such a word.
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
from clinit.extract.dataset.known import MAX_NAME
from clinit.words import contrast

BUILD_AGAIN = (
    "Put the old file back; or build the manifest again with `clinit manifest build` and extract"
    " into a new folder."
)


@dataclass(frozen=True, slots=True)
class Container:
    """A file that holds images."""

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
            ManifestError: If it is a link to somewhere else.
        """
        if not Path(os.path.realpath(self.path)).is_relative_to(os.path.realpath(self.root)):
            raise ManifestError(
                f"{self.path} is a link that leaves {self.root}",
                remedy="Give a folder that holds both ends of the link.",
            )

    def check_size(self, found: int) -> None:
        """Check that the file has the size that it had.

        Raises:
            ManifestError: If it has another one.
        """
        if found != self.size_bytes:
            raise ManifestError(
                f"{self.path} has {found:,} bytes, not {self.size_bytes:,} as in the manifest:"
                " it was changed",
                remedy=BUILD_AGAIN,
            )


_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_PART_OF = {word: part for part, words in _WORDS.items() for word in words}
_PARTS_OF = {"train": ("train",), "val": ("validation", "test"), "test": ("test",)}
"""Containers that may be read as a split: the first existing part."""


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The containers of one split of a data set."""

    paths: tuple[str, ...]
    """Sorted."""
    warnings: tuple[str, ...] = ()
    """Skipped files."""


def split_folders(names: Sequence[str], split: str) -> dict[str, tuple[str, ...]]:
    """Return the folders of the training split and of the evaluated one, the preferred ones first.

    Args:
        names: Names of folders that contain folders.
        split: The split to read: train, val, or test, which then stands for val.
    """
    order = list(_PART_OF)
    known = [name for name in names if name.lower() in _PART_OF]
    known.sort(key=lambda name: (order.index(name.lower()), name))
    found = {
        each: tuple(name for name in known if _PART_OF[name.lower()] in _PARTS_OF[each])
        for each in ("train", "test" if split == "test" else "val")
    }
    return {each: folders for each, folders in found.items() if folders}


def split_files(paths: Sequence[str], split: str = "val") -> dict[str, SplitFiles]:
    """Sort containers into the splits train and val; a split without any is absent.

    If no path names a split, all files are training files.

    Args:
        paths: Relative to the root, `/` between folders.
        split: The split to read: train, val, or test, which then stands for val.
    """
    parts = {path: _part(path) for path in sorted(paths)}
    if not any(parts.values()):
        return {"train": SplitFiles(tuple(parts))} if parts else {}
    nameless = [path for path, part in parts.items() if not part]
    found: dict[str, SplitFiles] = {}
    for each in ("train", "test" if split == "test" else "val"):
        present = [part for part in _PARTS_OF[each] if part in parts.values()]
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
    """Return train, validation or test, or nothing if a path has no such word."""
    *folders, name = path.lower().split("/")
    for text in (name.rpartition(".")[0], *reversed(folders)):
        for word in re.split(r"[^a-z]+", text):
            if word in _PART_OF:
                return _PART_OF[word]
    return ""


LABEL_SCHEMA = pl.Schema({"index": pl.Int64, "name": pl.String})
"""Number and name of the class of a row; null if unknown."""
CONTENT_SCHEMA = pl.Schema(
    [
        ("member", pl.String),
        ("position", pl.Int64),
        ("size_bytes", pl.Int64),
        *LABEL_SCHEMA.items(),
    ]
)
"""Columns of `Contents`: `position` is the first byte in a tar file and the row in a Parquet file,
`size_bytes` 0 if it is unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The images in a container."""

    table: pl.DataFrame
    """Columns of `CONTENT_SCHEMA`, in the order of the file."""
    column: str = ""
    """Column of the images in a Parquet file; empty for a tar file."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes in label order, if the file has them."""
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Text of a warning -> members; an empty name is the file itself."""


MAX_CLASSES = 1_000_000
"""A larger label is no label but something else, such as the number of an image."""


def classes_of(told: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Return the classes named by the labels of rows, in label order.

    Numbers are labels; a number without a name is its own name. Names alone are sorted.

    Args:
        told: Columns of `LABEL_SCHEMA`, of all splits.
        where: Name of the rows, for messages.

    Raises:
        ManifestError: If some rows have numbers and some names alone, or they contradict.
    """
    told = told.select(LABEL_SCHEMA.names()).unique().filter(~_UNLABELLED)
    numbered = told.filter(pl.col("index").is_not_null())
    if numbered.is_empty():
        return checked_names(tuple(told["name"].sort().to_list()), where)
    if len(numbered) < len(told):
        name = told.filter(pl.col("index").is_null())["name"].sort()[0]
        raise ManifestError(
            f"some labels of {where} are numbers, some are names ({name!r}): the number of that"
            " name is unknown",
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
    """Return class names found in labels or descriptions, checked.

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
            f"{where} call two classes {Counter(names).most_common(1)[0][0]!r}",
            remedy="Name the classes, one per line in label order, in classnames.txt in the root.",
        )
    return names


def labels_of(told: pl.DataFrame, classes: Sequence[str], where: str) -> pl.Series:
    """Return the label (int64) of each row; null if it has none.

    Args:
        told: Columns of `LABEL_SCHEMA`.
        classes: All classes in label order.
        where: Name of the rows, for messages.

    Raises:
        ManifestError: If a number or a name belongs to no class.
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
            f"{where} name a class {name!r}, which is none of the {len(classes):,} classes",
            remedy="Correct the label or the list of class names, then run the same command again.",
        )
    return told.select(
        label=pl.when(_UNLABELLED).then(None).otherwise(pl.coalesce("index", named))
    )["label"]


_UNLABELLED = (pl.col("index").is_null() & pl.col("name").is_null()) | (
    pl.col("index") < 0
).fill_null(value=False)
"""Rows without a label: neither number nor name, or a negative number."""


def _checked_largest(told: pl.DataFrame, where: str, num_classes: int) -> int:
    """Return the largest number of a class; -1 without any."""
    largest = told.select(pl.col("index").max().fill_null(-1)).item()
    if largest >= num_classes:
        raise ManifestError(
            f"a label of {where} is {largest:,}, but labels must lie in [0, {num_classes:,})",
            remedy="Correct the labels or the list of class names; labels count from 0.",
        )
    return int(largest)
