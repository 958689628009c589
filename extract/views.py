"""Views of a split: where they are, and which fingerprints make a split a view of another."""

from __future__ import annotations

import re
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint

VIEWS_FOLDER = "views"
"""Folder beside the splits; view k of the training images is the split folder `views/<k>`."""
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
"""Numbers of views and their seeds, as texts."""


def view_folders(cache: Path) -> list[Path]:
    """Return the folders of the views of a cache, begun or complete, in order."""
    marks = ("plan.json", "cache.json")
    marked = {path.parent for mark in marks for path in (cache / VIEWS_FOLDER).glob(f"*/{mark}")}
    found = (folder for folder in marked if _NUMBER.fullmatch(folder.name))
    return sorted(found, key=lambda folder: int(folder.name))


def check_view(
    folder: Path, fingerprint: Fingerprint, plain: Fingerprint, first: Fingerprint
) -> None:
    """Check that the split in `folder` is the view that its name says.

    Args:
        folder: Folder of the view.
        fingerprint: Fingerprint of the view.
        plain: Fingerprint of the split whose images it shows.
        first: Fingerprint of the first view, whose seed and augmentation all others share.

    Raises:
        CacheError: If it is not.
    """
    remedy = (
        f"Remove {folder}, then run the `clinit extract` command of this cache with --views:"
        " it computes what is missing."
    )
    for each in plain.differences_but_of_view(fingerprint):
        raise CacheError(
            f"{folder} is no view of the train split beside it: its features have {each.name} ="
            f" {each.other}, those of the split {each.name} = {each.one}",
            remedy=remedy,
        )
    seed = first.view_seed if _NUMBER.fullmatch(first.view_seed or "") else None
    number = folder.name if _NUMBER.fullmatch(folder.name) else None
    for name, found, wanted, kind in (
        ("augmentation", fingerprint.augmentation, first.augmentation, "a text"),
        ("view_seed", fingerprint.view_seed, seed, "a number"),
        ("view", fingerprint.view, number, "a number"),
    ):
        if wanted is None or found != wanted:
            raise CacheError(
                f"{folder} holds features with {name} = {'nothing' if found is None else found}"
                f" where {name} = {wanted or kind} is expected",
                remedy=remedy,
            )
