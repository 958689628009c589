"""Places365-Standard, original training images: `data_256_standard/c/church/outdoor/…`."""

from __future__ import annotations

from clinit.extract.layouts.class_folders import find_named
from clinit.extract.layouts.search import Reader, Search


def find(search: Search) -> Reader:
    """Find nested class folders below folders of first letters."""
    names = {f"{name[0]}/{name}": label for label, name in enumerate(search.dataset.classes)}
    return find_named(search, names)
