"""Check a whole cache: plan, summary, manifest and shards of every part, and the head.

Other code that reads a cache stops at the first problem; `verify` finds the first of every part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from clinit.errors import ClinitError
from clinit.extract.cache import read
from clinit.extract.cache.fingerprint import check_view
from clinit.extract.cache.head import read_head
from clinit.extract.cache.plan import Plan, damaged, split_names, views_in
from clinit.extract.cache.summary import read_summary
from clinit.files.paths import is_file


def recorded_commands(path: Path, places: Collection[Path]) -> list[str]:
    """Return the recorded command lines that write parts of a cache again; of all if unknown."""
    found: dict[Path, str | None] = {}
    for folder in _parts(path):
        with suppress(ClinitError):
            found[folder] = read_summary(folder, Plan.read(folder)).run.command
    own = {found.get(place) for place in places}
    return sorted(filter(None, found.values() if None in own else own))


def _parts(path: Path) -> list[Path]:
    return [*(path / name for name in split_names(path)), *views_in(path)]


def verify(
    path: Path, *, on_shard: Callable[[str, int, int], None] = lambda title, done, total: None
) -> Iterator[tuple[Path, ClinitError]]:
    """Compare every byte of a cache with its digests.

    Args:
        path: The cache.
        on_shard: Called after each shard with the name of its part, the number of shards read, and
            the number of shards of the part.

    Yields:
        The folder of each damaged split or view, or the file of a damaged head, and its first
        problem.

    Raises:
        CacheError: If `path` is not a cache.
    """
    opened: dict[Path, read.CacheSplit] = {}
    for folder in _parts(path):
        try:
            opened[folder] = split = read.open_split(folder)
            _ = split.manifest  # read once
            for shard in range(split.plan.num_shards):
                if problem := read.shard_problem(folder, split.plan, shard, split):
                    raise damaged(problem)
                on_shard(f"{folder.relative_to(path)}", shard + 1, split.plan.num_shards)
            if folder.parent == path:
                continue
            if "train" not in split_names(path):
                raise damaged(f"{folder} is a view of training images whose features are missing")
            if (train := opened.get(path / "train")) is not None:  # else its problem is reported
                first = next(each for at, each in opened.items() if at.parent == folder.parent)
                check_view(folder, split.fingerprint, train.fingerprint, first.fingerprint)
        except ClinitError as error:
            yield folder, error
    splits = {folder.name: split for folder, split in opened.items() if folder.parent == path}
    place = path / read.HEAD_FILE
    try:
        head = read_head(place) if is_file(place) else None
        if head is None and any(split.summary.head.tensors for split in splits.values()):
            raise damaged(f"{place}, the head that was stored with the features, is missing")
        if splits:
            read.check_one_backbone(path, splits, head)
    except ClinitError as error:
        yield place, error
