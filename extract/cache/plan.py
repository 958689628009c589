"""The plan of an extraction: which rows go to which shard, and the fingerprint; folders of a cache.

The plan is written before the first shard and never changes. A later run of the same command reads
the plan, compares it with its own and computes the missing shards. A batch never contains rows of
two shards, so a shard has the same bits whenever it is computed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from clinit.errors import CacheError, ClinitError
from clinit.extract.cache.fingerprint import VIEW_NUMBER, Fingerprint, mismatches
from clinit.extract.dataset.known import SPLITS
from clinit.files.documents import DocumentKind, content_sha256
from clinit.files.paths import exists, is_file
from clinit.words import closest, contrast

PLAN_FILE, SUMMARY_FILE = "plan.json", "cache.json"
_Number = Annotated[int, Meta(ge=1, le=2**40)]
WRITE_AGAIN = (
    "Run the command that wrote this cache again (`clinit extract` or `clinit cache import`): it"
    " writes damaged parts anew and keeps the rest."
)


def damaged(what: str) -> CacheError:
    """Return the error for a damaged part of a cache, which can be written again."""
    return CacheError(what, remedy=WRITE_AGAIN)


_DOCUMENT = DocumentKind(
    title="the plan of a feature cache",
    format="clinit-cache/2",
    older=("clinit-cache/1",),
    error=CacheError,
    remedy="Move the folder away and run the `clinit extract` command of this cache again.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The content of one split of a cache, fixed before the first image is read."""

    dataset: str
    split: Annotated[str, Meta(pattern=f"^({'|'.join(SPLITS)})$")]
    num_rows: _Number
    dim: _Number
    dtype: Annotated[str, Meta(pattern="^float(16|32)$")]
    """float16 or float32, as features are stored. A shard may be float32 despite float16, see
    `cache.shard.assemble`."""
    shard_rows: _Number
    batch_size: _Number
    fingerprint: Fingerprint
    shape: tuple[int, ...] = ()
    """Shape of a row with more than one axis, else empty; `dim` is the product."""
    device: str = ""
    """`cpu` or `cuda`. All rows of a split are computed on one kind, because last bits differ."""
    compiled: bool = False
    """Whether the network is compiled, which also changes the last bits."""

    def __post_init__(self) -> None:
        if self.shape and (min(self.shape) < 1 or math.prod(self.shape) != self.dim):
            raise ValueError(f"a row of shape {self.shape} does not contain {self.dim} numbers")

    @property
    def title(self) -> str:
        """Name of the split; if it is a view, followed by the number of the view."""
        view = self.fingerprint.view
        return self.split if view is None else f"{self.split}, view {view}"

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return -(-self.num_rows // self.shard_rows)

    def rows(self, shard: int) -> range:
        """Return the rows of a shard."""
        start = shard * self.shard_rows
        return range(start, min(start + self.shard_rows, self.num_rows))

    @property
    def identifier(self) -> str:
        """SHA-256 of the plan, stored in every shard."""
        content = self.content()
        for name in ("shape", "compiled"):  # earlier versions lack them: keep their identifiers
            if not content[name]:
                del content[name]
        return content_sha256(content)

    def content(self) -> dict[str, Any]:
        """Return the content of `plan.json`."""
        return {**asdict(self), "fingerprint": dict(self.fingerprint.fields)}

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Read the plan of a split.

        Raises:
            CacheError: If `folder` contains no plan, or its plan cannot be read.
        """
        path = folder / PLAN_FILE
        if not exists(path) and not exists(folder / SUMMARY_FILE):
            raise CacheError(
                f"no feature cache at {folder}", remedy="Write one with `clinit extract`."
            )
        return _DOCUMENT.read(
            path, cls, lambda found: found | {"fingerprint": {"fields": found.get("fingerprint")}}
        )

    def settle(self, folder: Path) -> None:
        """Write the plan into `folder`, or check that the existing plan is the same.

        Raises:
            CacheError: If the plans differ; the message names the first differing field.
        """
        path = folder / PLAN_FILE
        if not exists(path):
            _DOCUMENT.write(path, self.content())
            return
        stored, wanted = self.read(folder), self.content()
        differing = {d.name: d.told for d in stored.fingerprint.differences(self.fingerprint)}
        differing |= {
            name: contrast(str(value), str(wanted[name]))
            for name, value in stored.content().items()
            if name != "fingerprint" and value != wanted[name]
        }
        others = [name for name in differing if name not in ("manifest", "features", "num_rows")]
        if others:
            found, here = differing[name := others[0]]
            raise CacheError(
                f"{folder} was begun with {name} = {found}, but this command has {name} = {here}",
                remedy=_BEGUN_WITH,
            )
        if differing:
            raise CacheError(
                f"{folder} was begun with other images, features or classes",
                remedy="Give another folder with `--out`, or restore the files it was begun with.",
            )


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number` of `count`, counted from 1: shards `number - 1`, `number - 1 + count`, ….

    The shards of the parts are interleaved, so that all parts end at about the same time.
    """

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ValueError(f"part must be in 1/{self.count} … {self.count}/{self.count}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Part:
        """Return the part for the text `i/n` of the option `--part`.

        Raises:
            ClinitError: If the text is not such a part.
        """
        with suppress(ValueError):
            number, count = map(int, text.split("/"))
            return cls(number, count)
        raise ClinitError(
            f"--part is {text!r}, expected i/n with i from 1 to n",
            remedy="Give --part 1/4 to --part 4/4 to four processes; in a Slurm array,"
            " --part $((SLURM_ARRAY_TASK_ID + 1))/$SLURM_ARRAY_TASK_COUNT.",
        )

    @property
    def name(self) -> str:
        """Name of the lock file."""
        return f"part-{self.number}-of-{self.count}"

    def shards(self, num_shards: int) -> range:
        """Return the shards of this part."""
        return range(self.number - 1, num_shards, self.count)


WHOLE = Part()
"""The only part of an undivided extraction."""


def shard_name(shard: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{shard:05d}.h5"


_BEGUN_WITH = "Give the options it was begun with, or another folder with `--out`."
VIEWS_FOLDER = "views"
"""Folder next to the splits; view k of the training images is the split folder `views/<k>`."""


def check_backbone(folders: Iterable[Path], fingerprint: Fingerprint, width: int) -> None:
    """Check that existing splits are of one backbone, as all splits of a cache must be.

    Args:
        folders: The splits, existing or not.
        fingerprint: Fingerprint of the features that are to join them.
        width: Width of these features.

    Raises:
        CacheError: If a split has features of another backbone.
    """
    for folder in folders:
        if is_file(folder / PLAN_FILE):
            there = Plan.read(folder)
            for each in mismatches(there.fingerprint, fingerprint, (there.dim, width)):
                one, other = each.told
                raise CacheError(
                    f"{folder} contains features with {each.name} = {one}, but this command has"
                    f" {each.name} = {other}",
                    remedy=_BEGUN_WITH,
                )


def split_names(path: Path) -> list[str]:
    """Return the names of the splits in a cache, complete or not.

    Raises:
        CacheError: If `path` is not a cache.
    """
    if found := _splits_in(path):
        return found
    hint = (
        "Write one with `clinit extract --out`, or import features with `clinit cache import FILE"
        " --backbone NAME --out CACHE`."
    )
    if is_file(path / PLAN_FILE):
        parent = path.parents[1] if path.parent.name == VIEWS_FOLDER else path.parent
        hint = f"Give its parent folder, {parent}."
    elif not exists(path) and (
        near := closest(path.name, [each.name for each in caches_in(path.parent)])
    ):
        hint = f"Did you mean {path.with_name(near)}?"
    raise CacheError(f"no feature cache at {path}", remedy=hint)


_MARKS = (PLAN_FILE, SUMMARY_FILE)


def _splits_in(path: Path) -> list[str]:
    return [name for name in SPLITS if any(is_file(path / name / mark) for mark in _MARKS)]


def caches_in(path: Path) -> list[Path]:
    """Return the cache that `path` is or is a split of, else the caches directly inside `path`."""
    for each in (path, path.parent):
        if _splits_in(each) and (each == path or path.name in SPLITS):
            return [each]
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if _splits_in(Path(entry.path)))
    except OSError:
        return []


def views_in(cache: Path) -> list[Path]:
    """Return the folders of a cache's views, complete or not, in order."""
    marked = {path.parent for mark in _MARKS for path in (cache / VIEWS_FOLDER).glob(f"*/{mark}")}
    found = (folder for folder in marked if VIEW_NUMBER.fullmatch(folder.name))
    return sorted(found, key=lambda folder: int(folder.name))
