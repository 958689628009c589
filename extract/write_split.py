"""Write a split whose rows are known: imported ones, and those of other caches.

What a killed command has written is kept: shards that are there and whole are not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.head import Head, read_head, store_head, tensors_sha256
from clinit.extract.cache.plan import Plan, read_plan, settle_plan, shard_name
from clinit.extract.cache.read import HEAD_FILE, CacheSplit, open_split, shard_problem, verify_shard
from clinit.extract.cache.shard import Shard, write_shard
from clinit.extract.cache.summary import FILE as SUMMARY_FILE
from clinit.extract.cache.summary import RunFacts, write_summary
from clinit.extract.manifest import Manifest, write_manifest
from clinit.extract.same_cache import refuse_other_cache
from clinit.files.lock import claim_folder


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SplitWriter:
    """A split that is to be written."""

    out: Path
    """The folder of the cache."""
    plan: Plan
    manifest: Manifest
    head: Head | None
    """The head to be stored beside the split, and judged on it."""
    head_classes: str
    """Where the class names of the head came from."""
    run: RunFacts
    on_rows: Callable[[int, int], None]
    """Called with the rows written so far and their number, after every shard."""
    head_follows: bool = False
    """Whether a head is stored later, in place of one that may be lost: `head` is None."""

    @property
    def folder(self) -> Path:
        """The folder of the split."""
        return self.out / self.plan.split

    @property
    def _stored_head(self) -> Path | None:
        """The head that the split must have been judged with; None for any."""
        return None if self.head_follows else self.out / HEAD_FILE

    def finished(self) -> CacheSplit | None:
        """Return the split, where this very one is there and whole, its head too."""
        try:
            found = open_split(self.folder)
        except CacheError:
            return None
        is_this = found.plan == self.plan and _is_whole(found, self._stored_head)
        return found if is_this else None

    @contextmanager
    def claimed(self, on_note: Callable[[str], None]) -> Iterator[None]:
        """Be the only writer of the cache: its splits have one backbone, head and classes.

        Raises:
            CacheError: If the split is there and whole, or begun by something else, or the cache
                holds another backbone, other classes or another head. Nothing is written then.
            ClinitError: If it is being written, or cannot be.
        """
        refuse_other = partial(
            refuse_other_cache,
            self.out,
            self.plan,
            self.manifest.class_names,
            self.head,
            head_follows=self.head_follows,
        )
        refuse_other()
        with (
            claim_folder(self.out, leaves_lock=False, on_unlocked=on_note),
            claim_folder(self.folder, within=self.out),
        ):
            refuse_other()  # another import may have begun meanwhile
            _refuse_complete(self.folder, self.plan, self._stored_head)
            _remove_unfinished(self.folder, self.plan)
            settle_plan(self.plan, self.folder)
            yield

    def write(self, shard_of: Callable[[range], Shard]) -> CacheSplit:
        """Write what is missing in the claimed folder; `shard_of` makes the shard of some rows."""
        plan, folder = self.plan, self.folder
        write_manifest(self.manifest, folder / "manifest.parquet")
        if self.head is not None:
            store_head(self.head, self.out / HEAD_FILE)
        for index in range(plan.num_shards):
            path, rows = folder / shard_name(index), plan.rows(index)
            if shard_problem(path, plan, index) is not None:
                write_shard(shard_of(rows), path, plan=plan, index=index)
            self.on_rows(rows.stop, plan.num_rows)
        write_summary(
            folder,
            plan,
            self.manifest,
            head=self.head,
            head_classes=self.head_classes,
            run=self.run,
        )
        return open_split(folder)


def _refuse_complete(folder: Path, plan: Plan, head: Path | None) -> None:
    """Refuse to write a split again, unless this very one or its head has been damaged."""
    try:
        found = open_split(folder)
    except CacheError:
        return
    if found.plan != plan or _is_whole(found, head):
        raise CacheError(
            f"{folder} holds a complete split already",
            remedy="Write into another folder, or delete this one first.",
        )


def _is_whole(split: CacheSplit, head: Path | None) -> bool:
    tensors = split.summary.head.tensors
    if head is not None and tensors is not None:
        try:
            if tensors_sha256(read_head(head)) != tensors:
                return False
        except HeadError:
            return False
    return all(verify_shard(split, shard) is None for shard in range(split.plan.num_shards))


def _remove_unfinished(folder: Path, plan: Plan) -> None:
    """Remove what an import of something else left when it was killed: copies of its files."""
    if not (folder / "plan.json").is_file() or (folder / SUMMARY_FILE).is_file():
        return
    found = read_plan(folder)
    if found != plan and found.fingerprint.is_imported:
        for shard in folder.glob("shard-*.h5"):
            shard.unlink()
        (folder / "plan.json").unlink()
