"""Layouts of data sets of image files: class folders, or one folder with a list of labels.

A layout is a function from a `Search` to a `Reader`; it raises `DoesNotFitError` if the files on
disk are arranged differently. The keys of `scan.LAYOUTS` are the names of layouts in the TOML
files. ImageNet and Places365 publish lists of labels for their validation images:

* ImageNet's development kit: line i of `ILSVRC2012_validation_ground_truth.txt` is the
  ILSVRC2012_ID of image i. `meta.mat` maps these ids, which are not in alphabetical order, to
  synsets.
* Kaggle's `LOC_val_solution.csv`: a line is `ILSVRC2012_val_00048981,n03995372 85 1 499 272 …`: the
  name of the image without its suffix, then one or more pairs of synset and box; all boxes of an
  image have the same synset.
* Places365: a line of `places365_val.txt` is `Places365_val_00000001.jpg 165`, image and number; a
  line of `categories_places365.txt` is `/f/florist_shop/indoor 147`, class and number. Classes are
  matched by name, so lists with more than the 365 categories can be read too.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.class_folders import is_filler
from clinit.extract.dataset.known import Dataset, Layout
from clinit.extract.dataset.tree import LEFT, FolderContents, Tree, file_warnings
from clinit.files.text import is_text, lines_of
from clinit.words import counted, printable


class DoesNotFitError(Exception):
    """The files on disk have another layout; the message names the missing file or folder."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The images of a split as a layout read them, in no particular order."""

    table: pl.DataFrame
    """Columns path, label (int64) and size_bytes; for images in containers, also the other columns
    of `manifest.CONTAINED_SCHEMA` except class_name."""
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()


Reader = Callable[[], Listing]
"""Lists the images of a found layout. Finding a layout is cheap; the reader visits every image."""


@dataclass(frozen=True, slots=True)
class Found:
    """A data set under a root, before its images are listed."""

    description: Dataset
    readers: Mapping[str, tuple[str, Reader]]
    """Split -> name of its layout, and its reader; splits that do not exist are left out."""
    missing: Callable[[str], ManifestError]
    """Returns the error for a split that does not exist."""


Labels = Iterator[tuple[str, int]]
"""Pairs of the name that a list gives an image, and the image's label."""


@dataclass(frozen=True, slots=True)
class Search:
    """A layout of a split to look for under a root."""

    tree: Tree
    dataset: Dataset
    layout: Layout
    split: str

    def folder(self, fits: Callable[[str], bool], otherwise: str) -> tuple[str, tuple[str, ...]]:
        """Return the first existing folder that `fits` accepts, and warnings about other folders.

        Raises:
            DoesNotFitError: If no folder exists, or none fits (`otherwise` is then the reason).
        """
        candidates = self.layout.folders.get(self.split, ())
        existing = [folder for folder in candidates if self.tree.has_folder(folder)]
        if not existing:
            raise DoesNotFitError(f"no folder {' or '.join(candidates) or self.split}")
        fitting = [folder for folder in existing if fits(folder)]
        if not fitting:
            raise DoesNotFitError(f"{' and '.join(existing)} {otherwise}")
        first, *more = fitting
        return first, tuple(f"{folder} was left out: {first} comes first" for folder in more)

    def list_file(self, name: str) -> Path:
        """Return the path of a list.

        Raises:
            DoesNotFitError: If no folder of `Dataset.look_in` contains it.
        """
        places = self.dataset.look_in
        path = next(filter(None, (self.tree.file(f"{folder}/{name}") for folder in places)), None)
        if path is None:
            raise DoesNotFitError(f"no {name} in {', '.join(places)}")
        return path


def find_class_folders(folders_of: Callable[[str], Sequence[str]], search: Search) -> Reader:
    """Find class folders; `folders_of` lists the possible folders of a class, nested with `/`."""
    tree, dataset = search.tree, search.dataset
    labels = {f: label for label, name in enumerate(dataset.classes) for f in folders_of(name)}
    first_parts = {name.partition("/")[0] for name in labels}
    folder, warnings = search.folder(
        lambda folder: not first_parts.isdisjoint(tree.folders(folder)),
        f"with no class folder of {dataset.title}",
    )

    def read() -> Listing:
        matched, passed, unknown = _match(tree, folder, labels)
        places = [f"{folder}/{name}".removeprefix("./") for name in matched]
        found = tree.images_of_all(places)
        between = [tree.images(each, deep=False) for each in passed]
        counts = [len(images.paths) for images in found]
        label = np.repeat(np.array([labels[name] for name in matched], dtype=np.int64), counts)
        loose = [path for images in between for path in (*images.paths, *images.others)]
        deeper = [
            path
            for place, images in zip(places, found, strict=True)
            for path in images.paths
            if not all(map(is_filler, path.removeprefix(f"{place}/").split("/")[:-1]))
        ]
        return Listing(
            _image_table(found).with_columns(pl.Series("label", label)),
            (
                *warnings,
                *counted(unknown, f"folders left out, no class of {dataset.title}"),
                *counted(loose, "files left out, outside of any class folder"),
                *counted(deeper, "images in folders inside a class folder, which count as its own"),
                *file_warnings(found),
            ),
            counted([path for each in (*found, *between) for path in each.left], LEFT),
        )

    return read


def _match(
    tree: Tree, folder: str, names: Mapping[str, int]
) -> tuple[list[str], list[str], list[str]]:
    on_the_way = {name[:i] for name in names for i, sign in enumerate(name) if sign == "/"}
    matched: list[str] = []
    passed: list[str] = []
    unknown: list[str] = []
    ahead = [""]
    while ahead:
        inside = ahead.pop()
        here = f"{folder}/{inside}".rstrip("/")
        passed.append(here)
        for name in tree.folders(here):
            relative = f"{inside}/{name}".lstrip("/")
            if relative in names:
                matched.append(relative)
            elif relative in on_the_way:
                ahead.append(relative)
            else:
                unknown.append(f"{here}/{name}".removeprefix("./"))
    return matched, passed, unknown


def find_listed(
    key: pl.Expr, read_labels: Callable[[tuple[str, ...], Sequence[Path]], Labels], search: Search
) -> Reader:
    """Find the folder with all images of a split, and the lists of its layout.

    Args:
        key: The part of `path` that the lists use as the name of an image.
        read_labels: Returns the label of each image, from the class names and the lists.
        search: The layout. Messages about a wrong label name its last list.
    """
    tree = search.tree
    folder, warnings = search.folder(tree.has_image, "with no image directly inside")
    lists = [search.list_file(name) for name in search.layout.lists]

    def read() -> Listing:
        pairs, source = list(read_labels(search.dataset.classes, lists)), lists[-1]
        lines = pl.DataFrame(pairs, schema={"key": pl.String, "label": pl.Int64}, orient="row")
        twice = lines.filter(pl.col("key").is_duplicated())
        if len(twice):
            raise _damaged(source, f"names {twice['key'][0]} twice")
        images = tree.images(folder, deep=False)
        table = _image_table([images]).with_columns(key=key).join(lines, on="key", how="left")
        without_line = table.filter(pl.col("label").is_null())["path"].to_list()
        without_file = lines.join(table, on="key", how="anti")["key"].to_list()
        return Listing(
            table.drop_nulls("label").drop("key"),
            (
                *warnings,
                *counted(without_line, f"images left out, without a line in {source.name}"),
                *counted(without_file, f"lines of {source.name} without an image"),
                *counted(images.folders, "folders left out, among the images"),
                *file_warnings([images]),
            ),
            counted(images.left, LEFT),
        )

    return read


def _image_table(found: Sequence[FolderContents]) -> pl.DataFrame:
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


FILE_NAME = pl.col("path").str.extract(r"([^/]+)$")
STEM = pl.col("path").str.extract(r"([^/]+)\.[^./]*$")
NUMBER = pl.col("path").str.extract(r"_0*(\d+)\.[^./]*$")
"""Names that lists use for an image: file name, file name without suffix, or number."""


def devkit_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> Labels:
    """Yield number and label of each image in the list of ImageNet's development kit."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    meta, truth = lists
    label_of = {name: label for label, name in enumerate(classes)}
    wrong = (OSError, ValueError, TypeError, KeyError, IndexError, NotImplementedError)
    try:
        synsets = np.atleast_1d(loadmat(meta, squeeze_me=True)["synsets"])
        ids = [int(number) for number in synsets["ILSVRC2012_ID"]]
        names = [str(name).strip() for name in synsets["WNID"]]
    except (MatReadError, *wrong) as error:
        raise _damaged(meta, f"is not the development kit's table of synsets: {error}") from error
    # Inner nodes of the hierarchy have an id but no label.
    labels = {f"{i}": label_of[n] for i, n in zip(ids, names, strict=True) if n in label_of}
    for number, line in enumerate(_lines(truth), start=1):
        if line not in labels:
            raise _damaged(truth, f"has {line!r} in line {number}, which is not an id of meta.mat")
        yield f"{number}", labels[line]


def kaggle_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> Labels:
    """Yield name without suffix, and label, of each image in Kaggle's list."""
    (source,) = lists
    label_of = {name: label for label, name in enumerate(classes)}
    table = csv.DictReader(_lines(source))
    if not {"ImageId", "PredictionString"} <= set(table.fieldnames or ()):
        raise _damaged(source, "is not a table with the columns ImageId and PredictionString")
    for line in table:
        image, told = line["ImageId"], line["PredictionString"] or ""
        synset = told.strip().partition(" ")[0]
        if synset not in label_of:
            raise _damaged(
                source, f"gives {image} the class {synset!r}, which ImageNet-1K does not have"
            )
        yield image, label_of[synset]


def places_labels(classes: tuple[str, ...], lists: Sequence[Path]) -> Labels:
    """Yield file name and label of each validation image of Places365."""
    categories, source = lists
    # "/f/florist_shop/indoor" -> "florist_shop/indoor"
    names = {number: name.lstrip("/").partition("/")[2] for name, number in _pairs(categories)}
    label_of = {name: label for label, name in enumerate(classes)}
    for image, number in _pairs(source):
        name = names.get(number, "")
        if name not in label_of:
            raise _damaged(
                source,
                f"gives {image} the number {number}, which is not the number of one of the"
                f" {len(label_of)} classes in {categories.name}",
            )
        yield image, label_of[name]


def _pairs(path: Path) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(_lines(path), start=1):
        name, _, label = line.rpartition(" ")
        if not (name and label.isdecimal()):
            raise _damaged(path, f"has {line!r} in line {number}, expected a name and a number")
        yield name.strip(), int(label)


def _lines(path: Path) -> list[str]:
    try:
        return lines_of(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, f"cannot be read: {error}") from error


def _damaged(path: Path, problem: str) -> ManifestError:
    return ManifestError(
        f"{printable(path)} {problem}",
        remedy="Download this file again from the publisher of the data set.",
    )
