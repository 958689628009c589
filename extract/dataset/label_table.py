"""Labels in a table: a column of paths, one of classes, perhaps one of splits and one of groups.

Many public data sets are one folder of images with such a table. A path may start at the root, may
be only the name of the file, or lack the suffix; the first form that finds an image is used.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from clinit.errors import ManifestError
from clinit.extract.dataset.class_folders import PARTS_OF, part_of
from clinit.extract.dataset.containers import checked_names
from clinit.extract.dataset.known import FOLDER, Dataset
from clinit.extract.dataset.layouts import Found, Listing, Reader
from clinit.extract.dataset.manifest import LEAVES_ROOT
from clinit.extract.dataset.names import CLASS_COLUMNS, alike, usual_columns
from clinit.extract.dataset.tree import IMAGE_SUFFIXES, LEFT, FolderContents, Tree, file_warnings
from clinit.files.arrays import read_table, reading
from clinit.files.paths import exists, instead_of, is_file
from clinit.words import contrast, counted, listed, printable

_USUAL = {
    "path": (
        *("path", "file_path", "image_path", "img_path", "file", "file_name", "image"),
        *("image_name", "img", "image_file", "image_id", "img_id", "id"),
    ),
    "class": CLASS_COLUMNS,
    "split": ("split", "set", "subset", "partition", "usage", "phase"),
    "group": (
        *("group", "group_id", "patient", "patient_id", "subject", "sequence", "video", "burst"),
    ),
}
"""Role of a column -> its usual names."""
_CHOICE = re.compile(r"(.+?):((?:(?:path|class|split|group)=[^,]*,?)+)", re.DOTALL)
_NAME, _SUFFIX = r"([^/]+)$", r"\.[^./]+$"
_HEADER = "Write a header above it, `path,class`, and separate the columns by commas."
_JOIN = "Join them to one, `split`, of train, val and test; or choose: `--labels FILE:split=NAME`."
_REMEDY = "Name the columns: `--labels FILE:path=COLUMN,class=COLUMN`; also split= and group=."


def read_labelled(tree: Tree, choice: str, split: str = "val") -> Found:
    """Find the images under a root that a table labels.

    Args:
        tree: The images.
        choice: Path of the table; with unusual names of columns, `FILE:path=NAME,class=NAME`.
        split: The split to read: train, val, or test, which takes the place of val.

    Raises:
        ManifestError: If the table cannot be read, lacks a column, names a path outside of the
            root, or gives an image two classes.
        StorageError: If the file cannot be read.
    """
    source, lines, columns = _read(choice, tree)
    images = tree.images(".", deep=True)
    images.others[:] = [each for each in images.others if not source.samefile(tree.root / each)]
    whole = lines.drop_nulls(["path", "class"])
    rows = lines.with_row_index().filter(pl.any_horizontal(pl.col("path", "class").is_null()))
    blank = [f"row {row + 1}" for row in rows["index"]]
    found, without_file = _matched(source, whole, images)
    without_line = set(images.paths).difference(found["file"])
    parts, how = _parts(source, found, columns)
    found = found.with_columns(part=parts)
    splits, unread = dict[str, pl.DataFrame](), {*parts.drop_nulls()}
    for each in ("train", "test" if split == "test" else "val"):
        if part := next((part for part in PARTS_OF[each] if part in unread), None):
            splits[each] = found.filter(pl.col("part") == part)
            unread.remove(part)
    every = {name for each in splits.values() for name in each["class"]}
    are_numbers = all(name.isdecimal() for name in every)
    classes = tuple(sorted(every, key=lambda name: (int(name) if are_numbers else 0, name)))
    label = pl.col("class").replace_strict([*classes], range(len(classes)), return_dtype=pl.Int64)
    told = ", ".join(f"{role} in {column}" for role, column in columns.items())
    warnings = (
        *counted(without_file, f"lines of {source.name} without an image"),
        *counted([*without_line], f"images left out, without a line in {source.name}"),
        *counted(blank, f"lines of {source.name} without a path or a class"),
        *counted(found.filter(parts.is_null())["file"].to_list(), "images without a split"),
        *(f"the images of {part} were left out" for part in sorted(unread)),
        *filter(None, [alike(classes)]),
    )

    def reader(table: pl.DataFrame) -> Reader:
        rows = table.select("size_bytes", "group", path="file", label=label)
        return lambda: Listing(rows, file_warnings([images]))

    def missing(split: str) -> ManifestError:
        return ManifestError(
            f"{choice} labels no {split} image in {printable(tree.root)} (splits with images:"
            f" {', '.join(splits) or 'none'})" + "".join(f"; {each}" for each in warnings),
            remedy="Check that the paths in the table start in this folder, and its splits.",
        )

    description = Dataset(
        name=FOLDER,
        title="this folder",
        classes=checked_names(classes, f"labels in {source}") if classes else (),
        layouts=(),
        warnings=warnings,
        notes=(f"{source.name}: {told}{how}", *counted(images.left, LEFT)),
    )
    readers = {each: ("label-table", reader(table)) for each, table in splits.items()}
    return Found(description, readers, missing)


def _read(choice: str, tree: Tree) -> tuple[Path, pl.DataFrame, dict[str, str]]:
    """Return the table's path, its columns by role as texts, and their names in the table."""
    chosen = None if is_file(Path(choice)) else _CHOICE.fullmatch(choice)
    source = Path(chosen[1] if chosen else choice)
    given = dict(each.split("=", 1) for each in chosen[2].strip(",").split(",")) if chosen else {}
    remedy = "Give a CSV, TSV or Parquet file with a header and UTF-8 text."
    if not exists(source):
        raise ManifestError(f"no table at {source}", remedy=instead_of(source, remedy, is_file))
    with reading(source, "a table of labels", ManifestError, remedy):
        table = read_table(source)
    names, columns = table.columns, dict[str, str]()
    for role, usual in _USUAL.items():
        free = [name for name in names if name not in (*columns.values(), *given.values())]
        column = given.get(role) or next((free[i] for i in usual_columns(free, usual)), None)
        if role in given and not given[role]:
            continue
        flags = [name for name in free if role == "split" and column is None and _flagged(name)]
        if len(flags) > 1:
            raise ManifestError(f"{source} has columns of splits, {listed(flags)}", remedy=_JOIN)
        column = next(iter(flags), column)
        if column in names:
            columns[role] = column
        elif role in ("path", "class") or column is not None:
            what = f"no column {column!r}" if column else f"no column that is known as the {role}"
            told, remedy = "its columns are", _REMEDY
            if any(suffix in name.lower() for name in names for suffix in IMAGE_SUFFIXES):
                told, remedy = "its first line looks like an image, not a header:", _HEADER
            raise ManifestError(f"{source} has {what}; {told} {', '.join(names)}", remedy=remedy)
    roots = "|".join(re.escape(f"{root}/") for root in {tree.root.absolute(), tree.real})
    texts = {
        role: pl.col(columns[role]).cast(pl.String).str.strip_chars().replace("", None)
        if role in columns
        else pl.lit(None, pl.String)
        for role in _USUAL
    }
    lines = table.select(**texts).with_columns(
        pl.col("path").str.replace_all(r"\\", "/").str.replace(rf"^({roots}|(\./)+)", "")
    )
    if len(leaving := lines.filter(LEAVES_ROOT)):
        raise ManifestError(
            f"{source} names {leaving['path'][0]}, which is outside of {tree.root}",
            remedy="Give the folder that contains all images, or paths that start there.",
        )
    return source, lines, columns


def _matched(
    source: Path, lines: pl.DataFrame, images: FolderContents
) -> tuple[pl.DataFrame, list[str]]:
    """Return the labelled images, and the paths of lines without an image."""
    files = pl.DataFrame({"file": images.paths, "size_bytes": images.sizes})
    files = files.cast({"file": pl.String, "size_bytes": pl.Int64})
    path, file = pl.col("path"), pl.col("file")
    forms = [
        (path, file),
        (path, file.str.replace(_SUFFIX, "")),
        (path.str.extract(_NAME), file.str.extract(_NAME)),
        (path.str.extract(_NAME), file.str.extract(_NAME).str.replace(_SUFFIX, "")),
    ]
    pairs = [(lines.with_columns(key=one), files.with_columns(key=two)) for one, two in forms]
    fits = (pair for pair in pairs if len(pair[0].join(pair[1], on="key", how="semi")))
    lines, files = next(fits, pairs[0])
    once = lines.unique(["key", "class"], keep="first", maintain_order=True)
    for twice, column, what in ((once, "class", "two classes"), (files, "file", "two images")):
        both = twice.join(lines, on="key", how="semi").filter(pl.col("key").is_duplicated())
        if len(both):
            key = both["key"][0]
            one, other = both.filter(pl.col("key") == key)[column].head(2)
            raise ManifestError(
                f"{source}: {key} has {what}, {' and '.join(contrast(one, other))}",
                remedy="Leave one line and one image of each name; clinit takes one class for each"
                " image.",
            )
    missing = lines.join(files, on="key", how="anti")["path"].to_list()
    return files.join(once, on="key", how="inner"), missing


def _flagged(column: str) -> str:
    """Return the part that a column of booleans means, such as `is_valid`; else an empty text."""
    return part_of(re.sub(r"(?i)^is", "", column))


def _parts(source: Path, found: pl.DataFrame, columns: dict[str, str]) -> tuple[pl.Series, str]:
    """Return the part (train, validation, test) of each image, and how the parts were found."""
    if "split" in columns:
        yes = _flagged(columns["split"])
        no = "validation" if yes == "train" else "train"
        flags = {"true": yes, "1": yes, "false": no, "0": no} if yes else {}
        texts = found["split"].drop_nulls().unique()
        words = {text: part_of(text) or flags.get(text.lower()) for text in texts}
        if wrong := [word for word, part in words.items() if part is None]:
            raise ManifestError(
                f"{source}: the split {wrong[0]!r} in {columns['split']} is none of"
                f" {listed((*PARTS_OF['train'], *PARTS_OF['val'], *flags), 'or')}",
                remedy="Correct it, or leave this column out: `--labels FILE:split=`.",
            )
        return found["split"].replace_strict(words, return_dtype=pl.String), ""
    of_folders = [next(filter(None, map(part_of, p.split("/")[:-1])), "") for p in found["file"]]
    how = ", split by the names of the folders" if any(of_folders) else ""
    return pl.Series([part or "train" for part in of_folders], dtype=pl.String), how
