"""From what a container says of a class, a number or a name or both, to labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.class_names import MAX_NAME
from clinit.words import contrast

SCHEMA = pl.Schema({"index": pl.Int64, "name": pl.String})
"""Number and name of the class of a row; null where it is not said."""
MAX_CLASSES = 1_000_000
"""A larger label is no label but something else, such as the number of an image."""


def classes_of(told: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Return the classes that rows tell of, in label order.

    Numbers are labels; a number without a name is its own name. Names alone are sorted.

    Args:
        told: Columns of `SCHEMA`, of all splits.
        where: What the rows are, for messages.

    Raises:
        ManifestError: If some rows have numbers and some names alone, or they contradict.
    """
    told = told.select(SCHEMA.names()).unique().filter(~unlabelled())
    numbered = told.filter(pl.col("index").is_not_null())
    if numbered.is_empty():
        return checked_names(tuple(told["name"].sort().to_list()), where)
    if len(numbered) < len(told):
        name = told.filter(pl.col("index").is_null())["name"].sort()[0]
        raise ManifestError(
            f"some labels of {where} are numbers, some are names ({name!r}): which number a name"
            " has is not said",
            remedy="Write the class names, one per line in label order, into classnames.txt in the"
            " root, then run the same command again.",
        )
    _refuse_large(numbered, where, MAX_CLASSES)
    names = dict[int, str]()
    for index, name in numbered.drop_nulls().sort("index", "name").iter_rows():
        if names.setdefault(index, name) != name:
            one, other = contrast(names[index], name)
            raise ManifestError(
                f"label {index:,} of {where} has two names, {one} and {other}",
                remedy="Correct the labels, or name the classes in classnames.txt in the root.",
            )
    last = numbered["index"].max()
    assert isinstance(last, int)
    return checked_names(tuple(names.get(index, str(index)) for index in range(last + 1)), where)


def checked_names(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Return the class names that data tell of.

    Raises:
        ManifestError: If one occurs twice or is none.
    """
    longest = max(names, key=len, default="")
    if len(longest) > MAX_NAME or "" in names:
        found = f"of {len(longest):,} characters" if "" not in names else "without a character"
        raise ManifestError(
            f"{where} tell of a class name {found}, expected 1 to {MAX_NAME:,}",
            remedy="Check that the labels are classes and not descriptions of images.",
        )
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ManifestError(
            f"{where} call two classes {twice!r}",
            remedy="Name the classes, one per line in label order, in classnames.txt in the root.",
        )
    return names


def labels_of(told: pl.DataFrame, classes: Sequence[str], where: str) -> pl.Series:
    """Return the label (int64) of each row; null where it has none.

    Args:
        told: Columns of `SCHEMA`.
        classes: All classes in label order.
        where: What the rows are, for messages.

    Raises:
        ManifestError: If a number or a name is not that of a class.
    """
    _refuse_large(told, where, len(classes))
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
        label=pl.when(unlabelled()).then(None).otherwise(pl.coalesce("index", named))
    )["label"]


def unlabelled() -> pl.Expr:
    """Return which rows have no label: neither number nor name, or a negative number."""
    neither = pl.col("index").is_null() & pl.col("name").is_null()
    return neither | (pl.col("index") < 0).fill_null(value=False)


def _refuse_large(told: pl.DataFrame, where: str, num_classes: int) -> None:
    largest = told["index"].max()
    if isinstance(largest, int) and largest >= num_classes:
        raise ManifestError(
            f"a label of {where} is {largest:,}, but labels must lie in [0, {num_classes:,})",
            remedy="Correct the labels or the list of class names; labels count from 0.",
        )
