"""Copies to the device on which the network computes."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to a device; a CUDA device is not waited for.

    Only pinned memory goes over by itself: a copy from other memory may wait for all that the
    device has been given before. Torch keeps pinned memory until the copies from it are done.
    """
    if device.type == "cuda" and values.device.type == "cpu" and not values.is_pinned():
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
