"""Which splits of feature caches stay on disk, because memory does not hold them all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from clinit.errors import MachineError
from clinit.extract.cache import CacheSplit
from clinit.extract.shard_rows import largest_shard
from clinit.headtrain.memory import HostMemory, peak_note
from clinit.words import size_text


def feature_bytes(split: CacheSplit) -> int:
    """Return what the features of a split take in memory."""
    return split.num_valid * split.dim * np.dtype(split.dtype).itemsize


def left_on_disk(splits: Sequence[CacheSplit], memory: HostMemory) -> set[CacheSplit]:
    """Return the splits that do not fit into memory, once the smaller ones are there.

    Raises:
        CacheError: If a shard of such a split is missing.
        MachineError: If memory does not hold one of its shards.
    """
    ascending = sorted(splits, key=feature_bytes)
    ends = itertools.accumulate(map(feature_bytes, ascending))
    left = [split for split, end in zip(ascending, ends, strict=True) if end > memory.loaded_bytes]
    for split in reversed(left):
        check_shards(split, memory)
    return set(left)


def check_shards(split: CacheSplit, memory: HostMemory) -> int:
    """Return the size of the largest shard of a split in bytes, which must fit into memory.

    Raises:
        CacheError: If a shard is missing.
        MachineError: If it does not fit.
    """
    largest = largest_shard(split)
    if largest > memory.size_bytes:
        raise MachineError(
            f"a shard of {split.path} takes {size_text(largest)} and is read as a whole to verify"
            f" it, but features may take only {memory}",
            remedy="Give more memory (--memory; in Python, memory=)."
            if memory.is_asked
            else "Free some memory, or extract the features again with a smaller --shard-rows.",
        )
    return largest


def disk_note(split: CacheSplit, memory: HostMemory) -> str:
    """Return the note that a split stays on disk."""
    return (
        f"{split.path} stays on disk: its {size_text(feature_bytes(split))} of features and copies"
        f" of them, beside the others, could take more than {memory}; rows are read when they are"
        " needed"
    )


def shard_notes(split: CacheSplit, memory: HostMemory) -> list[str]:
    """Return what is to be said of a split that is read once, shard by shard.

    Raises:
        CacheError: If a shard is missing.
        MachineError: If memory does not hold one of its shards.
    """
    largest = check_shards(split, memory)
    if feature_bytes(split) <= memory.size_bytes:
        return []
    return [
        f"{split.path} holds {size_text(feature_bytes(split))} of features, more than {memory}:"
        " they are read shard by shard",
        peak_note(2 * largest),
    ]
