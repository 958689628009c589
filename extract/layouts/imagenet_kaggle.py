"""ImageNet's validation images in one folder, labelled by Kaggle's `LOC_val_solution.csv`.

A line reads `ILSVRC2012_val_00048981,n03995372 85 1 499 272 …`: the name of the image without
its ending, then synset and box, once or more; all boxes of an image have one synset.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import polars as pl

from clinit.extract.layouts.flat import damaged, find_flat, label_flat
from clinit.extract.layouts.search import Listing, Reader, Search

_STEM = pl.col("path").str.extract(r"([^/]+)\.[^./]*$")


def find(search: Search) -> Reader:
    """Find the folder and the list."""
    folder, warnings = find_flat(search)
    source = search.list_file("LOC_val_solution.csv")
    return partial(_read, search, folder, warnings, source)


def _read(search: Search, folder: str, warnings: tuple[str, ...], source: Path) -> Listing:
    listing = label_flat(search, folder, _STEM, _lines(source, search.dataset.classes), source)
    return Listing(listing.table, warnings + listing.warnings)


def _lines(source: Path, classes: tuple[str, ...]) -> pl.DataFrame:
    try:
        content = pl.read_csv(source.read_bytes(), infer_schema=False)
        lines = content.select(
            key="ImageId", synset=pl.col("PredictionString").str.extract(r"^\s*(\S+)")
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise damaged(
            source, f"is no table with the columns ImageId and PredictionString: {error}"
        ) from error
    labels = pl.DataFrame({"synset": classes, "label": range(len(classes))}).cast(
        {"label": pl.Int64}
    )
    labelled = lines.join(labels, on="synset", how="left")
    unknown = labelled.filter(pl.col("label").is_null())
    if len(unknown):
        image, synset, _ = unknown.row(0)
        raise damaged(source, f"gives {image} the class {synset}, which ImageNet-1K does not have")
    return labelled.select("key", "label")
