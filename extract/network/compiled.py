"""Compiled forward passes: the network as one program for batches of one shape.

torch.compile joins the layers of a frozen network and folds its weights, which the convolutional
networks here repay two to four times over; vision transformers are matrix products already. The
features differ from those of the plain network by rounding, so a cache is of one way: its plan
records which. A program is for one size of batch: a smaller one is filled up, so that the features
of a row do not depend on what is left of a split. PyTorch keeps what it has compiled, so that the
next process that needs it compiles in a fraction of the time.

On a CPU the program runs in one thread, several of them side by side (`work.pipeline`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from clinit.errors import BackboneError

Compile = Literal["auto", "on", "off"]
Forward = Callable[[Float[Tensor, "batch 3 height width"]], Float[Tensor, "batch ..."]]
"""From normalised images to what is stored of them."""
LEAST_S = 60.0
"""Seconds of work below which `auto` does not compile: compiling takes 4 to 20."""
LEAST_GAIN = 1.05
"""How many times faster a program must be for `auto` to keep it."""
_ROUNDS = 3
"""Batches that are timed."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """How a network computes, and what the user may want to know of that."""

    forward: Forward | None
    """The program; None for the plain network."""
    note: str = ""


def compiled(forward: Forward, batch_size: int, device: torch.device) -> Forward:
    """Return `forward` as a program for batches of `batch_size`; it is compiled when first called.

    Any number of threads may call it.
    """
    options: dict[str, str | int | bool] = {"freezing": True, "cpp.threads": 1}
    if device.type == "cuda":
        options["triton.cudagraphs"] = True
    program = torch.compile(forward, dynamic=False, options=options)

    @torch.no_grad()
    def call(batch: Tensor) -> Tensor:
        missing = batch_size - len(batch)
        if missing:
            batch = pad(batch, (0, 0, 0, 0, 0, 0, 0, missing))
        found = program(batch.contiguous(memory_format=torch.channels_last))
        # The memory of a CUDA graph is that of its next call too.
        found = found.clone() if device.type == "cuda" else found
        return found[: len(found) - missing]

    return call


def choose_way(
    forward: Forward,
    wanted: Compile,
    batch: Float[Tensor, "batch 3 height width"],
    images: int,
    threads: int,
) -> Way:
    """Return how `images` are best computed: what `wanted` says, or what pays.

    Args:
        forward: The plain network.
        wanted: `auto` compiles if the plain network would take `LEAST_S`, and keeps the program
            if it is `LEAST_GAIN` times faster.
        batch: A whole batch of normalised images, on the device of the network.
        images: Images that are left.
        threads: Batches that are computed side by side.

    Raises:
        BackboneError: If the program that is asked for cannot be compiled.
    """
    if wanted == "off":
        return Way(None)
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        plain_s = 0.0
        if wanted == "auto":
            plain_s = pool.submit(seconds_of, forward, batch).result()
            left_s = images * plain_s / len(batch) / threads
            if left_s < LEAST_S:
                return Way(None)
        program = compiled(forward, len(batch), batch.device)
        try:
            began = time.perf_counter()
            pool.submit(program, batch).result()
            compile_s = time.perf_counter() - began
            compiled_s = pool.submit(seconds_of, program, batch).result()
        except Exception as error:  # of a compiler that is missing, or of one of many passes
            why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            if wanted == "on":
                raise BackboneError(
                    f"the network cannot be compiled: {why}",
                    remedy="Install a C++ compiler (g++), or leave out `--compile on`.",
                ) from error
            return Way(None, f"computed without compilation, which failed: {why}")
    if wanted == "auto" and plain_s < LEAST_GAIN * compiled_s:
        times = plain_s / compiled_s
        return Way(None, f"computed without compilation: compiled it is {times:.2g} times as fast")
    gain = f", {plain_s / compiled_s:.2g} times as fast" if plain_s else ""
    return Way(program, f"compiled in {compile_s:.0f} s{gain}")


@torch.no_grad()
def seconds_of(forward: Forward, batch: Float[Tensor, "batch 3 height width"]) -> float:
    """Return the shortest time of a few calls, after one that counts for nothing."""
    times = []
    for _ in range(1 + _ROUNDS):
        began = time.perf_counter()
        forward(batch)
        if batch.device.type == "cuda":
            torch.cuda.synchronize(batch.device)
        times.append(time.perf_counter() - began)
    return min(times[1:])
