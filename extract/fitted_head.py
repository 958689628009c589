"""The head of a cache, and whether it was fitted to its rows: then nothing else brings it again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.head import Head, read_head
from clinit.extract.cache.read import CacheSplit, open_split
from clinit.extract.dataset import SPLITS

FIT_AGAIN = (
    "Run the `clinit cache import` command of this cache with its `--fit-head` again: it fits the"
    " head anew and keeps what is whole."
)
"""Remedy for a fitted head that is damaged or missing."""


def was_fitted(path: Path) -> bool:
    """Return whether the splits at `path` were judged with a head that no file has brought."""
    runs = [split.summary.run for split in _readable_splits(path)]
    is_imported = all(run.features is not None for run in runs)
    brought = any(run.head is not None or run.merged for run in runs)
    return bool(judged_heads(path)) and is_imported and not brought


def judged_heads(path: Path) -> set[str]:
    """Return the digests of the heads that the splits in a cache were judged with."""
    told = (split.summary.head.tensors for split in _readable_splits(path))
    return {tensors for tensors in told if tensors is not None}


def readable_head(path: Path) -> Head | None:
    """Read a head file; None where it is missing or damaged."""
    try:
        return read_head(path)
    except HeadError:
        return None


def _readable_splits(path: Path) -> list[CacheSplit]:
    found = []
    for name in SPLITS:
        with suppress(CacheError):
            found.append(open_split(path / name))
    return found
