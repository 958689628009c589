"""Check a whole cache: plan, summary, manifest and shards of every part, and the head.

A reader stops at the first thing that is wrong; here all of them are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clinit.errors import CacheError, ClinitError, HeadError
from clinit.extract.arrays.fitted_head import FIT_AGAIN, was_fitted
from clinit.extract.cache.folder import check_view, split_names, view_folders
from clinit.extract.cache.head import Head, read_head
from clinit.extract.cache.plan import WRITE_AGAIN, read_plan, shard_name
from clinit.extract.cache.read import (
    HEAD_FILE,
    CacheSplit,
    check_one_backbone,
    open_split,
    shard_problem,
    verify_shard,
)
from clinit.extract.cache.summary import read_summary
from clinit.words import number_of


def recorded_commands(path: Path, damaged: Iterable[Path | None]) -> list[str]:
    """Return the command lines that write damaged parts of a cache again, as it records them.

    Args:
        path: The cache.
        damaged: Folders of the damaged parts. If one is None (the head belongs to all parts) or
            has lost its own record, the commands of all parts are returned.
    """
    found: dict[Path, str | None] = {}
    for folder in (*(path / name for name in split_names(path)), *view_folders(path)):
        with suppress(ClinitError):
            found[folder] = read_summary(folder, read_plan(folder)).run.command
    own = {found.get(folder) if folder is not None else None for folder in damaged}
    commands = found.values() if None in own else own
    return sorted({command for command in commands if command is not None})


@dataclass(frozen=True, slots=True)
class Checked:
    """A part of a cache that has been read."""

    told: str
    """What has been read; empty where it is nothing by itself."""
    problems: tuple[ClinitError, ...]
    folder: Path | None = None
    """Folder of the split or view; None for what concerns several parts."""


def verify(
    path: Path, *, on_shard: Callable[[str, int, int], None] = lambda title, done, total: None
) -> Iterator[Checked]:
    """Compare all of a cache with its digests, byte by byte; yield one part after the other.

    Args:
        path: The cache.
        on_shard: Called after each shard with its part, how many are done, and their number.

    Raises:
        CacheError: If there is no cache.
    """
    titles = {path / name: name for name in split_names(path)}
    titles |= {folder: f"train, view {folder.name}" for folder in view_folders(path)}
    opened: dict[Path, CacheSplit] = {}
    for folder, title in titles.items():
        try:
            opened[folder] = open_split(folder)
        except ClinitError as error:
            yield Checked(f"{title}: not read", (error,), folder)
        else:
            yield _check_part(opened[folder], title, on_shard)
    yield from _check_together(path, opened)


def _check_part(
    split: CacheSplit, title: str, on_shard: Callable[[str, int, int], None]
) -> Checked:
    """Check the manifest of a split or a view, and its shards."""
    problems: list[ClinitError] = []
    manifest_error = _error_of(partial(_check_manifest, split))
    if manifest_error is not None:
        problems.append(manifest_error)
    shards = split.plan.num_shards
    for shard in range(shards):
        error = _error_of(partial(_check_shard, split, shard, alone=manifest_error is not None))
        if error is not None:
            problems.append(error)
        on_shard(title, shard + 1, shards)
    return Checked(
        f"{title}: {number_of(shards, 'shard')}, {number_of(split.num_rows, 'row')} read",
        tuple(problems),
        split.path,
    )


def _check_manifest(split: CacheSplit) -> None:
    paths = split.manifest.table["path"]
    for entry in split.summary.invalid:
        if paths[entry.row] != entry.path:
            raise CacheError(
                f"{split.path / 'cache.json'} names {entry.path} in row {entry.row:,}, the manifest"
                f" {paths[entry.row]}",
                remedy=WRITE_AGAIN,
            )


def _check_shard(split: CacheSplit, shard: int, *, alone: bool) -> None:
    """Check a shard; `alone` where the manifest beside it says nothing of its labels."""
    if alone:
        problem = shard_problem(split.path / shard_name(shard), split.plan, shard)
    else:
        problem = verify_shard(split, shard)
    if problem is not None:
        raise CacheError(problem, remedy=WRITE_AGAIN)


def _check_together(path: Path, opened: dict[Path, CacheSplit]) -> Iterator[Checked]:
    """Check the head, and that the parts of the cache belong together."""
    splits = {folder.name: split for folder, split in opened.items() if folder.parent == path}
    views = {folder: split for folder, split in opened.items() if folder.parent != path}
    head, told, problem = _read_head(path / HEAD_FILE, splits)
    if problem is None and splits:
        problem = _error_of(partial(check_one_backbone, path, splits, head))
    yield Checked(told, () if problem is None else (problem,))
    if views and ("train" in splits or not (path / "train").exists()):  # else it is told of
        found = (_error_of(partial(_check_view, folder, views, splits)) for folder in views)
        yield Checked("", tuple(error for error in found if error is not None))


def _read_head(
    path: Path, splits: dict[str, CacheSplit]
) -> tuple[Head | None, str, ClinitError | None]:
    """Return the head, what to say of it, and what is wrong with it."""
    if path.is_file():
        try:
            head = read_head(path)
        except HeadError as error:
            if was_fitted(path.parent):
                return None, "head: not read", HeadError(str(error), remedy=FIT_AGAIN)
            return None, "head: not read", error
        except ClinitError as error:
            return None, "head: not read", error
        known = all(split.summary.head.tensors for split in splits.values())
        unsure = "" if known else "; an earlier version of clinit stored it without a digest"
        return head, f"head: {number_of(head.num_classes, 'row')} read{unsure}", None
    if not any(split.summary.head.tensors for split in splits.values()):
        return None, "head: none", None
    missing = CacheError(
        f"{path}, the head that was stored with the features, is missing",
        remedy=FIT_AGAIN if was_fitted(path.parent) else WRITE_AGAIN,
    )
    return None, "head: not read", missing


def _check_view(folder: Path, views: dict[Path, CacheSplit], splits: dict[str, CacheSplit]) -> None:
    if "train" not in splits:
        raise CacheError(
            f"{folder} is a view of training images that are not there", remedy=WRITE_AGAIN
        )
    first = next(iter(views.values()))
    plain = splits["train"].fingerprint
    check_view(folder, views[folder].fingerprint, plain, first.fingerprint)


def _error_of(check: Callable[[], object]) -> ClinitError | None:
    try:
        check()
    except ClinitError as error:
        return error
    return None
