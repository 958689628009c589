"""Sizes, device and timing that the parts of `benchmarks/gpu.py` share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import heads_workload
import top_blocks_workload
import torch
from harness import settle

Lines = Iterator[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The size of the measurements."""

    model: str
    """Network of timm, with random weights."""
    images: int
    """Images of a pass over pixels in memory."""
    batch: int
    """Images per forward pass of an extraction."""
    photographs: top_blocks_workload.Size
    heads: heads_workload.Size
    tasks: int
    iterations: int
    """Steps per task of the heads."""
    banks: tuple[int, ...]
    buffer: int
    rows: int
    """Images per training batch, of heads and of top blocks."""
    rank: int
    top_steps: int
    """Steps per round of top blocks."""
    square: int
    """Side of the square matrices in products."""
    copied: int
    """Bytes per copy."""
    round_s: float
    """Least seconds of a round of a single measurement."""


PAPER = Extent(
    model="convnextv2_femto",
    images=16_384,
    batch=256,
    photographs=top_blocks_workload.Size(
        base=1000, new=365, base_train=4, base_val=1, new_train=2, new_val=1, distinct=64
    ),
    heads=heads_workload.Size(base_rows=1_281, new_rows=5_000),
    tasks=5,
    iterations=600,
    banks=(1, 9, 45),
    buffer=24_000,
    rows=256,
    rank=48,
    top_steps=20,
    square=8192,
    copied=2**30,
    round_s=0.2,
)
"""As many rows as ImageNet-1K (1.28 million) and Places365 (1.8 million), in equal classes."""
TINY = Extent(
    model="test_convnext",
    images=12,
    batch=4,
    photographs=top_blocks_workload.Size(
        **{"base": 4, "new": 2, "base_train": 2, "base_val": 1, "new_train": 4, "new_val": 1},
        photograph=(80, 100),
        distinct=4,
    ),
    heads=heads_workload.Size(
        base=6, new=4, dim=8, base_rows=12, new_rows=12, base_tests=2, new_tests=2
    ),
    tasks=2,
    iterations=4,
    banks=(1, 2),
    buffer=24,
    rows=8,
    rank=2,
    top_steps=1,
    square=64,
    copied=2**16,
    round_s=0.001,
)
"""A rehearsal that runs all parts; its numbers mean nothing."""
SCALES = {"paper": PAPER, "tiny": TINY}


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """Device, size and folder of the measurements."""

    device: torch.device
    scale: Extent
    folder: Path
    """Folder of the workloads."""
    workers: int
    """Threads that decode."""
    say: Callable[[str], None]
    """Prints progress."""
    limits: dict[str, float] = field(default_factory=dict)
    """Limits of the device by name, filled by the first part."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """Return the precisions in which heads are trained on this device."""
        return ("float32", "tf32", "bf16") if self.device.type == "cuda" else ("float32",)

    def seconds(self, run: Callable[[], Any], rounds: int = 3) -> float:
        """Return the seconds of a call if many are queued: the median of some rounds."""
        run()
        times, calls = [], 1
        while len(times) < rounds:
            settle(str(self.device))
            started = time.perf_counter()
            for _ in range(calls):
                run()
            settle(str(self.device))
            found = time.perf_counter() - started
            if found < self.scale.round_s:
                calls *= 2
            else:
                times.append(found / calls)
        return statistics.median(times)

    def heads_options(self, **own: Any) -> dict[str, Any]:
        """Return the options of a contender of `benchmarks/heads.py`."""
        return {
            **{"tasks": self.scale.tasks, "buffer": self.scale.buffer, "batch": self.scale.rows},
            **{"seed": 0, "lr": 1e-3, "weight_decay": 0.05, "device": str(self.device)},
            **own,
        }


def peak_gigabytes(device: torch.device) -> str:
    """Return the peak memory of tensors on a CUDA device since the last reset."""
    if device.type != "cuda":
        return ""
    return f"{torch.cuda.max_memory_allocated(device) / 1e9:.2f}"
