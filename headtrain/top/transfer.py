"""Copies to the device on which the network computes."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to a device, without waiting for a CUDA device.

    Only a copy from pinned memory is asynchronous: one from other memory may wait for all work
    that was queued on the device before. Torch keeps pinned memory until its copies are done.
    """
    if device.type == "cuda" and values.device.type == "cpu" and not values.is_pinned():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
