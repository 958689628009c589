"""Find the splits and views in the folder of a cache, without reading their files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.dataset.known import SPLITS
from clinit.files.paths import exists, is_file
from clinit.words import closest

VIEWS_FOLDER = "views"
"""Folder next to the splits; view k of the training images is the split folder `views/<k>`."""
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
"""The number or the seed of a view, as text."""
_PLAN, SUMMARY_FILE = "plan.json", "cache.json"


def split_names(path: Path) -> list[str]:
    """Return the names of the splits in a cache, complete or not.

    Raises:
        CacheError: If `path` is not a cache.
    """
    if found := _splits_in(path):
        return found
    hint = (
        "Write one with `clinit extract --out`, or import features with `clinit cache import FILE"
        " --out CACHE`."
    )
    if is_file(path / _PLAN):
        parent = path.parents[1] if path.parent.name == VIEWS_FOLDER else path.parent
        hint = f"Give its parent folder, {parent}."
    elif not exists(path) and (
        near := closest(path.name, [each.name for each in caches_in(path.parent)])
    ):
        hint = f"Did you mean {path.with_name(near)}?"
    raise CacheError(f"no feature cache at {path}", remedy=hint)


def _splits_in(path: Path) -> list[str]:
    marks = (_PLAN, SUMMARY_FILE)
    return [name for name in SPLITS if any(is_file(path / name / mark) for mark in marks)]


def caches_in(path: Path) -> list[Path]:
    """Return the cache that `path` is or is a split of, else the caches directly inside `path`."""
    for each in (path, path.parent):
        if _splits_in(each) and (each == path or path.name in SPLITS):
            return [each]
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if _splits_in(Path(entry.path)))
    except OSError:
        return []


def view_folders(cache: Path) -> list[Path]:
    """Return the folders of a cache's views, complete or not, in order."""
    marks = (_PLAN, SUMMARY_FILE)
    marked = {path.parent for mark in marks for path in (cache / VIEWS_FOLDER).glob(f"*/{mark}")}
    found = (folder for folder in marked if _NUMBER.fullmatch(folder.name))
    return sorted(found, key=lambda folder: int(folder.name))


def check_view(
    folder: Path, fingerprint: Fingerprint, plain: Fingerprint, first: Fingerprint
) -> None:
    """Check that `folder` contains the view of the train split that its name, a number, promises.

    Args:
        folder: Folder of the view.
        fingerprint: Fingerprint of the view.
        plain: Fingerprint of the train split.
        first: Fingerprint of the first view; all views must have its seed and augmentation.

    Raises:
        CacheError: If the folder does not contain that view.
    """
    wrong = [
        (each.name, each.other, each.one) for each in plain.differences_but_of_view(fingerprint)
    ]
    for name, wanted in (
        ("augmentation", first.augmentation),
        ("view_seed", first.view_seed),
        ("view", folder.name),
    ):
        found = fingerprint.fields.get(name, "nothing")
        if found != wanted:
            wrong.append((name, found, wanted or "a text"))
        elif name != "augmentation" and not _NUMBER.fullmatch(found):
            wrong.append((name, found, "a number"))
    for name, found, wanted in wrong:
        raise CacheError(
            f"{folder} is not a view of the train split of its cache: its features have {name} ="
            f" {found}, expected {name} = {wanted}",
            remedy=f"Remove {folder}, then run the `clinit extract` command of this cache with"
            " --views: it computes the missing views.",
        )
