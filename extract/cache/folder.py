"""Which splits and views lie in the folder of a cache; nothing of them is read."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.dataset.known import SPLITS
from clinit.words import closest

VIEWS_FOLDER = "views"
"""Folder beside the splits; view k of the training images is the split folder `views/<k>`."""
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
"""Numbers of views and their seeds, as texts."""
_PLAN, SUMMARY_FILE = "plan.json", "cache.json"


def split_names(path: Path) -> list[str]:
    """Return which splits are in a cache, complete or not.

    Raises:
        CacheError: If there is none at `path`.
    """
    found = _splits_in(path)
    if not found:
        parent = path.parents[1] if path.parent.name == VIEWS_FOLDER else path.parent
        hint = (
            f"Give its parent folder, {parent}."
            if (path / _PLAN).is_file()
            else "Write one with `clinit extract --out`, or import features with"
            " `clinit cache import`."
        )
        if path.is_file():
            hint = _import_command(path) or hint
        elif not path.exists() and (
            near := closest(path.name, [each.name for each in caches_in(path.parent)])
        ):
            hint = f"Did you mean {path.with_name(near)}?"
        raise CacheError(f"no feature cache at {path}", remedy=hint)
    return found


def _splits_in(path: Path) -> list[str]:
    marks = (_PLAN, SUMMARY_FILE)
    return [name for name in SPLITS if any((path / name / mark).is_file() for mark in marks)]


def caches_in(path: Path) -> list[Path]:
    """Return `path` if it is a cache or a split of one, else the caches right below it."""
    for each in (path, path.parent):
        if _splits_in(each) and (each == path or path.name in SPLITS):
            return [each]
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if _splits_in(Path(entry.path)))
    except OSError:
        return []


def _import_command(path: Path) -> str | None:
    """Return which command makes a cache of a file of features; None for any other file."""
    from clinit.extract.arrays.open import KINDS

    suffix = path.suffix.lower()
    if suffix not in KINDS:
        return None
    labels = " LABELS.npy" if suffix == ".npy" else ""
    out = shlex.quote(str(path.with_suffix("")))
    command = f"clinit cache import {shlex.quote(str(path))}{labels} --backbone NAME --out {out}"
    return (
        f"It is a file: `{command}` makes a cache of it, with `--fit-head logistic` for base"
        " classes that have no head."
    )


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
