"""Descriptions of known data sets: classes, numbers of images, layouts of folders.

Each known data set has a TOML file in `clinit.data_manifests`. The data sets `folder` (any class
folders), `webdataset` (any tar shards) and `huggingface` (any Parquet files) have none; `scan`
describes them from their content.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from importlib import resources

import msgspec

from clinit.errors import ManifestError
from clinit.words import did_you_mean


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Names of columns of a Parquet file; None means that clinit finds the column."""

    image: str | None = None
    label: str | None = None


AS_TOLD = ColumnNames()


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
    warnings: tuple[str, ...] = ()
    """Warnings about the arrangement of the files on disk."""
    notes: tuple[str, ...] = ()
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
    return msgspec.convert({"name": name, **tomllib.loads(file.read_text("utf-8"))}, Dataset)
