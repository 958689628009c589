"""Check a whole cache: plan, summary, manifest and shards of every part, and the head.

Other code that reads a cache stops at the first problem; `verify` lists all problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from clinit.errors import ClinitError
from clinit.extract.cache.head import read_head
from clinit.extract.cache.plan import check_view, damaged, read_plan, split_names, view_folders
from clinit.extract.cache.read import (
    HEAD_FILE,
    CacheSplit,
    check_one_backbone,
    open_split,
    shard_problem,
)
from clinit.extract.cache.summary import read_summary
from clinit.files.paths import exists, is_file
from clinit.words import number_of


def recorded_commands(path: Path, places: Iterable[Path | None]) -> list[str]:
    """Return the recorded command lines that write damaged parts of a cache again.

    Args:
        path: The cache.
        places: Folders of the damaged splits and views; None for the head. The commands of all
            parts are returned if the head is damaged, because it belongs to all parts, or if the
            record of a damaged part cannot be read.
    """
    found: dict[Path, str | None] = {}
    for folder in (*(path / name for name in split_names(path)), *view_folders(path)):
        with suppress(ClinitError):
            found[folder] = read_summary(folder, read_plan(folder)).run.command
    own = {found.get(folder) if folder is not None else None for folder in places}
    commands = found.values() if None in own else own
    return sorted({command for command in commands if command is not None})


@dataclass(slots=True)
class Checked:
    """Result of checking a part of a cache: a split, a view, the head, or the views together."""

    told: str
    """Line to print; empty for the check that compares the views with each other."""
    folder: Path | None = None
    """Folder of the split or view; None for the head and for the views together."""
    problems: list[ClinitError] = field(default_factory=list)

    @contextmanager
    def check(self) -> Iterator[None]:
        """Collect the error that is raised inside, if any."""
        try:
            yield
        except ClinitError as error:
            self.problems.append(error)


def verify(
    path: Path, *, on_shard: Callable[[str, int, int], None] = lambda title, done, total: None
) -> Iterator[Checked]:
    """Compare every byte of a cache with its digests; yield the result of each part.

    Args:
        path: The cache.
        on_shard: Called after each shard with the title of its part, the number of shards read,
            and the number of shards of the part.

    Raises:
        CacheError: If `path` is not a cache.
    """
    titles = {path / name: name for name in split_names(path)}
    titles |= {folder: f"train, view {folder.name}" for folder in view_folders(path)}
    opened: dict[Path, CacheSplit] = {}
    for folder, title in titles.items():
        checked = Checked(f"{title}: not read", folder)
        with checked.check():
            opened[folder] = open_split(folder)
            _check_part(opened[folder], title, checked, on_shard)
        yield checked
    splits = {folder.name: split for folder, split in opened.items() if folder.parent == path}
    yield _check_head(path, splits)
    views = [split for folder, split in opened.items() if folder.parent != path]
    together = Checked("")
    for view in views:
        with together.check():
            if "train" in splits:
                plain = splits["train"].fingerprint
                check_view(view.path, view.fingerprint, plain, views[0].fingerprint)
            elif not exists(path / "train"):  # a damaged train split is reported above
                raise damaged(
                    f"{view.path} is a view of training images whose features are missing"
                )
    yield together


def _check_part(
    split: CacheSplit, title: str, checked: Checked, on_shard: Callable[[str, int, int], None]
) -> None:
    with checked.check():
        _ = split.manifest  # read once
    has_manifest, shards = not checked.problems, split.plan.num_shards
    for shard in range(shards):
        with checked.check():
            # Labels can only be compared with a manifest.
            whole = split if has_manifest else None
            problem = shard_problem(split.path, split.plan, shard, whole)
            if problem is not None:
                raise damaged(problem)
        on_shard(title, shard + 1, shards)
    checked.told = f"{title}: {number_of(shards, 'shard')}, {number_of(split.num_rows, 'row')} read"


def _check_head(path: Path, splits: dict[str, CacheSplit]) -> Checked:
    checked, head = Checked("head: not read"), None
    known = [split.summary.head.tensors is not None for split in splits.values()]
    with checked.check():
        if is_file(path / HEAD_FILE):
            head = read_head(path / HEAD_FILE)
            unsure = (
                "" if all(known) else "; an earlier version of clinit stored it without a digest"
            )
            checked.told = f"head: {number_of(head.num_classes, 'row')} read{unsure}"
        elif any(known):
            raise damaged(
                f"{path / HEAD_FILE}, the head that was stored with the features, is missing"
            )
        else:
            checked.told = "head: none"
    if not checked.problems and splits:
        with checked.check():
            check_one_backbone(path, splits, head)
    return checked
