"""Places365-Standard, original validation images: `val_256/` with `places365_val.txt`.

A line of `places365_val.txt` reads `Places365_val_00000001.jpg 165`; a line of
`categories_places365.txt` says which class a number is: `/f/florist_shop/indoor 147`. Classes
are matched by name, so lists with categories beyond the 365 are read as well.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import polars as pl

from clinit.extract.layouts.flat import damaged, find_flat, label_flat, read_lines
from clinit.extract.layouts.search import Listing, Reader, Search

_FILE_NAME = pl.col("path").str.extract(r"([^/]+)$")


def find(search: Search) -> Reader:
    """Find the folder and both lists."""
    folder, warnings = find_flat(search)
    source = search.list_file("places365_val.txt")
    categories = search.list_file("categories_places365.txt")
    return partial(_read, search, folder, warnings, source, categories)


def _read(
    search: Search, folder: str, warnings: tuple[str, ...], source: Path, categories: Path
) -> Listing:
    names = {number: name for name, number in _pairs(categories)}
    label_of = {name: label for label, name in enumerate(search.dataset.classes)}
    keys: list[str] = []
    labels: list[int] = []
    for image, number in _pairs(source):
        # "/f/florist_shop/indoor" -> "florist_shop/indoor"
        name = names.get(number, "").lstrip("/").partition("/")[2]
        if name not in label_of:
            raise damaged(
                source,
                f"gives {image} the number {number}, which {categories.name} gives to none of the"
                f" {len(label_of)} classes",
            )
        keys.append(image)
        labels.append(label_of[name])
    lines = pl.DataFrame(
        {"key": keys, "label": labels}, schema={"key": pl.String, "label": pl.Int64}
    )
    listing = label_flat(search, folder, _FILE_NAME, lines, source)
    return Listing(listing.table, warnings + listing.warnings)


def _pairs(path: Path) -> list[tuple[str, int]]:
    pairs: list[tuple[str, int]] = []
    for number, line in enumerate(read_lines(path), start=1):
        name, _, label = line.strip().rpartition(" ")
        if not (name and label.isdecimal()):
            raise damaged(path, f"has {line!r} in line {number}, expected a name and a number")
        pairs.append((name.strip(), int(label)))
    return pairs
