"""The rows of a split that are exported, a shard at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from clinit.extract.cache.read import CacheSplit


@dataclass(frozen=True, slots=True, eq=False)
class ExportedRows:
    """Rows of a split, in the order of its manifest."""

    split: CacheSplit
    keep_invalid: bool = False
    """Whether rows without features stay, as NaN; they are left out otherwise."""
    on_rows: Callable[[int, int], None] = lambda done, total: None
    """Called with the rows read so far and their number, after every shard."""

    @property
    def num_rows(self) -> int:
        """Number of exported rows."""
        return self.split.num_rows if self.keep_invalid else self.split.num_valid

    @property
    def num_left_out(self) -> int:
        """Number of rows that have no features and are left out."""
        return self.split.num_rows - self.num_rows

    @property
    def dtype(self) -> np.dtype:
        """Type of the features: float32 as soon as one shard is."""
        return np.dtype(self.split.dtype).newbyteorder("<")

    @property
    def rows(self) -> Int[np.ndarray, " exported"]:
        """Which rows of the cache, and of its manifest, are exported; int64."""
        rows = np.arange(self.split.num_rows, dtype=np.int64)
        chosen: np.ndarray = rows if self.keep_invalid else rows[self.split.valid]
        return chosen

    @property
    def labels(self) -> Int[np.ndarray, " exported"]:
        """Their labels; int64."""
        labels: np.ndarray = self.split.labels[self.rows]
        return labels

    @property
    def metadata(self) -> dict[str, str]:
        """What a file says beside its rows: class names as a JSON list, and where it is from."""
        plan = self.split.plan
        return {
            "class_names": json.dumps(self.split.class_names, ensure_ascii=False),
            "dataset": plan.dataset,
            "split": plan.split,
            "backbone": plan.fingerprint.backbone or "",
        }

    def blocks(
        self,
    ) -> Iterator[tuple[Int[np.ndarray, " block"], Float[np.ndarray, "block dim"]]]:
        """Yield numbers and features of the rows of each shard; one is in memory at a time.

        Raises:
            CacheError: If a shard is missing, damaged or belongs to another plan.
        """
        for index, shard in enumerate(self.split.shards()):
            place = self.split.plan.rows(index)
            rows = np.arange(place.start, place.stop, dtype=np.int64)
            features = shard.features.astype(self.dtype, copy=False)
            if self.keep_invalid and shard.reasons:
                features = features.copy()
                features[~shard.valid] = np.nan
            elif shard.reasons:
                rows, features = rows[shard.valid], features[shard.valid]
            yield rows, features
            self.on_rows(place.stop, self.split.num_rows)
