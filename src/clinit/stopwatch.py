"""Measure wall time, in total and by named phase."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Stopwatch:
    """Measures the seconds since its creation, and the seconds spent in named phases."""

    def __init__(
        self, device: torch.device | None = None, seconds: dict[str, float] | None = None
    ) -> None:
        """Start.

        Args:
            device: Device of the measured work. If it is a CUDA device, each phase ends with
                waiting for it, so that work queued in a phase counts in this phase.
            seconds: Seconds of each phase so far, to which more are added.
        """
        self._device = device
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = defaultdict(float) if seconds is None else seconds
        """Seconds of each phase."""

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to the phase `name`, even if the block raises an error."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, started)

    def add(self, name: str, started: float, *, waits: bool = True) -> None:
        """Add the seconds since `started`; `waits`: once the device has done what is queued."""
        if waits and self._device is not None and self._device.type == "cuda":
            import torch  # not above, because reading and decoding images need no PyTorch

            torch.cuda.synchronize(self._device)
        self.seconds[name] += time.perf_counter() - started
