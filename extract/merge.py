"""Caches of one backbone become one: two halves of a class list, or more images of some classes.

Rows get the order of the merged manifest, by label and path, as if all images had been scanned
at once: `clinit extract` with that manifest accepts the result. Classes are matched by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from clinit.errors import CacheError
from clinit.extract.arrays.write_split import SplitWriter
from clinit.extract.cache import Cache, CacheSplit, open_cache
from clinit.extract.dataset.known import SPLITS
from clinit.extract.head import Head, tensors_sha256
from clinit.extract.merged_rows import MergedRows, Part
from clinit.extract.plan import Plan
from clinit.extract.summary import UNKNOWN, RunFacts, Summary
from clinit.files.documents import content_sha256


def merge(
    paths: Sequence[Path],
    out: Path,
    *,
    splits: Sequence[str] = SPLITS,
    on_rows: Callable[[str, int, int], None] = lambda title, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Iterator[CacheSplit]:
    """Write the rows of several caches into a new one; yield its splits.

    A merge that was killed goes on when it is run again. One shard of every cache is in memory
    at a time.

    Args:
        paths: Two caches or more.
        out: The folder of the new one.
        splits: Which of their splits to merge.
        on_rows: Called with a split's title, the rows written so far and their number.
        on_note: Called with what the user may want to know.

    Raises:
        CacheError: If the caches are of different backbones or heads, their images lie in
            containers, an image is in two of them, or the split of another merge is there already.
        ClinitError: If it cannot be written.
    """
    caches = _open(paths, out)
    _refuse_other_backbones(caches)
    _refuse_containers([c.splits[name] for c in caches for name in splits if name in c.splits])
    head, told = _one_head(caches)
    names = _class_names([s.class_names for cache in caches for s in cache.splits.values()])
    root, prefixes = _roots(caches)
    for cache in caches:
        if cache.views:
            on_note(
                f"the views of {cache.path} are not merged: what happens to an image follows from"
                " its row, and rows have other numbers now"
            )
    for name in splits:
        parts = [
            Part(cache.path, cache.splits[name], prefix)
            for cache, prefix in zip(caches, prefixes, strict=True)
            if name in cache.splits
        ]
        if not parts:
            continue
        rows = MergedRows.of(parts, names)
        plan = _plan(rows)
        writer = SplitWriter(
            out=out,
            plan=plan,
            manifest=rows.manifest,
            head=head,
            head_classes=UNKNOWN if told is None else told.head.class_names,
            run=_facts(parts, root, caches, told),
            on_rows=lambda done, total, title=name: on_rows(title, done, total),  # type: ignore[misc]
        )
        if (there := writer.finished()) is not None:  # a merge that was killed goes on behind it
            yield there
            continue
        with writer.claimed(on_note):
            yield writer.write(rows.shard)


def _open(paths: Sequence[Path], out: Path) -> list[Cache]:
    places = [os.path.realpath(path) for path in paths]
    if len(set(places)) < max(2, len(places)):
        raise CacheError(
            f"{len(places)} cache is given, expected two or more"
            if len(places) < 2
            else "a cache is given twice",
            remedy="Name each of the caches that become one, after the folder of the new one.",
        )
    if os.path.realpath(out) in places:
        raise CacheError(
            f"{out} is one of the caches that are merged",
            remedy="Give a new folder first, then the caches.",
        )
    return [open_cache(path) for path in paths]


def _refuse_other_backbones(caches: Sequence[Cache]) -> None:
    first, *others = [next(iter(cache.splits.values())) for cache in caches]
    for split in (first, *others):
        if split.fingerprint.is_nameless:
            raise CacheError(
                f"{split.path.parent} does not say what computed its features",
                remedy="Import them again with `clinit cache import --backbone NAME`.",
            )
    plain = first.fingerprint.without_rows
    for other in others:
        for each in plain.differences(other.fingerprint.without_rows):
            one, two = each.told
            raise CacheError(
                f"the caches hold features of different backbones: {each.name} = {one} in"
                f" {first.path.parent}, {two} in {other.path.parent}",
                remedy="Merge caches that `clinit extract` wrote with the same options.",
            )
        if first.dim != other.dim:
            raise CacheError(
                f"the features of {first.path.parent} have width {first.dim}, those of"
                f" {other.path.parent} width {other.dim}",
                remedy="Merge caches of one backbone; give different ones different names.",
            )


def _one_head(caches: Sequence[Cache]) -> tuple[Head | None, Summary | None]:
    """Return the head of the caches, a named one if there is, and a summary that tells of it."""
    found = [(cache, cache.head) for cache in caches if cache.head is not None]
    found.sort(key=lambda each: each[1].class_names is None)
    if not found:
        return None, None
    first, head = found[0]
    for cache, other in found:
        if tensors_sha256(other) != tensors_sha256(head):
            raise CacheError(
                f"{first.path} and {cache.path} hold different heads",
                remedy="Import one of them again with the head of the other: `--head FILE`.",
            )
        if other.class_names not in (None, head.class_names):
            raise CacheError(
                f"the rows of the head have other class names in {first.path} than in {cache.path}",
                remedy="Name them alike: run the `clinit extract` commands of both again with the"
                " same `--head-classes`; it computes nothing.",
            )
    return head, next(iter(first.splits.values())).summary


def _class_names(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return all classes: in sorted order where all lists are, else as they come."""
    names = dict.fromkeys(name for names in lists for name in names)
    in_order = all(one < two for each in lists for one, two in pairwise(each))
    return tuple(sorted(names) if in_order else names)


def _roots(caches: Sequence[Cache]) -> tuple[str | None, list[str]]:
    """Return the folder that all images are in, and what leads from it to those of each cache.

    Raises:
        CacheError: If the splits of one cache are of different folders, or a folder is relative.
    """
    roots: list[str | None] = []
    _refuse_relative_roots(caches)
    for cache in caches:
        told = {split.summary.run.root for split in cache.splits.values()}
        if len(told) > 1:
            listed = ", ".join(sorted(map(str, told)))
            raise CacheError(
                f"the splits of {cache.path} are of images in different folders: {listed}",
                remedy="Extract both splits from one folder by one `clinit extract` command.",
            )
        roots.append(told.pop())
    known = [root for root in roots if root is not None]
    if len(set(roots)) == 1 or not known:
        return roots[0], [""] * len(caches)
    common = os.path.commonpath(map(_absolute, known))
    paths = (Path(_absolute(root or common)) for root in roots)
    below = [path.relative_to(common).as_posix() for path in paths]
    return common, ["" if each == "." else f"{each}/" for each in below]


def _refuse_relative_roots(caches: Sequence[Cache]) -> None:
    """Refuse what earlier versions wrote as it was typed: equal names may be different folders."""
    for cache in caches:
        for split in cache.splits.values():
            root = split.summary.run.root
            if root is not None and not Path(root).is_absolute():
                raise CacheError(
                    f"the images of {cache.path} were in {root}, seen from a folder that an earlier"
                    " version of clinit has not recorded",
                    remedy=f"Run the `clinit extract` command of {cache.path} again: it records"
                    " where they are, and computes nothing.",
                )


def _absolute(root: str) -> str:
    return os.path.normpath(Path(root).absolute())


def _refuse_containers(splits: Sequence[CacheSplit]) -> None:
    for split in splits:
        if split.manifest.is_contained:
            raise CacheError(
                f"the images of {split.path} lie in tar or Parquet files: manifests of those are"
                " not merged",
                remedy="Put the tar or Parquet files of all caches into one folder and extract"
                " that by one `clinit extract` command; where some images are files, unpack the"
                " others beside them.",
            )


def _plan(rows: MergedRows) -> Plan:
    """Return the plan of the merged split: that of an extraction of the merged manifest."""
    splits = [part.split for part in rows.parts]
    first = splits[0].plan
    devices = {split.plan.device for split in splits}
    imported = [digest for split in splits if (digest := split.fingerprint.features) is not None]
    return replace(
        first,
        dataset=rows.manifest.dataset,
        num_rows=len(rows.manifest.table),
        device=first.device if len(devices) == 1 else " and ".join(sorted(devices)),
        fingerprint=first.fingerprint.without_rows.of_rows(
            rows.manifest.digest, features=content_sha256(sorted(imported)) if imported else None
        ),
    )


def _facts(
    parts: Sequence[Part], root: str | None, caches: Sequence[Cache], told: Summary | None
) -> RunFacts:
    first = parts[0].split.summary.run
    pixels = {part.split.summary.run.max_pixels for part in parts}
    return RunFacts(
        root=root,
        weights=first.weights,
        head_classes=None if told is None else told.run.head_classes,
        max_pixels=pixels.pop() if len(pixels) == 1 else None,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        merged=tuple(str(cache.path.absolute()) for cache in caches),
        versions={"clinit": version("clinit")},
    )
