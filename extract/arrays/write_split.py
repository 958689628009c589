"""Write a split whose rows are known, beside what its cache holds: backbone, classes and head.

What a killed command has written is kept: shards that are there and whole are not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int

from clinit.errors import CacheError, HeadError
from clinit.extract.arrays.fitted_head import FIT_AGAIN, judged_heads, readable_head, was_fitted
from clinit.extract.cache.head import Head, read_head, store_head, tensors_sha256
from clinit.extract.cache.plan import Plan, read_plan, settle_plan, shard_name
from clinit.extract.cache.read import HEAD_FILE, CacheSplit, open_split, shard_problem, verify_shard
from clinit.extract.cache.shard import Shard, write_shard
from clinit.extract.cache.summary import FILE as SUMMARY_FILE
from clinit.extract.cache.summary import RunFacts, write_summary
from clinit.extract.dataset.known import SPLITS
from clinit.extract.dataset.manifest import Manifest, read_manifest, write_manifest
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


_SHOWN = 3


def other_classes(out: Path, split: str) -> tuple[Path, tuple[str, ...]] | None:
    """Return the folder of the other split of the cache at `out`, and its class names."""
    for name in SPLITS:
        path = out / name / "manifest.parquet"
        if name != split and path.is_file():
            return out / name, read_manifest(path).class_names
    return None


def in_list_of(
    other: tuple[str, ...],
    labels: Int[np.ndarray, " rows"],
    names: tuple[str, ...],
    *,
    by_name: bool,
) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    """Number labels as the other split does, where it has all of their classes and more.

    Args:
        other: Class names of the other split.
        labels: Numbers of classes.
        names: Class names of these numbers.
        by_name: Whether the rows came with names. Numbers say which class they mean only where the
            other list begins with that of these rows.

    Returns:
        Labels and names; as they were where the other list lacks one of these.
    """
    if not by_name:
        return labels, other if other[: len(names)] == names else names
    number = {name: label for label, name in enumerate(other)}
    if not number.keys() >= set(names):
        return labels, names
    return np.array([number[name] for name in names], dtype=np.int64)[labels], other


def refuse_other_classes(out: Path, split: str, names: tuple[str, ...]) -> None:
    """Compare the classes of a split that is to be written with those of the other one.

    Raises:
        CacheError: If they are others; the first ones that differ are named.
    """
    found = other_classes(out, split)
    if found is None or found[1] == names:
        return
    folder, other = found
    raise CacheError(
        f"the classes of this split are not those of {folder}: {_difference(names, other)}",
        remedy="Import both splits with the same `--classes FILE`, or use another folder.",
    )


def _difference(names: tuple[str, ...], other: tuple[str, ...]) -> str:
    extra = sorted(set(names) - set(other))
    missing = sorted(set(other) - set(names))
    if extra or missing:
        return ", ".join(_few(extra, "here") + _few(missing, "there"))
    place = next(i for i, pair in enumerate(zip(names, other, strict=True)) if pair[0] != pair[1])
    return f"class {place:,} is {names[place][:60]} here, {other[place][:60]} there"


def _few(names: list[str], where: str) -> list[str]:
    if not names:
        return []
    listed = ", ".join([*(name[:60] for name in names[:_SHOWN]), *["..."] * (len(names) > _SHOWN)])
    return [f"{len(names):,} {'is' if len(names) == 1 else 'are'} {where} alone ({listed})"]


def refuse_other_cache(
    out: Path, plan: Plan, names: tuple[str, ...], head: Head | None, *, head_follows: bool = False
) -> None:
    """Compare a split that is to be written with what is in its cache already.

    Args:
        out: The folder of the cache.
        plan: The plan of the split.
        names: Its class names.
        head: The head that comes with it.
        head_follows: Whether it comes later, in place of one that may be lost.

    Raises:
        CacheError: If the other split is of another backbone or of other classes.
        HeadError: If its head is another one.
    """
    _refuse_other_backbone(out, plan)
    refuse_other_classes(out, plan.split, names)
    if head is None and not head_follows:
        _refuse_no_head(out)
    elif head is not None:
        _refuse_other_head(head, out)


def _refuse_other_backbone(out: Path, plan: Plan) -> None:
    for name in SPLITS:
        if name == plan.split or not (out / name / "plan.json").is_file():
            continue
        other = read_plan(out / name)
        here, there = plan.fingerprint.without_rows, other.fingerprint.without_rows
        if other.dim != plan.dim or here.differences(there):
            raise CacheError(
                f"{out / name} holds features of another backbone ({_origin(other)}) than this"
                f" split ({_origin(plan)})",
                remedy="Give both splits the same `--backbone` and type, or use another folder.",
            )


def _origin(plan: Plan) -> str:
    return f"{plan.fingerprint.backbone}, {plan.dim} x {plan.fingerprint.dtype}"


def _refuse_no_head(out: Path) -> None:
    stored = out / HEAD_FILE
    if readable_head(stored) is not None:
        raise HeadError(
            f"{stored} belongs to the features in {out}, these have no head",
            remedy="Use another folder.",
        )
    if judged_heads(out):
        raise HeadError(
            f"{stored}, the head that was stored with the features in {out}, is missing",
            remedy=FIT_AGAIN if was_fitted(out) else "Give it with `--head FILE`.",
        )


def _refuse_other_head(head: Head, out: Path) -> None:
    """Refuse a head that is not the one of the splits that are there.

    A stored head that has been damaged is written anew: the splits know which one it was.
    """
    stored, known = out / HEAD_FILE, judged_heads(out)
    is_same = True
    if (other := readable_head(stored)) is not None:
        is_same = other.class_names == head.class_names
        known |= {tensors_sha256(other)}
    if not is_same or known - {tensors_sha256(head)}:
        raise HeadError(
            f"{stored} holds another head than the one given",
            remedy="Leave out `--head` for the second split, or use another folder.",
        )
