"""Lists of labels beside the validation images of ImageNet and Places365, as published.

* ImageNet's development kit: line i of `ILSVRC2012_validation_ground_truth.txt` holds the
  ILSVRC2012_ID of the image with number i. These ids are not alphabetical: `meta.mat` says which
  synset each one is.
* Kaggle's `LOC_val_solution.csv`: a line reads `ILSVRC2012_val_00048981,n03995372 85 1 499 272 …`,
  the name of the image without its ending, then synset and box, once or more; all boxes of an image
  have one synset.
* Places365: a line of `places365_val.txt` reads `Places365_val_00000001.jpg 165`; a line of
  `categories_places365.txt` says which class a number is: `/f/florist_shop/indoor 147`. Classes are
  matched by name, so lists with categories beyond the 365 are read as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from clinit.extract.dataset.layouts import damaged
from clinit.files.text import lines_of

FILE_NAME = pl.col("path").str.extract(r"([^/]+)$")
STEM = pl.col("path").str.extract(r"([^/]+)\.[^./]*$")
NUMBER = pl.col("path").str.extract(r"_(\d+)\.[^./]*$").cast(pl.Int64, strict=False)
"""What the lists call an image: its file's name, the name without its ending, or its number."""


def devkit_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> pl.DataFrame:
    """Return number and label of the images of ImageNet's development kit."""
    meta, truth = lists
    labels = _labels_of_ids(meta, classes)
    found: list[int] = []
    for number, line in enumerate(_lines(truth), start=1):
        try:
            found.append(labels[int(line)])
        except (ValueError, KeyError) as error:
            raise damaged(
                truth, f"has {line.strip()!r} in line {number}, which is no id of meta.mat"
            ) from error
    return _table(range(1, len(found) + 1), found, pl.Int64)


def _labels_of_ids(meta: Path, classes: tuple[str, ...]) -> dict[int, int]:
    """Return ILSVRC2012_ID -> label; the inner nodes of the hierarchy have no label."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    label_of = {name: label for label, name in enumerate(classes)}
    wrong = (OSError, ValueError, TypeError, KeyError, IndexError, NotImplementedError)
    try:
        synsets = np.atleast_1d(loadmat(meta, squeeze_me=True)["synsets"])
        ids = [int(number) for number in synsets["ILSVRC2012_ID"]]
        names = [str(name).strip() for name in synsets["WNID"]]
    except (MatReadError, *wrong) as error:
        raise damaged(meta, f"is not the development kit's table of synsets: {error}") from error
    return {i: label_of[name] for i, name in zip(ids, names, strict=True) if name in label_of}


def kaggle_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> pl.DataFrame:
    """Return name without ending, and label, of the images of Kaggle's list."""
    (source,) = lists
    try:
        lines = pl.read_csv(source.read_bytes(), infer_schema=False).select(
            key="ImageId", synset=pl.col("PredictionString").str.extract(r"^\s*(\S+)")
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise damaged(
            source, f"is no table with the columns ImageId and PredictionString: {error}"
        ) from error
    labels = _table(classes, range(len(classes)), pl.String).rename({"key": "synset"})
    labelled = lines.join(labels, on="synset", how="left")
    unknown = labelled.filter(pl.col("label").is_null())
    if len(unknown):
        image, synset, _ = unknown.row(0)
        raise damaged(source, f"gives {image} the class {synset}, which ImageNet-1K does not have")
    return labelled.select("key", "label")


def places_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> pl.DataFrame:
    """Return file name and label of the validation images of Places365."""
    categories, source = lists
    names = {number: name for name, number in _pairs(categories)}
    label_of = {name: label for label, name in enumerate(classes)}
    found: list[tuple[str, int]] = []
    for image, number in _pairs(source):
        # "/f/florist_shop/indoor" -> "florist_shop/indoor"
        name = names.get(number, "").lstrip("/").partition("/")[2]
        if name not in label_of:
            raise damaged(
                source,
                f"gives {image} the number {number}, which {categories.name} gives to none of the"
                f" {len(label_of)} classes",
            )
        found.append((image, label_of[name]))
    return _table([image for image, _ in found], [label for _, label in found], pl.String)


def _pairs(path: Path) -> list[tuple[str, int]]:
    pairs: list[tuple[str, int]] = []
    for number, line in enumerate(_lines(path), start=1):
        name, _, label = line.strip().rpartition(" ")
        if not (name and label.isdecimal()):
            raise damaged(path, f"has {line!r} in line {number}, expected a name and a number")
        pairs.append((name.strip(), int(label)))
    return pairs


def _lines(path: Path) -> list[str]:
    """Return the lines that are not blank."""
    try:
        return lines_of(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, f"cannot be read: {error}") from error


def _table(
    keys: Sequence[int] | Sequence[str], labels: Sequence[int], kind: type[pl.DataType]
) -> pl.DataFrame:
    return pl.DataFrame({"key": keys, "label": labels}, schema={"key": kind, "label": pl.Int64})
