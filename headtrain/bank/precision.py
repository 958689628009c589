"""The precision of the matrix products of a bank.

    float32   as stored
    tf32      CUDA: operands rounded to 11 significant bits, sums in float32
    bf16      operands and results rounded to 8 significant bits, sums in float32

Weights, losses and AdamW are float32 whatever the precision of the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clinit.errors import DeviceError
from clinit.extract.device import CPU_WITH_BF16, cpu_has_bf16

ROUNDOFF = {"tf32": 2.0**-10, "bf16": 2.0**-8}
"""Relative error of a rounded operand, at most; those of TF32 may be cut off, not rounded."""
_AMPERE = (8, 0)


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that `device` does not compute in.

    Raises:
        DeviceError: With the precision that works instead.
    """
    remedy = "Use --precision float32"
    if device.type == "cuda":
        if precision != "float32" and torch.cuda.get_device_capability(device) < _AMPERE:
            raise DeviceError(
                f"--precision {precision} needs a CUDA device of compute capability 8.0 or"
                f" later, {torch.cuda.get_device_name(device)} has an earlier one",
                remedy=f"{remedy}.",
            )
    elif precision == "tf32":
        raise DeviceError(
            "--precision tf32 is a format of CUDA devices, but training runs on the CPU",
            remedy=f"{remedy}{', or bf16 which this CPU has' if cpu_has_bf16() else ''}.",
        )
    elif precision == "bf16" and not cpu_has_bf16():
        raise DeviceError(
            "--precision bf16 was asked for, but this CPU has no instructions for it"
            f" ({', '.join(CPU_WITH_BF16)}): emulated, it would be slower than float32",
            remedy=f"{remedy}.",
        )


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Let CUDA multiply float32 matrices as `precision` says within the block.

    PyTorch has one switch for the process: it is put back as it was.
    """
    switch = torch.backends.cuda.matmul
    before = switch.fp32_precision
    switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        switch.fp32_precision = before
