"""ImageNet's validation images in one folder, labelled by the development kit.

Line i of `ILSVRC2012_validation_ground_truth.txt` holds the ILSVRC2012_ID of the image with
number i. These ids are not alphabetical: `meta.mat` says which synset each one is.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from clinit.extract.layouts.flat import damaged, find_flat, label_flat, read_lines
from clinit.extract.layouts.search import Listing, Reader, Search

_NUMBER = pl.col("path").str.extract(r"_(\d+)\.[^./]*$").cast(pl.Int64, strict=False)


def find(search: Search) -> Reader:
    """Find the folder, the list and the synsets."""
    folder, warnings = find_flat(search)
    meta = search.list_file("meta.mat")
    truth = search.list_file("ILSVRC2012_validation_ground_truth.txt")
    return partial(_read, search, folder, warnings, meta, truth)


def _read(
    search: Search, folder: str, warnings: tuple[str, ...], meta: Path, truth: Path
) -> Listing:
    lines = _lines(truth, _labels_of_ids(meta, search.dataset.classes))
    listing = label_flat(search, folder, _NUMBER, lines, truth)
    return Listing(listing.table, warnings + listing.warnings)


def _labels_of_ids(meta: Path, classes: tuple[str, ...]) -> dict[int, int]:
    """Return ILSVRC2012_ID -> label; the inner nodes of the hierarchy have no label."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    label_of = {name: label for label, name in enumerate(classes)}
    try:
        synsets = np.atleast_1d(loadmat(meta, squeeze_me=True)["synsets"])
        ids = [int(number) for number in synsets["ILSVRC2012_ID"]]
        names = [str(name).strip() for name in synsets["WNID"]]
    except (
        MatReadError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        NotImplementedError,
    ) as error:
        raise damaged(meta, f"is not the development kit's table of synsets: {error}") from error
    return {i: label_of[name] for i, name in zip(ids, names, strict=True) if name in label_of}


def _lines(truth: Path, labels: dict[int, int]) -> pl.DataFrame:
    found: list[int] = []
    for number, line in enumerate(read_lines(truth), start=1):
        try:
            found.append(labels[int(line)])
        except (ValueError, KeyError) as error:
            raise damaged(
                truth, f"has {line.strip()!r} in line {number}, which is no id of meta.mat"
            ) from error
    return pl.DataFrame(
        {"key": range(1, len(found) + 1), "label": found},
        schema={"key": pl.Int64, "label": pl.Int64},
    )
