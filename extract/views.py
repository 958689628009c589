"""Which fingerprints make a split a view of another: the same but for the augmentation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.fingerprint import FEATURES

VIEWS_FOLDER = "views"
"""Folder beside the splits; view k of the training images is the split folder `views/<k>`."""
AUGMENTATION, SEED, NUMBER = "augmentation", "view_seed", "view"
"""The fields that the fingerprint of a view has more than that of the plain split."""
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
"""Numbers of views and their seeds, as texts."""


def view_fingerprint(
    plain: Mapping[str, str], augmentation: str, *, seed: int, number: int
) -> dict[str, str]:
    """Return the fingerprint of a view of the images of a split."""
    return {**plain, AUGMENTATION: augmentation, SEED: str(seed), NUMBER: str(number)}


def view_folders(cache: Path) -> list[Path]:
    """Return the folders of the views of a cache, begun or complete, in order."""
    marks = ("plan.json", "cache.json")
    marked = {path.parent for mark in marks for path in (cache / VIEWS_FOLDER).glob(f"*/{mark}")}
    found = (folder for folder in marked if _NUMBER.fullmatch(folder.name))
    return sorted(found, key=lambda folder: int(folder.name))


def check_view(
    folder: Path, fingerprint: Mapping[str, str], plain: Mapping[str, str], first: Mapping[str, str]
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
    for name in sorted({*plain, *fingerprint} - {AUGMENTATION, SEED, NUMBER, FEATURES}):
        found, wanted = fingerprint.get(name, "nothing"), plain.get(name, "nothing")
        if found != wanted:
            raise CacheError(
                f"{folder} is no view of the train split beside it: its features have {name} ="
                f" {found}, those of the split {name} = {wanted}",
                remedy=remedy,
            )
    expected = {**{name: first.get(name) for name in (AUGMENTATION, SEED)}, NUMBER: folder.name}
    for name, value in expected.items():
        kind = "text" if name == AUGMENTATION else "number"
        if kind == "number" and not _NUMBER.fullmatch(value or ""):
            value = None
        if value is None or fingerprint.get(name) != value:
            raise CacheError(
                f"{folder} holds features with {name} = {fingerprint.get(name, 'nothing')} where"
                f" {name} = {value or f'a {kind}'} is expected",
                remedy=remedy,
            )
