"""Compute features from images: threads decode, the device gets the pixels and computes.

Threads suffice, because reading, decoding and resizing release the interpreter lock. So nothing is
pickled, and a killed run leaves no processes behind.

On the CPU several batches are computed at a time, each by one thread. Threads that share a batch
would wait for each other at every layer, and longest if decoders or other programs take the
processor of one thread. Some kernels also round differently with several threads; with one, the
bits are the same on any number of processors.

On a CUDA device three things overlap: the host decodes a batch, the previous batch is copied to the
device, and perhaps decoded there, on its own stream, and the network computes the batch before
that. The host waits for the features of a batch only after it has launched the next batch. Kernels
and inputs, and so the bits, are the same as without overlap.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clinit.errors import ImageError, MachineError
from clinit.extract.dataset import decode
from clinit.extract.dataset.images import Images
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.network.resample import resample
from clinit.extract.network.transform import Transform, View
from clinit.machine import Stopwatch, free_memory, out_of_memory

PHASES = ("read", "decode", "transfer", "forward", "write")


class Timing(Stopwatch):
    """Seconds of the main thread, by the phase that it computed or waited for (`PHASES`).

    Other threads read and decode; the main thread's time of waiting for them is divided between
    `read` and `decode` in proportion to their work. Its time of waiting for a CUDA device is
    divided between `transfer` and `forward` in proportion to the device's seconds. Work that
    overlaps with a slower phase counts little, so the largest share limits the speed.
    """

    def __init__(self) -> None:
        super().__init__()  # without a device, because a stopwatch that waits undoes the overlap
        self.seconds.update(dict.fromkeys(PHASES, 0.0))
        self.retreats = Counter[str]()

    def add_wait(self, waited_s: float, **work: float) -> None:
        """Divide seconds of waiting for a batch between phases, in proportion to their work.

        Args:
            waited_s: Seconds that the main thread waited.
            work: Work of each phase, in any unit; if all is 0, the last phase gets the seconds.
        """
        total = sum(work.values())
        shares = [each / total if total > 0 else 0.0 for each in work.values()]
        shares[-1] = 1 - sum(shares[:-1])
        for phase, share in zip(work, shares, strict=True):
            self.seconds[phase] += waited_s * share

    @property
    def busy(self) -> float:
        """Sum of all phases in seconds."""
        return sum(self.seconds.values())

    def shares(self) -> dict[str, float]:
        """Return each phase's share of the sum of all phases, in [0, 1]."""
        busy = self.busy
        return {name: seconds / busy if busy else 0.0 for name, seconds in self.seconds.items()}

    @property
    def bound(self) -> str:
        """The phase with the largest share."""
        return max(self.seconds, key=lambda name: self.seconds[name])


_BATCHES_AHEAD = 3
CHECK_EVERY = 1000
"""One image of so many is decoded by the CPU, too, and the images after it until one agrees."""
_TOO_WRONG = 3
REFUSED = "JPEG files were decoded by the CPU, because the GPU refused them or got them wrong"
HALVED = "batches were computed in halves, because the GPU's memory was too small"


_TOGETHER = 4
"""Maximum number of images that a thread prepares in one task: a task costs as much as reading."""


class _Image(NamedTuple):
    """Result of preparing an image: why it is bad, its bytes if the device decodes it, seconds."""

    reason: str | None
    encoded: decode.ForDevice | None
    read_s: float
    decode_s: float


@dataclass(frozen=True, slots=True, eq=False)
class ImageBatch:
    """Pixels of some rows; an unreadable image is all zeros."""

    rows: Sequence[int]
    pixels: UInt8[Tensor, "batch 3 height width"]
    reasons: dict[int, str]
    """Why an image cannot be read, by row of the manifest."""
    read_s: float
    """Seconds of reading, summed over threads."""
    decode_s: float
    """Seconds of decoding and resizing, summed over threads."""
    finish: Callable[[UInt8[Tensor, "batch 3 height width"]], None] | None = None
    """Decodes on the device, into the batch's pixels there, images that the host has left."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoder:
    """Decodes images in threads, to the input of a network."""

    images: Images
    """The content of all images."""
    transform: Transform
    """The transform of the images, used without `view`."""
    workers: int
    """Number of threads."""
    max_pixels: int = MAX_PIXELS
    """Images with more pixels, decoded or resized, are bad images."""
    pin_memory: bool = False
    """Whether the batches are for a CUDA device."""
    view: View | None = None
    """The view whose random crops replace `transform`'s centre crops, if any."""
    for_device: bool = False
    """Whether a CUDA device decodes the images that it can."""
    retreats: Counter[str] = field(default_factory=Counter)
    """Counts images that the device has left to the CPU (`REFUSED`)."""
    look: Callable[[int, bytes], object] | None = None
    """Called with row and content of each image that is read, by several threads."""

    def batches(self, rows: Iterable[Sequence[int]]) -> Generator[ImageBatch]:
        """Yield the batches in order, from the row numbers of each; three are loaded ahead.

        Raises:
            ManifestError: If the folder of an image has vanished, or a file differs from the
                manifest.
            MachineError: If memory, permissions or file handles are missing, or the storage fails.
        """
        one = torch.set_num_threads
        pool = ThreadPoolExecutor(self.workers, "decode", initializer=one, initargs=(1,))
        try:
            asked = iter(rows)
            begin = partial(self._begin, pool)
            waiting = deque(map(begin, islice(asked, _BATCHES_AHEAD)))
            while waiting:
                numbers, pixels, jobs = waiting.popleft()
                results = [image for job in jobs for image in job.result()]
                waiting.extend(map(begin, islice(asked, 1)))
                pairs = zip(numbers, results, strict=True)
                reasons = {row: found.reason for row, found in pairs if found.reason is not None}
                places = enumerate(each.encoded for each in results)
                encoded = {place: content for place, content in places if content is not None}
                read_s = sum(each.read_s for each in results)
                decode_s = sum(each.decode_s for each in results)
                finish = partial(self._finish, numbers, reasons, encoded) if encoded else None
                yield ImageBatch(numbers, pixels, reasons, read_s, decode_s, finish)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _begin(
        self, pool: ThreadPoolExecutor, rows: Sequence[int]
    ) -> tuple[Sequence[int], Tensor, list[Future[list[_Image]]]]:
        shape, step = (len(rows), 3, *self.transform.crop), len(rows) // self.workers
        step = max(1, min(_TOGETHER, step))
        with _machine_errors(self.images, rows[0]):
            pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self.pin_memory)
            parts = [slice(start, start + step) for start in range(0, len(rows), step)]
            jobs = [
                pool.submit(lambda part: [*map(self._load, pixels[part], rows[part])], part)
                for part in parts
            ]
        return rows, pixels, jobs

    def _load(self, target: Tensor, row: int) -> _Image:
        """Fill `target` with the pixels of one image, unless the device will decode it."""
        watch, reason, encoded = Stopwatch(), None, None
        with _machine_errors(self.images, row):
            try:
                with watch.phase("read"):
                    content = self.images.read(row)
                    if self.look is not None:
                        self.look(row, content)
                with watch.phase("decode"):
                    if self.for_device:
                        encoded = decode.for_device(content, max_pixels=self.max_pixels)
                    if encoded is None:
                        image = decode.decode(content, max_pixels=self.max_pixels)
                        if self.view is None:
                            self.transform.check_resized(image.shape[1:], self.max_pixels)
                            target.copy_(self.transform.to_input(image))
                        else:
                            target.copy_(self.view.to_input(image, row))
            except ImageError as error:
                reason = str(error)
                target.zero_()
        return _Image(reason, encoded, watch.seconds["read"], watch.seconds["decode"])

    def _finish(
        self,
        rows: Sequence[int],
        reasons: dict[int, str],
        encoded: Mapping[int, decode.ForDevice],
        pixels: Tensor,
    ) -> None:
        """Let the device decode; the CPU decodes what it refuses, and looks at a sample."""
        files, limit, wrong = iter(encoded.items()), self.max_pixels, 0
        with _machine_errors(self.images, rows[0]):
            for images in decode.decode_on(pixels.device, [*encoded.values()]):
                ready = dict[int, Tensor]()
                for image, (place, file) in zip(images, files, strict=False):
                    row = rows[place]
                    try:
                        if image is None or row % CHECK_EVERY == 0 or wrong:
                            expected = decode.decode(file.content, max_pixels=limit)
                            is_wrong = image is not None and decode.differs(image, expected)
                            wrong = wrong + 1 if is_wrong else 0
                            if wrong == _TOO_WRONG:
                                place_of = self.images.place(row)
                                raise decode.wrong_decoder(f"gives wrong pixels of {place_of}")
                            if image is None or is_wrong:
                                self.retreats[REFUSED] += 1
                                image = expected.to(pixels.device)
                        if self.view is None:
                            self.transform.check_resized(image.shape[1:], self.max_pixels)
                        ready[place] = image
                    except ImageError as error:
                        reasons[row] = str(error)
                        pixels[place].zero_()
                self._fit(ready, rows, pixels)

    def _fit(self, images: Mapping[int, Tensor], rows: Sequence[int], pixels: Tensor) -> None:
        """Resize and crop images on a device, together: a launch takes as long as an image."""
        given: Transform | View = self.transform if self.view is None else self.view
        spans = [
            given.spans(each.shape[1], each.shape[2], rows[place]) for place, each in images.items()
        ]
        crop, places = self.transform.crop, np.array([*images])
        for chosen, inputs in resample([*images.values()], spans, crop, given.interpolation):
            pixels[torch.from_numpy(places[chosen]).to(pixels.device)] = inputs


@contextmanager
def _machine_errors(images: Images, row: int) -> Iterator[None]:
    """Turn errors of the machine while it prepares an image into a `MachineError`."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if out_of_memory(error):
            raise decode.memory_error(images.place(row)) from error
        if isinstance(error, RuntimeError):
            raise
        raise MachineError(  # a decoder lacks a library, such as the one for HEIC
            f"cannot decode {images.place(row)}: {error}",
            remedy="Install the missing library, then run the same command again: `clinit extract`"
            " resumes.",
        ) from error


IN_FLIGHT = 2
"""Batches on the device at a time: the network computes one while the next is copied."""
_BYTES_PER_SAMPLE = 192
"""Upper bound of the memory of a forward pass, per channel of a pixel: 48 times the normalised
batch. Wide convolutional networks need less (EfficientNet-B7: 36 times)."""

Compute = Callable[[UInt8[Tensor, "batch 3 height width"]], Float[Tensor, "batch ..."]]
"""Computes stored values from pixels, both on the device."""


def features_of(
    batches: Generator[ImageBatch], compute: Compute, device: torch.device, timing: Timing
) -> Generator[tuple[ImageBatch, Float[Tensor, "batch ..."]]]:
    """Compute the features of batches; yield each batch with its features on the host, in order.

    Args:
        batches: Batches, none larger than the first; closed at the end, while threads can still be
            joined. For a CUDA device, their pixels must be in pinned memory.
        compute: Computes the features; to allow overlap, it must not wait for the device.
        device: The device that computes.
        timing: Gets the seconds of the phases `transfer` and `forward`.
    """
    with closing(batches):
        if device.type == "cuda":
            yield from overlapped(batches, compute, device, timing)
        else:
            yield from side_by_side(batches, compute, timing)


def side_by_side(
    batches: Iterable[ImageBatch], compute: Compute, timing: Timing
) -> Generator[tuple[ImageBatch, Float[Tensor, "batch ..."]]]:
    """Yield each batch with its features, in order, computed on the CPU.

    As many batches are computed at a time as PyTorch has threads, or fewer if memory is short. All
    of them have finished when the generator ends, even by an error.
    """
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        return
    fitting = free_memory() // (_BYTES_PER_SAMPLE * max(1, first.pixels.numel()))
    threads = max(1, min(torch.get_num_threads(), fitting))
    flights: deque[tuple[ImageBatch, Future[Tensor]]] = deque()

    def landed() -> tuple[ImageBatch, Tensor]:
        batch, features = flights.popleft()
        with timing.phase("forward"):
            return batch, features.result()

    pool = ThreadPoolExecutor(threads, "forward", initializer=torch.set_num_threads, initargs=(1,))
    try:
        for batch in chain([first], remaining):
            flights.append((batch, pool.submit(compute, batch.pixels)))
            if len(flights) > threads:  # one batch more than threads, so that no thread is idle
                yield landed()
        while flights:
            yield landed()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def overlapped(
    batches: Iterable[ImageBatch], compute: Compute, device: torch.device, timing: Timing
) -> Generator[tuple[ImageBatch, Float[Tensor, "batch ..."]]]:
    """Yield each batch with its features, while a CUDA device works on the next batches.

    The device has finished all batches when the generator ends, even by an error.
    """
    lanes = _Lanes(compute, device, timing)
    coming: deque[tuple[ImageBatch, Future[_Arrival]]] = deque()
    flights: deque[_Flight] = deque()
    try:
        for batch in batches:
            coming.append((batch, lanes.send(batch)))
            if len(coming) > 1:
                flights.append(lanes.launch(*coming.popleft()))
            if len(flights) == IN_FLIGHT:
                yield lanes.land(flights.popleft())
        flights.extend(lanes.launch(*each) for each in coming)
        while flights:
            yield lanes.land(flights.popleft())
    finally:
        lanes.settle()


class _Arrival(NamedTuple):
    """Pixels on the device, complete after `arrived`."""

    pixels: UInt8[Tensor, "batch 3 height width"]
    sent: Any
    """A CUDA event, as is the next field."""
    arrived: Any
    decode_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A batch under way; it keeps the host memory alive that the copies read and write."""

    batch: ImageBatch
    features: Float[Tensor, "batch ..."]
    """Features in pinned memory, complete only after `done`."""
    arrival: _Arrival
    begun: Any
    """A CUDA event, as are the following fields."""
    computed: Any
    done: Any


class _Lanes:
    """The two streams of a device, and the device memory for pixels.

    A thread of its own copies pixels and lets the device decode, because the decoder waits for its
    stream; the calling thread launches the network on the other stream.
    """

    def __init__(self, compute: Compute, device: torch.device, timing: Timing) -> None:
        self._compute, self._device, self._timing = compute, device, timing
        self._copies = torch.cuda.Stream(device)
        self._work = torch.cuda.current_stream(device)
        one = torch.set_num_threads
        self._sender = ThreadPoolExecutor(1, "send", initializer=one, initargs=(1,))
        # Used in turns and never freed before `settle`, because PyTorch could give freed memory to
        # another stream while this one still reads it.
        self._pixels: list[Tensor] = []
        self._sent = 0

    def send(self, batch: ImageBatch) -> Future[_Arrival]:
        """Begin to copy a batch to the device, and to decode there what the host has left.

        The batch that was sent `IN_FLIGHT` + 1 calls earlier must have landed: its memory is
        reused.
        """
        if not self._pixels:
            shape, dtype = batch.pixels.shape, batch.pixels.dtype
            self._pixels = [
                torch.empty(shape, dtype=dtype, device=self._device) for _ in range(IN_FLIGHT + 1)
            ]
            # Earlier work that is still queued may use this memory.
            self._copies.wait_stream(self._work)
        place = self._pixels[self._sent % len(self._pixels)][: len(batch.pixels)]
        self._sent += 1
        return self._sender.submit(self._arrive, batch, place)

    def _arrive(self, batch: ImageBatch, pixels: Tensor) -> _Arrival:
        sent, arrived = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        watch = Stopwatch()
        with torch.cuda.stream(self._copies):
            sent.record(self._copies)
            pixels.copy_(batch.pixels, non_blocking=True)
            if batch.finish is not None:
                with watch.phase("decode"):
                    batch.finish(pixels)
            arrived.record(self._copies)
        return _Arrival(pixels, sent, arrived, watch.seconds["decode"])

    def launch(self, batch: ImageBatch, coming: Future[_Arrival]) -> _Flight:
        """Queue the forward pass of a batch and the copy of its features; do not wait for them."""
        waited = Stopwatch()
        arrival = coming.result()
        self._timing.add_wait(waited.total, decode=arrival.decode_s, transfer=0.0)
        begun, computed = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # `blocking` waits asleep instead of spinning on a core, which the decoders need.
        done = torch.cuda.Event(enable_timing=True, blocking=True)
        with self._timing.phase("forward"), torch.cuda.stream(self._work):
            self._work.wait_event(arrival.arrived)
            begun.record(self._work)
            found = self._computed(arrival.pixels)
            computed.record(self._work)
            features = torch.empty_like(found, device="cpu", pin_memory=True)
            features.copy_(found, non_blocking=True)
            done.record(self._work)
        return _Flight(batch, features, arrival, begun, computed, done)

    def land(self, flight: _Flight) -> tuple[ImageBatch, Float[Tensor, "batch ..."]]:
        """Wait for the features of a batch."""
        waited = Stopwatch()
        flight.done.synchronize()
        waited_s = waited.total
        there = flight.arrival.sent.elapsed_time(flight.arrival.arrived)
        back = flight.computed.elapsed_time(flight.done)
        forward = flight.begun.elapsed_time(flight.computed)
        self._timing.add_wait(waited_s, transfer=there + back, forward=forward)
        return flight.batch, flight.features

    def _computed(self, pixels: UInt8[Tensor, "batch 3 height width"]) -> Tensor:
        try:
            return self._compute(pixels)
        except torch.OutOfMemoryError:
            if len(pixels) == 1:
                raise
        self._timing.retreats[HALVED] += 1
        torch.cuda.empty_cache()
        return torch.cat([self._computed(half) for half in pixels.chunk(2)])

    def settle(self) -> None:
        """Wait until the thread and the device have finished."""
        self._sender.shutdown(wait=True, cancel_futures=True)
        self._copies.synchronize()
        self._work.synchronize()
