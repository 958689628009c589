"""Where each row of a merged cache comes from, and its features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from clinit.errors import CacheError
from clinit.extract.cache import CacheSplit
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.shard import Shard, assemble

_IMPORT_DIGITS = 12
"""Digits of the digest of an imported file that tell its rows from those of others."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A split of one of the caches."""

    cache: Path
    split: CacheSplit
    prefix: str
    """What goes in front of its paths."""

    def table(self, number: int) -> pl.DataFrame:
        """Return its manifest with the number of the part and of each row."""
        table, path = self.split.manifest.table, pl.col("path")
        if digest := self.split.fingerprint.features:
            # The paths of imported rows are numbers. Those of merged ones have a digest already.
            alone = f"{digest[:_IMPORT_DIGITS]}/" + path
            path = pl.when(path.str.contains("/", literal=True)).then(path).otherwise(alone)
        return table.select(
            path=self.prefix + path,
            class_name="class_name",
            size_bytes="size_bytes",
            part=pl.lit(number, dtype=pl.Int64),
            row=pl.int_range(pl.len(), dtype=pl.Int64),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MergedRows:
    """Where each row of the merged manifest comes from."""

    parts: Sequence[Part]
    manifest: Manifest
    part: np.ndarray
    """Number of the part, for every row; int64."""
    row: np.ndarray
    """Row of that part."""
    _read: dict[int, tuple[int, Shard]] = field(default_factory=dict)
    """Shard that was read last, by part: rows of a part come in nearly its own order."""

    @classmethod
    def of(cls, parts: Sequence[Part], names: tuple[str, ...]) -> MergedRows:
        """Merge the manifests of some parts.

        Raises:
            CacheError: If a path occurs twice.
        """
        label = {name: number for number, name in enumerate(names)}
        table = (
            pl.concat([part.table(number) for number, part in enumerate(parts)])
            .with_columns(label=pl.col("class_name").replace_strict(label, return_dtype=pl.Int64))
            .sort("label", "path", "part")
        )
        _refuse_duplicates(table, parts)
        plans = [part.split.plan for part in parts]
        dataset = "+".join(dict.fromkeys(plan.dataset for plan in plans))
        images = table.select("path", "label", "class_name", "size_bytes")
        manifest = Manifest(dataset, plans[0].split, names, images)
        return cls(parts, manifest, table["part"].to_numpy(), table["row"].to_numpy())

    def shard(self, rows: range) -> Shard:
        """Return some rows as a shard."""
        part, row = self.part[rows.start : rows.stop], self.row[rows.start : rows.stop]
        labels = self.manifest.table["label"][rows.start : rows.stop].to_numpy()
        plan = self.parts[0].split.plan
        features = np.zeros((len(rows), plan.dim), dtype=np.float32)
        reasons: dict[int, str] = {}
        for number in np.unique(part).tolist():
            size = self.parts[number].split.plan.shard_rows
            for index in np.unique(row[part == number] // size).tolist():
                places = np.flatnonzero((part == number) & (row // size == index))
                shard, inside = self._shard(number, index), row[places] - index * size
                features[places] = shard.features[inside]
                reasons |= {
                    place: shard.reasons[source]
                    for place, source in zip(places.tolist(), inside.tolist(), strict=True)
                    if source in shard.reasons
                }
        return assemble(features, labels, reasons, dtype=plan.dtype)

    def _shard(self, number: int, index: int) -> Shard:
        if number not in self._read or self._read[number][0] != index:
            self._read[number] = index, self.parts[number].split.shard(index)
        return self._read[number][1]


def _refuse_duplicates(table: pl.DataFrame, parts: Sequence[Part]) -> None:
    twice = table.filter(pl.col("path").is_duplicated())
    if len(twice):
        path = twice["path"][0]
        numbers = twice.filter(pl.col("path") == path)["part"].unique().sort().to_list()
        where = " and ".join(str(parts[number].cache) for number in numbers)
        raise CacheError(
            f"{twice['path'].n_unique():,} images of {parts[0].split.plan.split} are in more than"
            f" one cache, such as {path} in {where}",
            remedy="Merge caches of different images; extract those of one manifest at once.",
        )
