"""Read, decode and resize images by threads, a batch at a time and in order.

Threads suffice: reading, decoding and resizing release the interpreter lock. Nothing is pickled
and no process is left behind by a killed run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from clinit.errors import ImageError, MachineError
from clinit.extract.dataset.decode import MAX_PIXELS, ImageSize, check_pixels, decode, memory_error
from clinit.extract.dataset.images import Images
from clinit.extract.network.transform import Transform
from clinit.extract.views import View
from clinit.machine import out_of_memory
from clinit.stopwatch import Stopwatch

_BATCHES_AHEAD = 3
_NOW = " after resizing"
_Loaded = Future[tuple[str | None, float, float]]
"""The problem of an image, and the seconds of reading and decoding it."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageBatch:
    """Pixels of some rows; those of an unreadable image are zero."""

    rows: Sequence[int]
    pixels: UInt8[Tensor, "batch 3 height width"]
    reasons: dict[int, str]
    """Why an image cannot be read, by row of the manifest."""
    read_s: float
    """Seconds of reading, summed over the threads."""
    decode_s: float
    """Seconds of decoding and resizing, summed over the threads."""


def load_batches(
    images: Images,
    batches: Iterable[Sequence[int]],
    transform: Transform,
    *,
    workers: int,
    max_pixels: int = MAX_PIXELS,
    pin_memory: bool = False,
    view: View | None = None,
) -> Generator[ImageBatch]:
    """Yield the images of `batches` (numbers of rows) in order.

    Args:
        images: Where the content of all images is.
        batches: Which of them to load, and in which batches; asked for three ahead.
        transform: What they go through, where no `view` is given.
        workers: Number of threads.
        max_pixels: What is larger, decoded or resized, is a bad image.
        pin_memory: Whether the batches are for a CUDA device.
        view: Random crops instead.

    Raises:
        ManifestError: If the folder of an image has vanished, or a file is not that of the
            manifest.
        MachineError: If memory, rights or open files are missing, or the storage fails.
    """
    height, width = transform.crop

    def to_input(image: Tensor, row: int) -> Tensor:
        if view is not None:
            return view.to_input(image, row)
        resized = transform.resized(image.shape[1], image.shape[2])
        check_pixels(ImageSize(resized[1], resized[0], resized[0] * resized[1]), max_pixels, _NOW)
        return transform.to_input(image)

    def load(target: Tensor, row: int) -> tuple[str | None, float, float]:
        """Fill `target` with the pixels of one image; return its problem and its seconds."""
        watch, reason = Stopwatch(), None
        try:
            with watch.phase("read"):
                content = images.read(row)
            with watch.phase("decode"):
                target.copy_(to_input(decode(content, max_pixels=max_pixels), row))
        except ImageError as error:
            reason = str(error)
        except (MemoryError, RuntimeError, OSError, ImportError) as error:
            _raise_machine_error(error, images.place(row))
            raise
        return reason, watch.seconds["read"], watch.seconds["decode"]

    def submit(rows: Sequence[int]) -> tuple[Sequence[int], Tensor, list[_Loaded]]:
        shape = (len(rows), 3, height, width)
        try:
            pixels = torch.zeros(shape, dtype=torch.uint8, pin_memory=pin_memory)
            jobs = [pool.submit(load, pixels[i], row) for i, row in enumerate(rows)]
        except (MemoryError, RuntimeError) as error:
            _raise_machine_error(error, images.place(rows[0]))
            raise
        return rows, pixels, jobs

    pool = ThreadPoolExecutor(workers, "decode", initializer=torch.set_num_threads, initargs=(1,))
    try:
        asked = iter(batches)
        waiting = deque(map(submit, islice(asked, _BATCHES_AHEAD)))
        while waiting:
            rows, pixels, jobs = waiting.popleft()
            results = [job.result() for job in jobs]
            waiting.extend(map(submit, islice(asked, 1)))
            reasons = {
                row: reason
                for row, (reason, _, _) in zip(rows, results, strict=True)
                if reason is not None
            }
            read_s = sum((result[1] for result in results), 0.0)
            decode_s = sum((result[2] for result in results), 0.0)
            yield ImageBatch(rows, pixels, reasons, read_s, decode_s)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _raise_machine_error(error: Exception, path: Path) -> None:
    """Raise what is to be said where the machine cannot prepare an image; else nothing."""
    if out_of_memory(error):
        raise memory_error(path) from error
    if isinstance(error, OSError | ImportError):  # of a decoder; HEIC needs a library of its own
        raise MachineError(
            f"cannot decode {path}: {error}",
            remedy="Install what is missing, then run the same command again: `clinit extract`"
            " resumes.",
        ) from error
