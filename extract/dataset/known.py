"""Descriptions of known data sets: classes, numbers of images, layouts of folders.

Each known data set has a TOML file in `clinit.data_manifests`. The data sets `folder` (any class
folders), `webdataset` (any tar shards) and `huggingface` (any Parquet files) have none; `scan`
describes them from their content.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from clinit.errors import CacheError, ManifestError
from clinit.files.text import TextFileError, lines_of, read_text
from clinit.words import did_you_mean


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns of a Parquet file; None means that clinit finds the column."""

    image: str | None = None
    label: str | None = None


AS_TOLD = Columns()


MAX_PIXELS = 100_000_000
"""Maximum number of pixels of an image. Pillow warns above 89 million; 100 million take 300 MB in
RGB."""
FOLDER = "folder"
"""Name for any tree of class folders."""
WEBDATASET = "webdataset"
"""Name for any tar shards."""
HUGGINGFACE = "huggingface"
"""Name for any Parquet files of images."""
SPLITS = ("train", "val")
"""Splits of a cache; results are measured on val."""
TEST = "test"
"""Test images, which can be read as the split val instead of the validation images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One arrangement of a data set on the disk."""

    kind: str
    """Key of the layout's reader in `clinit.extract.dataset.scan.LAYOUTS`."""
    folders: dict[str, tuple[str, ...]]
    """Split -> folders under the root that may contain its images; the first existing folder is
    read."""
    lists: tuple[str, ...] = ()
    """Names of the files that list the labels of the images."""
    columns: Columns = AS_TOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The description of a data set."""

    name: str
    title: str
    classes: tuple[str, ...]
    """Class names in label order."""
    layouts: tuple[Layout, ...]
    """Layouts in the order in which they are tried."""
    images: dict[str, int] = field(default_factory=dict)
    """Split -> published number of images, if any."""
    total: int | None = None
    """Number of images in all splits, if only this number is published."""
    look_in: tuple[str, ...] = (".",)
    """Folders under the root that may contain the lists."""
    homepage: str = ""
    licence: str = ""


def known_datasets() -> tuple[str, ...]:
    """Return the names of the described data sets, sorted."""
    files = resources.files("clinit.data_manifests").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def check_known(name: str, *, described: bool = False) -> None:
    """Check the name of a data set.

    Args:
        name: The name.
        described: Whether to refuse `folder`, `webdataset` and `huggingface`, which have no TOML
            file.

    Raises:
        ManifestError: If the name is unknown or refused.
    """
    known, themselves = known_datasets(), (FOLDER, WEBDATASET, HUGGINGFACE)
    if name in known or (name in themselves and not described):
        return
    others = (
        f"Any tree of train/<class>/ and val/<class>/ can be read as `{FOLDER}`, tar shards as"
        f" `{WEBDATASET}`, Parquet files as `{HUGGINGFACE}`."
    )
    raise ManifestError(
        f"no data set called {name!r}; known are {', '.join(known)} and {', '.join(themselves)}",
        remedy=f"{did_you_mean(name, (*known, *themselves))} {others}".strip(),
    )


def read_dataset(name: str) -> Dataset:
    """Read the description of a known data set.

    Raises:
        ManifestError: If there is no description of that name.
    """
    check_known(name, described=True)
    file = resources.files("clinit.data_manifests") / f"{name}.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    images = content["images"]
    layouts = (
        Layout(
            kind=each["kind"],
            folders={split: tuple(each[split]) for split in SPLITS if split in each},
            lists=tuple(each.get("lists", ())),
        )
        for each in content["layouts"]
    )
    return Dataset(
        name=name,
        title=content["title"],
        classes=tuple(content["classes"]),
        layouts=tuple(layouts),
        images={split: images[split] for split in SPLITS if split in images},
        total=images.get("total"),
        look_in=tuple(content.get("look_in", ["."])),
        homepage=content["homepage"],
        licence=" ".join(content["licence"].split()),
    )


MAX_NAME = 4096
"""Maximum number of characters of a class name."""


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read class names from UTF-8 text, one per line; skip empty lines.

    Raises:
        CacheError: If the file cannot be read as text, has no names, or repeats a name.
    """
    try:
        names = tuple(lines_of(read_text(path)))
        if not names:
            raise TextFileError("the file contains no name")
        if (longest := max(map(len, names))) > MAX_NAME:
            raise TextFileError(f"a name has {longest:,} characters, expected at most {MAX_NAME:,}")
        if len(set(names)) != len(names):
            raise TextFileError("a name occurs twice")
    except TextFileError as error:
        raise CacheError(
            f"cannot read the class names in {path}: {error}",
            remedy="Write one name per line, every name once.",
        ) from error
    return names


def is_text(name: str) -> bool:
    """Return whether a text can be encoded as UTF-8, which lone surrogates cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_IDENTIFIER = re.compile(r"n\d{8}")


@cache
def _info() -> Any:
    from timm.data import ImageNetInfo

    return ImageNetInfo()


def title(class_name: str) -> str:
    """Return the first synonym of an ImageNet synset; return other class names unchanged.

    Titles may repeat: two classes of ImageNet-1K are a `crane`.

    >>> title("n01440764"), title("campsite")
    ('tench', 'campsite')
    """
    return synonyms(class_name)[0]


def synonyms(class_name: str) -> list[str]:
    """Return all synonyms of an ImageNet synset; return other class names unchanged.

    >>> synonyms("n01440764")
    ['tench', 'Tinca tinca']
    """
    if not _IDENTIFIER.fullmatch(class_name):
        return [class_name]
    try:
        return str(_info().label_name_to_description(class_name)).split(", ")
    except KeyError:
        return [class_name]


def in_words(class_name: str) -> str:
    """Return an ImageNet synset with its title: `tench (n01440764)`; other names unchanged."""
    words = title(class_name)
    return class_name if words == class_name else f"{words} ({class_name})"
