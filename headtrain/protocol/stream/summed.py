"""Class statistics with the names of their classes, in a file: a data set without its rows.

    totals   (classes,)      rows of each class in the whole set
    counts   (classes,)      rows of each class summed so far, fewer in a part
    shift    (dim,)          subtracted from the features before they are summed
    sums     (classes, dim)  sums of the shifted features of each class
    gram     (dim, dim)      weighted sum of the outer products of the shifted features

in float64, whole numbers in int64: C d + d^2 numbers, whatever the number of rows. The description
contains class names, weighting and fingerprint. For the formulas see
`clinit.headtrain.heads.statistics.class_statistics`.

Caches are summed with one shard in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.errors import StatisticsError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint, joined_fingerprint
from clinit.extract.cache.read import CacheSplit, open_cache, refuse_shared_images
from clinit.files.commit import commit_file
from clinit.files.documents import DocumentKind
from clinit.files.lock import claim_file
from clinit.files.paths import exists, is_file
from clinit.files.tensors import Array, digest, read_tensors, tensors_bytes
from clinit.headtrain.heads.array import placed, slices
from clinit.headtrain.heads.groups import one_of_each, repeating, shares_of
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.statistics.class_statistics import (
    ARRAYS,
    ClassStatistics,
    Weighting,
    count,
)
from clinit.headtrain.heads.statistics.moments import Block
from clinit.observer import Observer, Progressed, ignore
from clinit.words import contrast

_ARRAYS = {
    "totals": Array(("int64",), ("classes",)),
    "counts": Array(("int64", "float64"), ("classes",)),
    "shift": Array(("float64",), ("dim",)),
    "sums": Array(("float64",), ("classes", "dim")),
    "gram": Array(("float64",), ("dim", "dim")),
}
_KEY = "clinit_statistics"
_DOCUMENT = DocumentKind(
    title="the description of class statistics",
    format="clinit-statistics/1",
    error=StatisticsError,
    remedy="Remove it, and sum the rows again: `clinit head statistics CACHE --out FILE`.",
)
BLOCK_ROWS = 65_536
"""Maximum number of rows in a block."""


class _Facts(TypedDict):
    class_names: tuple[str, ...]
    weighting: Weighting
    fingerprint: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Summed:
    """The statistics of rows of one backbone, as NumPy arrays."""

    class_names: tuple[str, ...]
    """One per class; a class may have no row."""
    fingerprint: Fingerprint
    """Everything that the features depend on, and digests of the rows."""
    statistics: ClassStatistics
    path: str = ""
    """The file, if the statistics were read from one."""

    @property
    def dim(self) -> int:
        """Width of a feature."""
        return self.statistics.dim

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All numbers by name, as they are stored."""
        return {name: getattr(self.statistics, name) for name in ARRAYS}

    @property
    def digest(self) -> str:
        """SHA-256 of the arrays."""
        return digest(self.arrays)

    def named(self, class_names: Sequence[str]) -> Summed:
        """Return the statistics with classes numbered as in `class_names`.

        Raises:
            StatisticsError: If a class with rows is not in `class_names`.
        """
        number = {name: label for label, name in enumerate(class_names)}
        place = np.array([number.get(name, -1) for name in self.class_names], dtype=np.int64)
        if lost := int(((place < 0) & (self.statistics.totals > 0)).sum()):
            raise StatisticsError(
                f"{self.path} includes {lost:,} classes that do not belong here, and its"
                " covariance cannot be split by class",
                remedy="Sum the rows of the wanted classes alone: `clinit head statistics CACHE`.",
            )
        found = self.statistics.renumbered(place, len(class_names))
        return replace(self, class_names=tuple(class_names), statistics=found)

    def averaging(self, weighting: Weighting, reader: str) -> ClassStatistics:
        """Return the statistics, if they have the weighting that `reader` needs.

        Raises:
            StatisticsError: If they have another weighting.
        """
        if self.statistics.weighting != weighting:
            raise StatisticsError(
                f"{self.path} has the weighting {self.statistics.weighting}, {reader} needs"
                f" {weighting}",
                remedy="Sum the rows again: `clinit head statistics CACHE"
                f" --weighting {weighting}`.",
            )
        return self.statistics

    def write(self, path: Path) -> None:
        """Write the statistics atomically.

        Raises:
            ClinitError: If they cannot be written.
        """
        facts = {
            "class_names": self.class_names,
            "weighting": self.statistics.weighting,
            "fingerprint": dict(self.fingerprint.fields),
        }
        content = tensors_bytes(self.arrays, facts, _DOCUMENT, _KEY)
        commit_file(path, lambda draft: draft.write_bytes(content))


def read_summed(path: Path) -> Summed:
    """Read statistics.

    Raises:
        StatisticsError: If the file is of another kind, damaged, or lacks rows.
        StorageError: If the file is missing or cannot be read.
    """
    arrays, facts = read_tensors(path, _DOCUMENT, _KEY, _Facts, _ARRAYS)
    names = facts["class_names"]
    if len({*names}) < len(names):
        raise _DOCUMENT.refusal(f"{path} is damaged: a class is named twice")
    statistics = ClassStatistics(weighting=facts["weighting"], **arrays)
    if not statistics.is_whole:
        there, every = statistics.counts.sum(), statistics.totals.sum()
        raise StatisticsError(
            f"{path} contains only a part: {there:,.0f} of {every:,} rows",
            remedy="Sum the rows again: `clinit head statistics CACHE --out FILE`.",
        )
    return Summed(names, Fingerprint(facts["fingerprint"]), statistics, str(path))


def joined_names(parts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the classes of all parts: sorted if all parts are, else in order of appearance."""
    names = [*dict.fromkeys(name for part in parts for name in part)]
    if all(one < two for part in parts for one, two in pairwise(part)):
        names.sort()
    return tuple(names)


def blocks_of(
    split: CacheSplit,
    shards: Iterable[int],
    numbers: Int[np.ndarray, " classes"],
    *,
    shares: Float[np.ndarray, " rows"] | None = None,
    device: torch.device | None = None,
) -> Iterator[Block]:
    """Yield the valid rows of shards, as `ClassStatistics.of_blocks` takes them.

    Args:
        split: The split.
        shards: Numbers of shards of the split.
        numbers: The number of each class of the split; rows of a class with -1 are left out.
        shares: The weight of each row of the split, if rows repeat each other.
        device: Device for the features; default: the CPU.
    """
    place = torch.device("cpu") if device is None else device
    for index in shards:
        shard = split.shard(index)
        valid, start = np.flatnonzero(shard.valid), split.plan.rows(index).start
        for block in slices(len(valid), BLOCK_ROWS):
            labels = numbers[shard.labels[valid[block]]]
            rows, labels = valid[block][labels >= 0], labels[labels >= 0]
            counted = () if shares is None else (shares[start + rows],)
            yield placed(shard.features[rows], place), labels, *counted


def _counted(
    split: CacheSplit, numbers: Int[np.ndarray, " classes"], num_classes: int
) -> tuple[Int[np.ndarray, " all"], Float[np.ndarray, " rows"] | None]:
    """Return the number of rows of each class in a split, and the weight of each row.

    Rows that repeat each other count as one. Weights are None if no row repeats another.
    """
    labels, groups = split.labels[split.valid], split.groups
    if groups is not None:
        none = np.empty((len(labels), 0))
        groups = repeating(groups_of(FeatureSet(none, labels, split.class_names, groups)))
    totals = count(one_of_each(numbers[labels], groups), num_classes)
    if groups is None:
        return totals, None
    shares = np.ones(split.num_rows)
    shares[split.valid] = shares_of(groups)
    return totals, shares


def sum_caches(
    paths: Sequence[str | Path],
    out: str | Path,
    weighting: Weighting = "class",
    split: str | None = None,
    observer: Observer = ignore,
) -> Summed:
    """Sum the rows of caches, and write their statistics to `out`.

    Existing sums of the same rows are not computed again.

    Args:
        paths: Caches of one backbone.
        out: The file.
        weighting: `class`: averages of class averages; `sample`: averages over all rows.
        split: `train` or `val`; default: train, or else val.
        observer: Called with numbers of rows.

    Raises:
        CacheError: If a cache cannot be read, or if backbones differ.
        StatisticsError: If another file exists at `out`, or if a feature is not finite.
        ClinitError: If another process sums to `out`, or nothing can be written.
    """
    out, caches = Path(out), [open_cache(Path(path)) for path in paths]
    refuse_shared_images(caches[1:] and caches)
    splits = [cache.split(split or next(iter(cache.splits))) for cache in caches]
    widths = [each.dim for each in splits]
    fingerprint = joined_fingerprint([each.fingerprint for each in splits], widths)
    names, dim = joined_names([each.class_names for each in splits]), splits[0].dim
    label = {name: number for number, name in enumerate(names)}
    numbers = [np.array([label[name] for name in each.class_names]) for each in splits]
    counted = [_counted(*each, len(names)) for each in zip(splits, numbers, strict=True)]
    totals, shares = np.sum([each for each, _ in counted], axis=0), [each for _, each in counted]
    nothing = ClassStatistics.of_blocks([], totals, dim, weighting=weighting)
    wanted = Summed(names, fingerprint, nothing)
    with claim_file(out):
        if (whole := _found(out, wanted)) is not None:
            return whole
        if exists(out):
            raise _in_the_way(out, "is damaged, or not a file of statistics")
        blocks = _blocks([*zip(splits, numbers, shares, strict=True)], observer)
        sums = ClassStatistics.of_blocks(blocks, totals, dim, weighting=weighting)
        whole = replace(wanted, statistics=sums, path=str(out))
        whole.write(out)
    return whole


def _blocks(rows: Sequence[Any], observer: Observer) -> Iterator[Block]:
    """Yield all rows; `rows` lists splits, with the numbers of classes and the shares of rows."""
    done, total = 0, sum(split.num_rows for split, *_ in rows)
    for split, numbers, shares in rows:
        for number in range(split.plan.num_shards):
            yield from blocks_of(split, [number], numbers, shares=shares)
            done += len(split.plan.rows(number))
            observer(Progressed("Summing", done, total, "rows"))


def _found(path: Path, wanted: Summed) -> Summed | None:
    """Return existing statistics of the wanted rows; None if missing or damaged.

    Raises:
        StatisticsError: If they are of other rows or of another weighting.
    """
    found = None
    if is_file(path):
        with suppress(StatisticsError):
            found = read_summed(path)
    if found is None:
        return None
    one, two = found.statistics, wanted.statistics
    differing = [str(each) for each in found.fingerprint.differences(wanted.fingerprint)]
    for name, there, here in (
        ("weighting", one.weighting, two.weighting),
        ("classes", found.class_names, wanted.class_names),
        ("rows", one.totals.tolist(), two.totals.tolist()),
    ):
        if there != here:
            differing.append(f"{name} ({' / '.join(contrast(str(there), str(here)))})")
    if differing:
        raise _in_the_way(path, f"contains other statistics: {', '.join(differing)} differ")
    return found


def _in_the_way(path: Path, why: str) -> StatisticsError:
    return StatisticsError(
        f"{path} {why}", remedy="Choose another --out, or move it away and sum it again."
    )
