"""Neural collapse and least-square deviation of a head on the features of a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from clinit.analysis.metrics.collapse import (
    EPS,
    Deviation,
    NeuralCollapse,
    deviation,
    neural_collapse,
)
from clinit.errors import HeadError
from clinit.extract.cache.fingerprint import Fingerprint, joined_fingerprint
from clinit.extract.cache.head import Head, head_rows
from clinit.extract.cache.read import CacheSplit
from clinit.headtrain.heads.array import beside, library, placed, slices, torch_stream
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics, count
from clinit.headtrain.heads.statistics.moments import Block
from clinit.words import contrast_digests

BLOCK_ROWS = 65_536
"""Maximum number of rows in a block."""


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """The metrics of one head on one set of features."""

    collapse: NeuralCollapse
    deviation: Deviation
    rows: int
    library: str
    """The library that computed the metrics: `numpy` or `cupy`."""

    def content(self) -> dict[str, Any]:
        """Return the metrics by name, for JSON; an undefined metric is null."""
        found = self.deviation
        relative, angle = (found.relative, found.angle) if found.size > 0 else (None, None)
        told = {"d_ls": found.d_ls, "d_ls_relative": relative, "d_ls_angle": angle}
        more = {"lambda": found.lam, "rows": self.rows, "library": self.library}
        return {**asdict(self.collapse), **told, **more}


def diagnose(
    statistics: ClassStatistics, head: Rows, *, lam: float, fingerprint: Fingerprint
) -> Diagnosis:
    """Return the metrics of a head with a row for each class of `statistics`.

    Its arrays are of the library of `statistics`; the types in `fingerprint`, of the features,
    bound their rounding.
    """
    types = {fingerprint.dtype or "float16", fingerprint.fields.get("autocast", "off")} & {*EPS}
    coarsest = max(types, key=EPS.__getitem__, default="float16")
    return Diagnosis(
        collapse=neural_collapse(statistics, head, dtype=coarsest),
        deviation=deviation(statistics, head, lam=lam),
        rows=int(statistics.totals.sum()),
        library=library(statistics.gram),
    )


def diagnose_splits(
    splits: Sequence[CacheSplit], head: Head, *, lam: float, device: torch.device | None = None
) -> Diagnosis:
    """Return the metrics of `head` on splits of caches of one backbone together, in one pass.

    Classes without a row of the head are left out.

    Args:
        splits: The splits, read shard by shard and copied to `device`.
        head: A head, whose rows are matched with the classes of the splits by name.
        lam: Ridge of the least squares in D_LS, >= 0.
        device: Device that computes: CUDA through CuPy, or the CPU (the default) through NumPy.

    Raises:
        CacheError: If the splits are of different backbones.
        HeadError: If the head has another width, or fewer than two classes of the splits.
    """
    fingerprint = joined_fingerprint([each.fingerprint for each in splits], [s.dim for s in splits])
    numbers = [matching_rows(head, split) for split in splits]
    labels = [n[s.labels[s.valid]] for n, s in zip(numbers, splits, strict=True)]
    totals = count(np.concatenate([own[own >= 0] for own in labels]), head.num_classes)
    if np.count_nonzero(totals) < 2:
        raise HeadError(
            f"fewer than two classes of {splits[0].path} are among the {head.num_classes:,} classes"
            " of the head",
            remedy="Give a head that was trained on these classes with `--head FILE`.",
        )

    def blocks() -> Iterator[Block]:
        """Yield the valid rows of the splits, without rows of classes that the head lacks."""
        for split, number in zip(splits, numbers, strict=True):
            for shard in map(split.shard, range(split.plan.num_shards)):
                valid = np.flatnonzero(shard.valid)
                for block in slices(len(valid), BLOCK_ROWS):
                    own = number[shard.labels[valid[block]]]
                    features = shard.features[valid[block][own >= 0]]
                    yield placed(features, device or torch.device("cpu")), own[own >= 0]

    with torch_stream(device):
        statistics = ClassStatistics.of_blocks(blocks(), totals, head.dim)
        rows = Rows(*(beside(statistics.gram, part) for part in (head.weight, head.bias)))
        return diagnose(statistics, rows, lam=lam, fingerprint=fingerprint)


def matching_rows(head: Head, of: CacheSplit) -> Int[np.ndarray, " classes"]:
    """Return the head row of each class of a split; -1 for a class without a row.

    The rows of a head without class names are assumed to be the classes of the split, in order.
    """
    backbone = of.fingerprint.backbone_identifier
    if head.dim != of.dim or not of.fingerprint.fits(head.fingerprint):
        its, features = contrast_digests(head.fingerprint, backbone)
        raise HeadError(
            f"the head reads features of width {head.dim} of the backbone {its or 'unknown'},"
            f" {of.path} holds width {of.dim} of {features}",
            remedy="Give a head that was trained on features of this backbone.",
        )
    if head.class_names is not None:
        return head_rows(head, of.class_names)
    if head.num_classes != len(of.class_names):
        raise HeadError(
            f"the head has {head.num_classes:,} rows without class names,"
            f" {of.path} has {len(of.class_names):,} classes",
            remedy="Store the class names with the head (`--head-classes` of"
            " `clinit extract`), or give another head with `--head FILE`.",
        )
    return np.arange(head.num_classes)
