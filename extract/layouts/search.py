"""What a layout is given to look for, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset import Dataset, Layout
from clinit.extract.tree import UNTAKEN_SUFFIXES, Images, Tree
from clinit.words import printable


class DoesNotFitError(Exception):
    """The layout is not the one on the disk; the message says what it missed."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a split as a layout read them, in no particular order."""

    table: pl.DataFrame
    """path, label (int64), size_bytes; of images in containers also what says where in them."""
    warnings: tuple[str, ...]


Reader = Callable[[], Listing]
"""Reads what a search has found; the search itself is cheap, reading visits every image."""


@dataclass(frozen=True, slots=True)
class Search:
    """One layout of one split, looked for under a root."""

    tree: Tree
    dataset: Dataset
    layout: Layout
    split: str

    def folder(self, fits: Callable[[str], bool], otherwise: str) -> tuple[str, tuple[str, ...]]:
        """Return the first folder that exists and fits, and warnings about further ones.

        Raises:
            DoesNotFitError: If none exists, or none fits; `otherwise` says what they lack.
        """
        candidates = self.layout.folders.get(self.split, ())
        if not candidates:
            raise DoesNotFitError(f"has no {self.split} split")
        existing = [folder for folder in candidates if self.tree.has_folder(folder)]
        if not existing:
            raise DoesNotFitError(f"no folder {' or '.join(candidates)}")
        fitting = [folder for folder in existing if fits(folder)]
        if not fitting:
            raise DoesNotFitError(f"{' and '.join(existing)} {otherwise}")
        first, *more = fitting
        return first, tuple(f"{folder} was left out: {first} comes first" for folder in more)

    def list_file(self, name: str) -> Path:
        """Return the path of a list.

        Raises:
            DoesNotFitError: If it is in none of the places where the data set has its lists.
        """
        for folder in self.dataset.look_in:
            path = self.tree.file(f"{folder}/{name}")
            if path is not None:
                return path
        raise DoesNotFitError(f"no {name} in {', '.join(self.dataset.look_in)}")


def counted(items: Sequence[str], what: str) -> tuple[str, ...]:
    """Return a warning with what was found, its number and an example; none without items."""
    if not items:
        return ()
    return (f"{what}: {len(items):,} (for example {printable(min(items))})",)


def image_table(found: Sequence[Images]) -> pl.DataFrame:
    """Return path and size_bytes of the images found.

    Raises:
        ManifestError: If a file name is not valid UTF-8.
    """
    paths = [path for images in found for path in images.paths]
    sizes = [size for images in found for size in images.sizes]
    try:
        path = pl.Series("path", paths, dtype=pl.String)
    except UnicodeEncodeError as error:
        bad = next(path for path in paths if not _is_unicode(path))
        raise ManifestError(
            f"the file name {printable(bad)} is not valid UTF-8",
            remedy="Rename the file (`convmv` converts whole trees), then run the same command"
            " again.",
        ) from error
    return pl.DataFrame([path, pl.Series("size_bytes", sizes, dtype=pl.Int64)])


def file_warnings(found: Sequence[Images]) -> tuple[str, ...]:
    """Return the warnings about files that are not images and links to nothing."""
    others = [path for images in found for path in images.others]
    untaken = [path for path in others if path.lower().endswith(UNTAKEN_SUFFIXES)]
    kinds = ", ".join(sorted({Path(path).suffix.lower() for path in untaken}))
    return (
        *counted(
            untaken,
            f"images left out by their names ({kinds}; convert them, such as by `magick mogrify"
            " -format jpg FILE...`)",
        ),
        *counted(
            [path for path in others if not path.lower().endswith(UNTAKEN_SUFFIXES)],
            "files left out, not images by their names",
        ),
        *counted(
            [path for images in found for path in images.broken],
            "images that are links to nothing",
        ),
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
