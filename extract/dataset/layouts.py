"""How data sets of image files lie on the disk: class folders, or one folder with a list.

A layout is a function from a `Search` to a `Reader`; it raises `DoesNotFitError` if the disk looks
different. `scan.LAYOUTS` has them under the names used in the TOML files. Lists of labels lie
beside the validation images of ImageNet and Places365, as published:

* ImageNet's development kit: line i of `ILSVRC2012_validation_ground_truth.txt` holds the
  ILSVRC2012_ID of the image with number i. These ids are not alphabetical: `meta.mat` says which
  synset each one is.
* Kaggle's `LOC_val_solution.csv`: a line reads `ILSVRC2012_val_00048981,n03995372 85 1 499 272 …`,
  the name of the image without its ending, then synset and box, once or more; all boxes of an image
  have one synset.
* Places365: a line of `places365_val.txt` reads `Places365_val_00000001.jpg 165`; a line of
  `categories_places365.txt` says which class a number is: `/f/florist_shop/indoor 147`. Classes are
  matched by name, so lists with categories beyond the 365 are read as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.known import Dataset, Layout, is_text
from clinit.extract.dataset.tree import UNTAKEN_SUFFIXES, Images, Tree
from clinit.files.text import lines_of
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


def find_class_folders(folders_of: Callable[[str], Sequence[str]], search: Search) -> Reader:
    """Find one folder per class; `folders_of` a class may be several, nested ones with `/`."""
    names = {
        folder: label
        for label, name in enumerate(search.dataset.classes)
        for folder in folders_of(name)
    }
    first_parts = {name.partition("/")[0] for name in names}

    def fits(folder: str) -> bool:
        return not first_parts.isdisjoint(search.tree.folders(folder))

    folder, warnings = search.folder(fits, f"with no class folder of {search.dataset.title}")
    return partial(_read_class_folders, search, folder, names, warnings)


def _read_class_folders(
    search: Search, folder: str, names: Mapping[str, int], warnings: tuple[str, ...]
) -> Listing:
    matched, passed, unknown = _match(search, folder, names)
    found = search.tree.images_of_all([f"{folder}/{name}".removeprefix("./") for name in matched])
    loose = [search.tree.images(between, deep=False) for between in passed]
    labels = np.repeat(
        np.array([names[name] for name in matched], dtype=np.int64),
        np.array([len(images.paths) for images in found], dtype=np.int64),
    )
    return Listing(
        _image_table(found).with_columns(pl.Series("label", labels)),
        (
            *warnings,
            *counted(unknown, f"folders left out, no class of {search.dataset.title}"),
            *counted(
                [path for images in loose for path in (*images.paths, *images.others)],
                "files left out, outside of any class folder",
            ),
            *_file_warnings(found),
        ),
    )


def _match(
    search: Search, folder: str, names: Mapping[str, int]
) -> tuple[list[str], list[str], list[str]]:
    """Return the class folders, the folders passed on the way, and the unknown folders."""
    on_the_way = {name[:i] for name in names for i, sign in enumerate(name) if sign == "/"}
    matched: list[str] = []
    passed: list[str] = []
    unknown: list[str] = []
    ahead = [""]
    while ahead:
        inside = ahead.pop()
        here = f"{folder}/{inside}".rstrip("/")
        passed.append(here)
        for name in search.tree.folders(here):
            relative = f"{inside}/{name}".lstrip("/")
            if relative in names:
                matched.append(relative)
            elif relative in on_the_way:
                ahead.append(relative)
            else:
                unknown.append(f"{here}/{name}".removeprefix("./"))
    return matched, passed, unknown


def find_listed(
    key: pl.Expr, read: Callable[[tuple[str, ...], Sequence[Path]], pl.DataFrame], search: Search
) -> Reader:
    """Find the one folder of a split, and the lists of its layout.

    Args:
        key: What of `path` the lists call an image.
        read: From the classes and the lists to `key` and `label`, one row per image.
        search: The layout; what is wrong with a label is said of its last list.
    """
    folder, warnings = search.folder(search.tree.has_image, "with no image directly inside")
    lists = [search.list_file(name) for name in search.layout.lists]
    return partial(_read_listed, search, folder, warnings, key, read, lists)


def _read_listed(
    search: Search,
    folder: str,
    warnings: tuple[str, ...],
    key: pl.Expr,
    read: Callable[[tuple[str, ...], Sequence[Path]], pl.DataFrame],
    lists: Sequence[Path],
) -> Listing:
    """Return the images of `folder` with their labels from the lists.

    Raises:
        ManifestError: If the list is damaged or names an image twice.
    """
    lines, source = read(search.dataset.classes, lists), lists[-1]
    twice = lines.filter(pl.col("key").is_duplicated())
    if len(twice):
        raise damaged(source, f"names {twice['key'][0]} twice")
    images = search.tree.images(folder, deep=False)
    table = _image_table([images]).with_columns(key=key).join(lines, on="key", how="left")
    without_line = table.filter(pl.col("label").is_null())["path"].to_list()
    without_file = lines.join(table, on="key", how="anti")["key"].cast(pl.String).to_list()
    return Listing(
        table.drop_nulls("label").drop("key"),
        (
            *warnings,
            *counted(without_line, f"images left out, without a line in {source.name}"),
            *counted(without_file, f"lines of {source.name} without an image"),
            *counted(images.folders, "folders left out, among the images"),
            *_file_warnings([images]),
        ),
    )


def damaged(path: Path, problem: str) -> ManifestError:
    """Return the error for a list that is not as its publisher wrote it."""
    return ManifestError(
        f"{printable(path)} {problem}",
        remedy="Fetch this file again from the publisher of the data set.",
    )


def _image_table(found: Sequence[Images]) -> pl.DataFrame:
    """Return path and size_bytes of the images found.

    Raises:
        ManifestError: If a file name is not valid UTF-8.
    """
    paths = [path for images in found for path in images.paths]
    sizes = [size for images in found for size in images.sizes]
    try:
        path = pl.Series("path", paths, dtype=pl.String)
    except UnicodeEncodeError as error:
        bad = next(path for path in paths if not is_text(path))
        raise ManifestError(
            f"the file name {printable(bad)} is not valid UTF-8",
            remedy="Rename the file (`convmv` converts whole trees), then run the same command"
            " again.",
        ) from error
    return pl.DataFrame([path, pl.Series("size_bytes", sizes, dtype=pl.Int64)])


def _file_warnings(found: Sequence[Images]) -> tuple[str, ...]:
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


FILE_NAME = pl.col("path").str.extract(r"([^/]+)$")
STEM = pl.col("path").str.extract(r"([^/]+)\.[^./]*$")
NUMBER = pl.col("path").str.extract(r"_(\d+)\.[^./]*$").cast(pl.Int64, strict=False)
"""What the lists call an image: its file's name, the name without its ending, or its number."""


def devkit_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> pl.DataFrame:
    """Return number and label of the images of ImageNet's development kit."""
    meta, truth = lists
    labels = _labels_of_ids(meta, classes)
    found: list[int] = []
    for number, line in enumerate(_lines(truth), start=1):
        try:
            found.append(labels[int(line)])
        except (ValueError, KeyError) as error:
            raise damaged(
                truth, f"has {line.strip()!r} in line {number}, which is no id of meta.mat"
            ) from error
    return _table(range(1, len(found) + 1), found, pl.Int64)


def _labels_of_ids(meta: Path, classes: tuple[str, ...]) -> dict[int, int]:
    """Return ILSVRC2012_ID -> label; the inner nodes of the hierarchy have no label."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    label_of = {name: label for label, name in enumerate(classes)}
    wrong = (OSError, ValueError, TypeError, KeyError, IndexError, NotImplementedError)
    try:
        synsets = np.atleast_1d(loadmat(meta, squeeze_me=True)["synsets"])
        ids = [int(number) for number in synsets["ILSVRC2012_ID"]]
        names = [str(name).strip() for name in synsets["WNID"]]
    except (MatReadError, *wrong) as error:
        raise damaged(meta, f"is not the development kit's table of synsets: {error}") from error
    return {i: label_of[name] for i, name in zip(ids, names, strict=True) if name in label_of}


def kaggle_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> pl.DataFrame:
    """Return name without ending, and label, of the images of Kaggle's list."""
    (source,) = lists
    try:
        lines = pl.read_csv(source.read_bytes(), infer_schema=False).select(
            key="ImageId", synset=pl.col("PredictionString").str.extract(r"^\s*(\S+)")
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise damaged(
            source, f"is no table with the columns ImageId and PredictionString: {error}"
        ) from error
    labels = _table(classes, range(len(classes)), pl.String).rename({"key": "synset"})
    labelled = lines.join(labels, on="synset", how="left")
    unknown = labelled.filter(pl.col("label").is_null())
    if len(unknown):
        image, synset, _ = unknown.row(0)
        raise damaged(source, f"gives {image} the class {synset}, which ImageNet-1K does not have")
    return labelled.select("key", "label")


def places_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> pl.DataFrame:
    """Return file name and label of the validation images of Places365."""
    categories, source = lists
    names = {number: name for name, number in _pairs(categories)}
    label_of = {name: label for label, name in enumerate(classes)}
    found: list[tuple[str, int]] = []
    for image, number in _pairs(source):
        # "/f/florist_shop/indoor" -> "florist_shop/indoor"
        name = names.get(number, "").lstrip("/").partition("/")[2]
        if name not in label_of:
            raise damaged(
                source,
                f"gives {image} the number {number}, which {categories.name} gives to none of the"
                f" {len(label_of)} classes",
            )
        found.append((image, label_of[name]))
    return _table([image for image, _ in found], [label for _, label in found], pl.String)


def _pairs(path: Path) -> list[tuple[str, int]]:
    pairs: list[tuple[str, int]] = []
    for number, line in enumerate(_lines(path), start=1):
        name, _, label = line.strip().rpartition(" ")
        if not (name and label.isdecimal()):
            raise damaged(path, f"has {line!r} in line {number}, expected a name and a number")
        pairs.append((name.strip(), int(label)))
    return pairs


def _lines(path: Path) -> list[str]:
    """Return the lines that are not blank."""
    try:
        return lines_of(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, f"cannot be read: {error}") from error


def _table(
    keys: Sequence[int] | Sequence[str], labels: Sequence[int], kind: type[pl.DataType]
) -> pl.DataFrame:
    return pl.DataFrame({"key": keys, "label": labels}, schema={"key": kind, "label": pl.Int64})
