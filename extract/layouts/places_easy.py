"""Places365-Standard, "easy" form: `train/church-outdoor/…`.

The names of classes hold a `/` (church/outdoor) that the folders write as a hyphen. No name
holds a hyphen of its own, so the two are equal here; nested folders are taken as well.
"""

from __future__ import annotations

from clinit.extract.layouts.class_folders import find_named
from clinit.extract.layouts.search import Reader, Search


def find(search: Search) -> Reader:
    """Find class folders with `-` or `/` inside their names."""
    classes = search.dataset.classes
    names = {name: label for label, name in enumerate(classes)}
    hyphens = {name.replace("/", "-"): label for label, name in enumerate(classes)}
    return find_named(search, names | hyphens)
