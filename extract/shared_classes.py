"""The class list that the splits of a cache share, though one may lack images of some classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int

from clinit.errors import CacheError
from clinit.extract.dataset import SPLITS
from clinit.extract.manifest import read_manifest

_SHOWN = 3


def other_classes(out: Path, split: str) -> tuple[Path, tuple[str, ...]] | None:
    """Return the folder of the other split of the cache at `out`, and its class names."""
    for name in SPLITS:
        path = out / name / "manifest.parquet"
        if name != split and path.is_file():
            return out / name, read_manifest(path).class_names
    return None


def in_list_of(
    other: tuple[str, ...],
    labels: Int[np.ndarray, " rows"],
    names: tuple[str, ...],
    *,
    by_name: bool,
) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    """Number labels as the other split does, where it has all of their classes and more.

    Args:
        other: Class names of the other split.
        labels: Numbers of classes.
        names: Class names of these numbers.
        by_name: Whether the rows came with names. Numbers say which class they mean only where the
            other list begins with that of these rows.

    Returns:
        Labels and names; as they were where the other list lacks one of these.
    """
    if not by_name:
        return labels, other if other[: len(names)] == names else names
    number = {name: label for label, name in enumerate(other)}
    if not number.keys() >= set(names):
        return labels, names
    return np.array([number[name] for name in names], dtype=np.int64)[labels], other


def refuse_other_classes(out: Path, split: str, names: tuple[str, ...]) -> None:
    """Compare the classes of a split that is to be written with those of the other one.

    Raises:
        CacheError: If they are others; the first ones that differ are named.
    """
    found = other_classes(out, split)
    if found is None or found[1] == names:
        return
    folder, other = found
    raise CacheError(
        f"the classes of this split are not those of {folder}: {_difference(names, other)}",
        remedy="Import both splits with the same `--classes FILE`, or use another folder.",
    )


def _difference(names: tuple[str, ...], other: tuple[str, ...]) -> str:
    extra = sorted(set(names) - set(other))
    missing = sorted(set(other) - set(names))
    if extra or missing:
        return ", ".join(_few(extra, "here") + _few(missing, "there"))
    place = next(i for i, pair in enumerate(zip(names, other, strict=True)) if pair[0] != pair[1])
    return f"class {place:,} is {names[place][:60]} here, {other[place][:60]} there"


def _few(names: list[str], where: str) -> list[str]:
    if not names:
        return []
    listed = ", ".join([*(name[:60] for name in names[:_SHOWN]), *["..."] * (len(names) > _SHOWN)])
    return [f"{len(names):,} {'is' if len(names) == 1 else 'are'} {where} alone ({listed})"]
