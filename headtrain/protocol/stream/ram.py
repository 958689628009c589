"""Place of features while a bank is trained: on its device, in host memory, or on disk.

A CUDA device reads rows fastest from its own memory. Features that would take more than a quarter
of its free memory stay in host memory, and the CPU gathers and copies their batches, because the
bank, its gradients and its moments need the rest.

Host memory contains the features of caches, and copies of the rows that a task reads and is tested
on. A row is in at most one copy: the rows of a start are freed before rows to train on are copied,
and the rows of a task before the next task. All features and copies together take at most twice the
size of the features (measured: 2.1 times, with numbers and labels). If they do not fit, the largest
splits stay on disk. Loaded splits then take at most half of the limit, and a copy at most a sixth;
there are at most three copies: rows of a task, its held-out rows, test rows. Rows that would take
more are read on demand.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from clinit.extract.cache.read import CacheSplit
from clinit.machine import free_memory
from clinit.words import size_text

DEVICE_SHARE = 0.25
"""Share of the free memory of a CUDA device that the test rows or a task's rows may take."""

LOADED_SHARE = 1 / 2
"""Share of host memory that the features of caches may take."""
COPIED_SHARE = 1 / 6
"""Share of host memory that a copy of rows may take if features are on disk."""

STEPS_AT_ONCE = 25
"""Updates whose rows are gathered together if they are not on the device."""


def copied_bytes(memory: int) -> int:
    """Return the maximum size in bytes of one copy of rows if features are on disk."""
    return int(COPIED_SHARE * memory)


def is_resident(size_bytes: int, device: torch.device) -> bool:
    """Return whether features of this size are kept on `device`."""
    return device.type != "cuda" or size_bytes <= DEVICE_SHARE * free_memory(device)


def feature_bytes(split: CacheSplit) -> int:
    """Return the bytes that the features of a split take in memory."""
    return split.num_valid * split.dim * np.dtype(split.dtype).itemsize


def left_on_disk(splits: Sequence[CacheSplit], memory: int) -> set[CacheSplit]:
    """Return the splits that do not fit into memory, once all smaller splits are loaded."""
    ascending = sorted(splits, key=feature_bytes)
    ends = itertools.accumulate(map(feature_bytes, ascending))
    most = int(LOADED_SHARE * memory)
    return {split for split, end in zip(ascending, ends, strict=True) if end > most}


def disk_note(split: CacheSplit, memory: int) -> str:
    """Return the note that a split stays on disk."""
    return (
        f"{split.path} stays on disk, which is slower: its {size_text(feature_bytes(split))} of"
        f" features, copies and other features could take more than {size_text(memory)} of memory"
    )
