"""What is known of a data set before its folder is seen: classes, counts, layouts.

The known ones are described by one TOML file each in `clinit.data_manifests`; `folder` is
whatever class folders are found on the disk, `webdataset` whatever tar shards, `huggingface`
whatever Parquet files: they describe themselves.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from clinit.errors import ManifestError
from clinit.words import did_you_mean


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns; None where the file is to say them."""

    image: str | None = None
    label: str | None = None


AS_TOLD = Columns()
"""All as the file says."""


MAX_PIXELS = 100_000_000
"""Most pixels of one image. Pillow warns from 89 million on; 100 million are 300 MB in RGB."""
FOLDER = "folder"
"""The data set without a description: any tree of class folders."""
WEBDATASET = "webdataset"
"""Tar shards, described by their members."""
HUGGINGFACE = "huggingface"
"""Parquet files, described by their metadata."""
SPLITS = ("train", "val")
"""Splits of a cache; on val results are reported."""
TEST = "test"
"""What may be read as val in place of the validation images."""
_OTHERS = (
    f"Any tree of train/<class>/ and val/<class>/ can be read as `{FOLDER}`, tar shards as"
    f" `{WEBDATASET}`, Parquet files as `{HUGGINGFACE}`."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way in which a data set lies on the disk."""

    kind: str
    """Name of its reader in `clinit.extract.layouts`."""
    folders: dict[str, tuple[str, ...]]
    """Split -> folders under the root that may hold its images; the first that exists counts."""
    lists: tuple[str, ...] = ()
    """Names of the files that say which image has which label."""
    columns: Columns = AS_TOLD
    """Columns of Parquet files, as far as the user names them."""


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
    """Split -> number of images; a split whose number nobody fixed is absent."""
    total: int | None = None
    """Number of images of all splits, where only that is known."""
    look_in: tuple[str, ...] = (".",)
    """Folders under the root that may hold the lists."""
    homepage: str = ""
    licence: str = ""


def known_datasets() -> tuple[str, ...]:
    """Return the names of the described data sets, sorted."""
    files = resources.files("clinit.data_manifests").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def check_known(name: str, *, described: bool = False) -> None:
    """Check that a data set is known by name, or describes itself.

    Args:
        name: The name.
        described: Whether it must have a description here.

    Raises:
        ManifestError: If it is not.
    """
    known, themselves = known_datasets(), (FOLDER, WEBDATASET, HUGGINGFACE)
    if name in known or (name in themselves and not described):
        return
    raise ManifestError(
        f"no data set called {name!r}; known are {', '.join(known)} and {', '.join(themselves)}",
        remedy=" ".join(filter(None, (did_you_mean(name, (*known, *themselves)), _OTHERS))),
    )


def read_dataset(name: str) -> Dataset:
    """Read the description of a known data set.

    Raises:
        ManifestError: If there is no description of that name.
    """
    check_known(name, described=True)
    file = resources.files("clinit.data_manifests") / f"{name}.toml"
    return parse_dataset(name, file.read_text(encoding="utf-8"))


def parse_dataset(name: str, text: str) -> Dataset:
    """Return the data set that a TOML text describes."""
    content = tomllib.loads(text)
    images = content["images"]
    return Dataset(
        name=name,
        title=content["title"],
        classes=tuple(content["classes"]),
        layouts=tuple(map(_layout, content["layouts"])),
        images={split: images[split] for split in SPLITS if split in images},
        total=images.get("total"),
        look_in=tuple(content.get("look_in", ["."])),
        homepage=content["homepage"],
        licence=" ".join(content["licence"].split()),
    )


def _layout(content: dict[str, Any]) -> Layout:
    return Layout(
        kind=content["kind"],
        folders={split: tuple(content[split]) for split in SPLITS if split in content},
        lists=tuple(content.get("lists", ())),
    )
