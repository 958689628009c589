"""Read, decode and resize images by threads, a batch at a time and in order.

Threads suffice: reading, decoding and resizing release the interpreter lock. Nothing is pickled
and no process is left behind by a killed run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from clinit.errors import ImageError
from clinit.extract.augment import View
from clinit.extract.decode import decode, read_image_file
from clinit.extract.transform import Transform

_BATCHES_AHEAD = 3


@dataclass(frozen=True, slots=True, eq=False)
class ImageBatch:
    """Pixels of consecutive rows; those of an unreadable image are zero."""

    rows: range
    pixels: UInt8[Tensor, "batch 3 height width"]
    reasons: dict[int, str]
    """Why an image cannot be read, by row of the manifest."""
    read_s: float
    """Seconds of reading, summed over the threads."""
    decode_s: float
    """Seconds of decoding and resizing, summed over the threads."""


def load_batches(
    root: Path,
    paths: Sequence[str],
    batches: Sequence[range],
    transform: Transform,
    *,
    workers: int,
    pin_memory: bool = False,
    view: View | None = None,
) -> Generator[ImageBatch]:
    """Yield the images of `batches` (ranges of indices into `paths`) in order.

    They go through `transform`, or are random crops where a `view` is given.

    Raises:
        ManifestError: If the folder of an image has vanished or the storage fails.
    """
    height, width = transform.crop

    def to_input(image: Tensor, row: int) -> Tensor:
        return transform.to_input(image) if view is None else view.to_input(image, row)

    def submit(rows: range) -> tuple[range, Tensor, list[Future[tuple[str | None, float, float]]]]:
        shape = (len(rows), 3, height, width)
        pixels = torch.zeros(shape, dtype=torch.uint8, pin_memory=pin_memory)
        jobs = [
            pool.submit(_load_into, pixels[i], root / paths[row], root, to_input, row)
            for i, row in enumerate(rows)
        ]
        return rows, pixels, jobs

    pool = ThreadPoolExecutor(workers, "decode", initializer=torch.set_num_threads, initargs=(1,))
    try:
        waiting = deque(map(submit, batches[:_BATCHES_AHEAD]))
        for following in [*batches[_BATCHES_AHEAD:], *[None] * _BATCHES_AHEAD]:
            if not waiting:
                return
            rows, pixels, jobs = waiting.popleft()
            results = [job.result() for job in jobs]
            if following is not None:
                waiting.append(submit(following))
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


def _load_into(
    target: Tensor, path: Path, root: Path, to_input: Callable[[Tensor, int], Tensor], row: int
) -> tuple[str | None, float, float]:
    """Fill `target` with the pixels of one image; return its problem, and the seconds it took."""
    started = read = time.perf_counter()
    reason = None
    try:
        content = read_image_file(path, root)
        read = time.perf_counter()
        target.copy_(to_input(decode(content), row))
    except ImageError as error:
        reason = str(error)
    return reason, read - started, time.perf_counter() - read
