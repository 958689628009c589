"""A step on a CUDA device, captured once and replayed: one launch instead of some thirty."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import torch

WARM_UP_STEPS = 3
"""Steps before the capture: libraries set themselves up and the optimizer makes its state,
which cannot be captured."""


class CaptureWarning(UserWarning):
    """A step could not be captured: it is launched call by call, which is slower."""


class Replayed:
    """Calls `step` a few times, then captures it and replays the capture.

    `step` must read and write the same device memory at each call and wait for nothing. Every
    call is one step, those before the capture too: nothing has to be put back.
    """

    def __init__(
        self, step: Callable[[], None], optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        self._step = step
        self._optimizers = tuple(optimizers)
        self._steps = 0
        self._next = self._warm_up

    def __call__(self) -> None:
        """Do one step."""
        if self._steps == WARM_UP_STEPS:
            self._next = self._captured()
        self._steps += 1
        self._next()

    def _warm_up(self) -> None:
        """Do a step on a stream of its own, as a capture does."""
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._step()
        current.wait_stream(stream)

    def _captured(self) -> Callable[[], None]:
        """Return what replays a step, or the step itself where it cannot be captured."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["capturable"] = True
        try:
            return _capture(self._step)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    group["capturable"] = False
            warnings.warn(
                "the update of the heads could not be captured in a CUDA graph and is launched"
                f" call by call, which is slower: {error}",
                CaptureWarning,
                stacklevel=2,
            )
            return self._step


def _capture(step: Callable[[], None]) -> Callable[[], None]:
    """Record the launches of `step` without doing them; return what does them all."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
