"""Which containers or folders belong to a split: their names say it.

The words are those of the Hugging Face library; WebDataset has no rule of its own. The file's name
decides (`train-00000-of-00012.parquet`, `imagenet1k-train-0001.tar`), then the nearest folder whose
name has such a word (`train/00000.tar`, `data/validation/0.parquet`). A folder of class folders is
a split if its name is such a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_PART_OF = {word: part for part, words in _WORDS.items() for word in words}
_PARTS_OF = {"train": ("train",), "val": ("validation", "test"), "test": ("test",)}
"""What is taken as a split: the first part that is there."""


def _asked(split: str) -> tuple[str, str]:
    """Return the two splits of a data set: test, where it is asked for, stands for val."""
    return "train", "test" if split == "test" else "val"


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The containers of one split of a data set."""

    part: str
    """Name of the split as its publishers say it: train, validation or test."""
    paths: tuple[str, ...]
    """Sorted."""
    warnings: tuple[str, ...] = ()
    """What was left out."""


def split_folders(names: Sequence[str], split: str) -> dict[str, tuple[str, ...]]:
    """Return the folders that may be each of two splits, those of the first part first.

    Args:
        names: Of folders that hold folders.
        split: What is read: train, val, or test, which then stands for val.
    """
    order = [word for parts in _PARTS_OF.values() for part in parts for word in _WORDS[part]]
    known = sorted(
        (name for name in names if name.lower() in _PART_OF),
        key=lambda name: (order.index(name.lower()), name),
    )
    found = {
        each: tuple(name for name in known if _PART_OF[name.lower()] in _PARTS_OF[each])
        for each in _asked(split)
    }
    return {each: folders for each, folders in found.items() if folders}


def split_files(paths: Sequence[str], split: str = "val") -> dict[str, SplitFiles]:
    """Sort containers into the splits train and val; a split without any is absent.

    Files of which none has a word of a split are all taken as train.

    Args:
        paths: Relative to the root, `/` between folders.
        split: What is read: train, val, or test, which then stands for val.
    """
    parts = {path: _part(path) for path in sorted(paths)}
    if not any(parts.values()):
        return {"train": SplitFiles("train", tuple(parts))} if parts else {}
    nameless = [path for path, part in parts.items() if not part]
    found: dict[str, SplitFiles] = {}
    for each in _asked(split):
        present = [part for part in _PARTS_OF[each] if part in parts.values()]
        if not present:
            continue
        first, *more = present
        found[each] = SplitFiles(
            first,
            tuple(path for path, part in parts.items() if part == first),
            (
                *(f"the files of {part} were left out: {first} comes first" for part in more),
                *(f"{path} was left out: no part of its path names a split" for path in nameless),
            ),
        )
    return found


def _part(path: str) -> str:
    """Return train, validation or test, or nothing where a path has no such word."""
    *folders, name = path.lower().split("/")
    for text in (name.rpartition(".")[0], *reversed(folders)):
        for word in re.split(r"[^a-z]+", text):
            if word in _PART_OF:
                return _PART_OF[word]
    return ""
