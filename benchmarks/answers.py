"""What the scripts of contenders share: the clock, and the answers to whoever gives the turns.

Imports no package but PyTorch: the contender of Avalanche runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

ANSWERS = os.dup(1)


def clock() -> float:
    """Return seconds: of this process where it has one thread, of the wall where it has more.

    The time of a process does not count what other users of the machine take; nor what a CUDA
    device takes.
    """
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_initialized()
    return time.process_time() if alone else time.perf_counter()


def divert_prints() -> None:
    """Let what a library prints go to the error stream, not among the answers."""
    os.dup2(2, 1)


def say(**facts: Any) -> None:
    """Answer with one line."""
    os.write(ANSWERS, (json.dumps(facts) + "\n").encode())


def settle(device: str) -> None:
    """Wait until a CUDA device has done what it was told."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True, eq=False)
class Taker:
    """What takes turns beside others in one process."""

    train: Callable[[], dict[str, float] | None]
    """Does a block of steps; may return its own seconds."""
    evaluate: Callable[[], None]
    facts: dict[str, Any] = field(default_factory=dict)
