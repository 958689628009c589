"""Batches of pixels to features: to the device, through the network and back.

On the CPU several batches are computed at a time, each by one thread. Threads that share a batch
wait for each other at every layer, and longest where decoders or other programs have taken the
processor of one of them; those with a batch each never wait. Some kernels also round according to
the number of their threads: with one, the bits are the same on any number of processors.

On a CUDA device three things happen at a time: a batch goes over on a stream of its own while the
network works on the batch before, and the host decodes the next one. It waits for the features of
a batch when the batch after it is under way, never sooner. `in_turn` launches the same kernels on
the same numbers one after the other: the bits are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clinit.extract.work.loader import ImageBatch
from clinit.extract.work.timing import Timing
from clinit.machine import free_memory
from clinit.stopwatch import Stopwatch

IN_FLIGHT = 2
"""Batches whose pixels are on the device: one that is computed, one that arrives."""
_BYTES_PER_SAMPLE = 192
"""Memory of a forward pass per sample (one channel of one pixel) of its batch: 48 times the
normalised batch, more than wide convolutional networks take (EfficientNet-B7: 36 times)."""

Compute = Callable[[UInt8[Tensor, "batch 3 height width"]], Float[Tensor, "batch ..."]]
"""From pixels on the device to what is stored of them, on the device."""


def features_of(
    batches: Iterable[ImageBatch], compute: Compute, device: torch.device, timing: Timing
) -> Generator[tuple[ImageBatch, Float[Tensor, "batch ..."]]]:
    """Yield each batch with its features on the host, in order.

    Args:
        batches: Batches, none larger than the first; on a CUDA device their pixels are in pinned
            memory.
        compute: Must not wait for the device, or nothing overlaps.
        device: Where to compute.
        timing: Adds up the phases `transfer` and `forward`.
    """
    if device.type == "cuda":
        return overlapped(batches, compute, device, timing)
    return side_by_side(batches, compute, timing)


def side_by_side(
    batches: Iterable[ImageBatch], compute: Compute, timing: Timing
) -> Generator[tuple[ImageBatch, Float[Tensor, "batch ..."]]]:
    """Yield each batch with its features, in order; as many at a time as PyTorch has threads.

    However it ends, nothing is left in flight.
    """
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        return
    threads = forward_threads(first.pixels.numel())
    flights: deque[tuple[ImageBatch, Future[Tensor]]] = deque()

    def landed() -> tuple[ImageBatch, Tensor]:
        batch, features = flights.popleft()
        with timing.phase("forward"):
            return batch, features.result()

    pool = ThreadPoolExecutor(threads, "forward", initializer=torch.set_num_threads, initargs=(1,))
    try:
        for batch in chain([first], remaining):
            flights.append((batch, pool.submit(compute, batch.pixels)))
            if len(flights) > threads:  # one waits, so that no thread ever does
                yield landed()
        while flights:
            yield landed()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def forward_threads(samples: int) -> int:
    """Return how many batches of so many samples are computed at a time on the CPU.

    As many as PyTorch has threads, fewer where the memory does not suffice for all.
    """
    fitting = free_memory() // (_BYTES_PER_SAMPLE * max(1, samples))
    return max(1, min(torch.get_num_threads(), fitting))


def in_turn(
    batches: Iterable[ImageBatch], compute: Compute, device: torch.device, timing: Timing
) -> Generator[tuple[ImageBatch, Float[Tensor, "batch ..."]]]:
    """Yield each batch with its features; nothing overlaps."""
    for batch in batches:
        with timing.phase("transfer"):
            pixels = batch.pixels.to(device)
        with timing.phase("forward"):  # .cpu() waits for the device
            features = compute(pixels).cpu()
        yield batch, features


def overlapped(
    batches: Iterable[ImageBatch], compute: Compute, device: torch.device, timing: Timing
) -> Generator[tuple[ImageBatch, Float[Tensor, "batch ..."]]]:
    """Yield each batch with its features, while the next one is under way on a CUDA device.

    However it ends, nothing is left in flight.
    """
    lanes = _Lanes(compute, device, timing)
    flights: deque[_Flight] = deque()
    try:
        for batch in batches:
            flights.append(lanes.launch(batch))
            if len(flights) == IN_FLIGHT:
                yield lanes.land(flights.popleft())
        while flights:
            yield lanes.land(flights.popleft())
    finally:
        lanes.settle()


@runtime_checkable
class _Mark(Protocol):
    """A CUDA event."""

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any) -> float: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A batch under way, with all of the host's memory that its copies read and write."""

    batch: ImageBatch
    features: Float[Tensor, "batch ..."]
    """Features in pinned memory, to be read after `done`."""
    sent: _Mark
    arrived: _Mark
    begun: _Mark
    computed: _Mark
    done: _Mark


class _Lanes:
    """The two streams of a device, and the memory for the pixels that go over."""

    def __init__(self, compute: Compute, device: torch.device, timing: Timing) -> None:
        self._compute, self._device, self._timing = compute, device, timing
        self._copies = torch.cuda.Stream(device)
        self._work = torch.cuda.current_stream(device)
        # Used in turns, and held until all is settled: what is dropped could be given to another
        # stream while this one reads it.
        self._pixels: list[Tensor] = []
        self._launched = 0

    def launch(self, batch: ImageBatch) -> _Flight:
        """Queue the copy of a batch, its forward pass and the way back; wait for nothing.

        The flight that had its place before must have landed.
        """
        sent, arrived, begun, computed = (torch.cuda.Event(enable_timing=True) for _ in range(4))
        # Threads decode meanwhile: sleep, where waiting would otherwise spin on a core.
        done = torch.cuda.Event(enable_timing=True, blocking=True)
        with self._timing.phase("transfer"):
            pixels = self._place(batch)
            with torch.cuda.stream(self._copies):
                sent.record(self._copies)
                pixels.copy_(batch.pixels, non_blocking=True)
                arrived.record(self._copies)
        with self._timing.phase("forward"), torch.cuda.stream(self._work):
            self._work.wait_event(arrived)
            begun.record(self._work)
            found = self._compute(pixels)
            computed.record(self._work)
            features = torch.empty_like(found, device="cpu", pin_memory=True)
            features.copy_(found, non_blocking=True)
            done.record(self._work)
        return _Flight(batch, features, sent, arrived, begun, computed, done)

    def land(self, flight: _Flight) -> tuple[ImageBatch, Float[Tensor, "batch ..."]]:
        """Wait for the features of a batch."""
        waited = Stopwatch()
        flight.done.synchronize()
        waited_s = waited.total
        there = flight.sent.elapsed_time(flight.arrived)
        back = flight.computed.elapsed_time(flight.done)
        forward = flight.begun.elapsed_time(flight.computed)
        self._timing.add_wait(waited_s, transfer=there + back, forward=forward)
        return flight.batch, flight.features

    def settle(self) -> None:
        """Wait until the device does nothing of this any more."""
        self._copies.synchronize()
        self._work.synchronize()

    def _place(self, batch: ImageBatch) -> UInt8[Tensor, "batch 3 height width"]:
        """Return the memory of the batch's pixels on the device."""
        if not self._pixels:
            shape, dtype = batch.pixels.shape, batch.pixels.dtype
            self._pixels = [
                torch.empty(shape, dtype=dtype, device=self._device) for _ in range(IN_FLIGHT)
            ]
            # Work that is still queued may have had this memory before.
            self._copies.wait_stream(self._work)
        place = self._pixels[self._launched % IN_FLIGHT]
        self._launched += 1
        return place[: len(batch.pixels)]
