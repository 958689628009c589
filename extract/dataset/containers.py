"""Data sets in *containers*, files with many images: tar shards (WebDataset) or Parquet files.

Images are read in place: a manifest contains the container of each row, and the position in it. A
word in the path names the split, as in the Hugging Face library (WebDataset has no rule): first in
the file name (`train-00000-of-00012.parquet`, `imagenet1k-train-0001.tar`), then in the nearest
folder with such a word (`train/00000.tar`, `data/validation/0.parquet`). The same words
(`class_folders.part_of`) mark folders of class folders as splits.

Class names are taken from the first existing of these sources:

* a file `classnames.txt`, `class_names.txt` or `classes.txt`, one class name per line, in label
  order;
* the metadata of Parquet files that the library `datasets` wrote;
* the labels.

The file may be in the root or, in a download of the Hugging Face Hub (`datasets--OWNER--NAME`), in
the only revision, `snapshots/REVISION/`, whose files are links to `blobs/`.

Source: "Understand caching", the documentation of the library huggingface_hub.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.class_folders import PARTS_OF, part_of
from clinit.extract.dataset.known import HUGGINGFACE, WEBDATASET, ColumnNames, Dataset
from clinit.extract.dataset.layouts import Found, Listing
from clinit.extract.dataset.manifest import LABEL_SCHEMA, LEAVES_ROOT, Contents
from clinit.extract.dataset.names import read_class_names
from clinit.extract.dataset.parquet import index_parquet
from clinit.extract.dataset.tar import CAPTIONS, index_tar
from clinit.extract.dataset.tree import Tree
from clinit.files.text import MAX_NAME
from clinit.words import contrast, counted, examples, printable

_SUFFIX = {WEBDATASET: ".tar", HUGGINGFACE: ".parquet"}
_NAME_FILES = ("classnames.txt", "class_names.txt", "classes.txt")


def find_containers(
    kind: str,
    tree: Tree,
    columns: ColumnNames,
    split: str,
    missing: Callable[[Dataset, str], ManifestError],
) -> Found:
    """Index the containers under a root.

    The classes are taken from all splits, so that a label means the same in all. `columns` is used
    for Parquet files only.

    Raises:
        ManifestError: If a file is compressed or damaged, labels contradict each other, clinit
            cannot find the columns of images and labels, or a download contains several revisions,
            so that images occur twice.
        CacheError: If the file of class names cannot be read.
    """
    snapshot = _snapshot(tree)
    is_tar = kind == WEBDATASET
    index = index_tar if is_tar else partial(index_parquet, columns=columns)
    title = "these shards" if is_tar else "these Parquet files"
    files = tree.images(".", deep=True).others
    splits = split_files((p for p in files if p.lower().endswith(_SUFFIX[kind])), split)
    contents = {path: index(tree.root / path) for paths, _ in splits.values() for path in paths}
    folders = ("", f"{snapshot}/") if snapshot else ("",)
    beside = (tree.file(folder + name) for name in _NAME_FILES for folder in folders)
    if path := next(filter(None, beside), None):
        classes = read_class_names(path)
    else:
        classes = _classes(tree, list(contents.values()), title)
    description = Dataset(name=kind, title=title, classes=classes, layouts=())
    readers = {
        split: (kind, partial(_listing, tree, files, contents, classes))
        for split, files in splits.items()
    }
    return Found(description, readers, partial(missing, description))


def _classes(tree: Tree, found: list[Contents], title: str) -> tuple[str, ...]:
    told = {each.class_names for each in found if each.class_names is not None}
    if len(told) > 1:
        raise ManifestError(
            f"the files in {printable(tree.root)} name different classes",
            remedy="Give with `--root` a folder of only one configuration of a data set.",
        )
    if told:
        return checked_names(told.pop(), title)
    return classes_of(pl.concat([each.table for each in found]), title) if found else ()


def _listing(
    tree: Tree, files: SplitFiles, contents: Mapping[str, Contents], classes: tuple[str, ...]
) -> Listing:
    """Return the images with a label, and warnings about images that are left out."""
    tables, left_out, (paths, left_files) = list[pl.DataFrame](), {CAPTIONS: list[str]()}, files
    for path in paths:
        found = contents[path]
        table = found.table.select(
            path=pl.lit(f"{path}/") + pl.col("member"),
            label=labels_of(found.table, classes, path),
            size_bytes="size_bytes",
            container=pl.lit(path),
            column=pl.lit(found.column),
            position="position",
            container_bytes=pl.lit(tree.facts(path).st_size, dtype=pl.Int64),
        )
        tables.append(table)
        for why, names in found.left_out.items():
            left_out.setdefault(why, []).extend(f"{path}/{name}".rstrip("/") for name in names)
    table = pl.concat(tables)
    leaving = table.filter(LEAVES_ROOT)
    if len(leaving):
        raise ManifestError(
            f"the name of the image {leaving['path'][0]!r} leads out of its container",
            remedy="Pack the file again with names without `..`.",
        )
    unlabelled = table.filter(pl.col("label").is_null())["path"].to_list()
    left_out["images left out, without a label"] = unlabelled
    alone = table.filter(pl.col("label").is_unique() & pl.col("path").is_in(left_out[CAPTIONS]))
    left_out[CAPTIONS] = alone["path"].to_list() if 2 * len(alone) > len(table) >= 10 else []
    warnings = (warning for why, names in left_out.items() for warning in counted(names, why))
    return Listing(table.drop_nulls("label"), (*left_files, *warnings))


def _snapshot(tree: Tree) -> str | None:
    """Return the folder of the only revision in a download of the Hub; None for other folders.

    Raises:
        ManifestError: If the download contains several revisions.
    """
    if not (tree.has_folder("blobs") and tree.has_folder("snapshots")):
        return None
    revisions = tree.folders("snapshots")
    if len(revisions) > 1:
        raise ManifestError(
            f"{printable(tree.root)} contains {len(revisions):,} revisions of a data set"
            f" ({examples(list(map(printable, revisions)))}), so each image would occur several"
            " times",
            remedy="Remove all revisions but one (`hf cache rm REVISION`), or load a revision into"
            " a new folder (`hf download --repo-type dataset OWNER/NAME --revision REVISION"
            " --local-dir FOLDER`).",
        )
    return f"snapshots/{revisions[0]}" if revisions else None


SplitFiles = tuple[tuple[str, ...], tuple[str, ...]]
"""The paths of the containers of a split, sorted; and warnings about files that are left out."""


def split_files(paths: Iterable[str], split: str = "val") -> dict[str, SplitFiles]:
    """Sort containers into the splits train and val; omit splits without containers.

    If no path names a split, all files are training files.

    Args:
        paths: Paths relative to the root, with `/` between folders.
        split: The split to read: train, val, or test, which takes the place of val.
    """
    parts = {path: _part(path) for path in sorted(paths)}
    if not any(parts.values()):
        return {"train": (tuple(parts), ())} if parts else {}
    of = "was left out: no part of its path names a split"
    nameless = [f"{path} {of}" for path, part in parts.items() if not part]
    found: dict[str, SplitFiles] = {}
    for each in ("train", "test" if split == "test" else "val"):
        if present := [part for part in PARTS_OF[each] if part in parts.values()]:
            first, *more = present
            left = [f"the files of {part} were left out: {first} comes first" for part in more]
            own = tuple(path for path, part in parts.items() if part == first)
            found[each] = own, (*left, *nameless)
    return found


def _part(path: str) -> str:
    """Return train, validation or test; an empty text if the path contains none of the words."""
    *folders, name = path.split("/")
    for text in (name.rpartition(".")[0], *reversed(folders)):
        if found := next(filter(None, map(part_of, re.split(r"[^A-Za-z]+", text))), ""):
            return found
    return ""


MAX_CLASSES = 1_000_000
"""Larger labels are refused, because they are probably other numbers, such as of images."""


def classes_of(told: pl.DataFrame, where: str) -> tuple[str, ...]:
    """Return the class names in the labels of images, in label order.

    A number without a name is its own name. Names without numbers are sorted.

    Args:
        told: Labels of all splits, with the columns of `LABEL_SCHEMA`.
        where: Name of the files, for messages.

    Raises:
        ManifestError: If only some labels are numbers, or a number has two names.
    """
    told = told.select(LABEL_SCHEMA.names()).unique().filter(~_UNLABELLED)
    numbered = told.filter(pl.col("index").is_not_null())
    if numbered.is_empty():
        return checked_names(tuple(told["name"].sort().to_list()), where)
    if len(numbered) < len(told):
        name = told.filter(pl.col("index").is_null())["name"].sort()[0]
        raise ManifestError(
            f"some labels of {where} are numbers and some are names ({name!r}), so the numbers of"
            " these names are unknown",
            remedy="Write the class names, one per line in label order, into classnames.txt in the"
            " root, then run the same command again.",
        )
    last = _checked_largest(numbered, where, MAX_CLASSES)
    names = dict[int, str]()
    for index, name in numbered.drop_nulls().sort("index", "name").iter_rows():
        if names.setdefault(index, name) != name:
            one, other = contrast(names[index], name)
            raise ManifestError(
                f"label {index:,} of {where} has two names, {one} and {other}",
                remedy="Correct the labels, or name the classes in classnames.txt in the root.",
            )
    return checked_names(tuple(names.get(index, str(index)) for index in range(last + 1)), where)


def checked_names(names: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Check class names that labels or descriptions contain; return them.

    Raises:
        ManifestError: If a name occurs twice, is empty or too long.
    """
    wrong = [name for name in names if not 1 <= len(name) <= MAX_NAME]
    if wrong:
        raise ManifestError(
            f"{where} have a class name of {len(wrong[0]):,} characters, expected 1 to"
            f" {MAX_NAME:,}",
            remedy="Check that the labels are classes and not descriptions of images.",
        )
    if len(set(names)) < len(names):
        raise ManifestError(
            f"{where} have two classes named {Counter(names).most_common(1)[0][0]!r}",
            remedy="Name the classes, one per line in label order, in classnames.txt in the root.",
        )
    return names


def labels_of(told: pl.DataFrame, classes: Sequence[str], where: str) -> pl.Series:
    """Return the label (int64) of each image; null for an image without a label.

    Args:
        told: Labels with the columns of `LABEL_SCHEMA`.
        classes: All classes in label order.
        where: Name of the file, for messages.

    Raises:
        ManifestError: If no class has the number or the name of a label.
    """
    _checked_largest(told, where, len(classes))
    named = told["name"].replace_strict(
        list(classes), list(range(len(classes))), default=None, return_dtype=pl.Int64
    )
    others = told.filter(pl.col("index").is_null() & pl.col("name").is_not_null() & named.is_null())
    if len(others):
        name = others["name"][0][:MAX_NAME]
        raise ManifestError(
            f"{where} contains the label {name!r}, which is not among the {len(classes):,} classes",
            remedy="Correct the label or the list of class names, then run the same command again.",
        )
    return told.select(
        label=pl.when(_UNLABELLED).then(None).otherwise(pl.coalesce("index", named))
    )["label"]


_UNLABELLED = (pl.col("index").is_null() & pl.col("name").is_null()) | (
    pl.col("index") < 0
).fill_null(value=False)
"""Selects images without a label: neither number nor name, or a negative number."""


def _checked_largest(told: pl.DataFrame, where: str, num_classes: int) -> int:
    """Check and return the largest number of a class; -1 if there are no numbers."""
    largest = told.select(pl.col("index").max().fill_null(-1)).item()
    if largest >= num_classes:
        raise ManifestError(
            f"a label of {where} is {largest:,}, but labels must lie in [0, {num_classes:,})",
            remedy="Correct the labels or the list of class names; labels count from 0.",
        )
    return int(largest)
