"""Which splits lie in the folder of a cache; nothing of them is read."""

from __future__ import annotations

import shlex
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.dataset import SPLITS
from clinit.extract.views import VIEWS_FOLDER

_PLAN, SUMMARY_FILE = "plan.json", "cache.json"


def split_names(path: Path) -> list[str]:
    """Return which splits are in a cache, complete or not.

    Raises:
        CacheError: If there is none at `path`.
    """
    marks = (_PLAN, SUMMARY_FILE)
    found = [name for name in SPLITS if any((path / name / mark).is_file() for mark in marks)]
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
        raise CacheError(f"no feature cache at {path}", remedy=hint)
    return found


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
