"""Where features are kept while a bank is trained: on its device, or in host memory.

On a CUDA device rows are read fastest from its own memory. Features that would take more than
a quarter of what is free there stay in host memory, and their batches are gathered by the CPU
and copied; the bank, its gradients and its moments need the rest.
"""

from __future__ import annotations

import torch

from clinit.extract.machine import free_memory

DEVICE_SHARE = 0.25
"""Share of the free memory of a CUDA device that the test rows or those of a task may take."""


def is_resident(size_bytes: int, device: torch.device) -> bool:
    """Return whether features of this size are kept on `device`."""
    return device.type != "cuda" or size_bytes <= DEVICE_SHARE * free_memory(device)


def residency_notes(sizes: dict[str, int], device: torch.device) -> list[str]:
    """Return a note for each of the features, by their name, that stay in host memory."""
    return [
        f"{what} take {_gigabytes(size)}, more than a quarter of the"
        f" {_gigabytes(free_memory(device))} that are free on {device}: they stay in host memory"
        " and are copied block by block"
        for what, size in sizes.items()
        if not is_resident(size, device)
    ]


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
