"""Which splits lie in the folder of a cache; nothing of them is read."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.dataset.known import SPLITS
from clinit.extract.views import VIEWS_FOLDER
from clinit.words import closest

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
