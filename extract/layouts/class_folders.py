"""One folder per class, named like the class: `train/n01440764/…`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import polars as pl

from clinit.extract.layouts.search import (
    Listing,
    Reader,
    Search,
    counted,
    file_warnings,
    image_table,
)


def find(search: Search) -> Reader:
    """Find folders that are named exactly like the classes."""
    names = {name: label for label, name in enumerate(search.dataset.classes)}
    return find_named(search, names)


def find_named(search: Search, names: Mapping[str, int]) -> Reader:
    """Find class folders by name; `names` maps folders, nested ones with `/`, to labels."""
    first_parts = {name.partition("/")[0] for name in names}

    def fits(folder: str) -> bool:
        return not first_parts.isdisjoint(search.tree.folders(folder))

    folder, warnings = search.folder(fits, f"with no class folder of {search.dataset.title}")
    return partial(_read, search, folder, names, warnings)


def _read(
    search: Search, folder: str, names: Mapping[str, int], warnings: tuple[str, ...]
) -> Listing:
    matched, passed, unknown = _match(search, folder, names)
    found = search.tree.images_of_all([f"{folder}/{name}".removeprefix("./") for name in matched])
    loose = [search.tree.images(between, deep=False) for between in passed]
    labels = np.repeat(
        np.array([names[name] for name in matched], dtype=np.int64),
        np.array([len(images.paths) for images in found], dtype=np.int64),
    )
    return Listing(
        image_table(found).with_columns(pl.Series("label", labels)),
        (
            *warnings,
            *counted(unknown, f"folders left out, no class of {search.dataset.title}"),
            *counted(
                [path for images in loose for path in (*images.paths, *images.others)],
                "files left out, outside of any class folder",
            ),
            *file_warnings(found),
        ),
    )


def _match(
    search: Search, folder: str, names: Mapping[str, int]
) -> tuple[list[str], list[str], list[str]]:
    """Return the class folders, the folders passed on the way, and the unknown folders."""
    on_the_way = {name[:i] for name in names for i, sign in enumerate(name) if sign == "/"}
    matched: list[str] = []
    passed: list[str] = []
    unknown: list[str] = []
    ahead = [""]
    while ahead:
        inside = ahead.pop()
        here = f"{folder}/{inside}".rstrip("/")
        passed.append(here)
        for name in search.tree.folders(here):
            relative = f"{inside}/{name}".lstrip("/")
            if relative in names:
                matched.append(relative)
            elif relative in on_the_way:
                ahead.append(relative)
            else:
                unknown.append(f"{here}/{name}".removeprefix("./"))
    return matched, passed, unknown
