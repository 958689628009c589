"""The CUDA device, and whether it multiplies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from clinit.extract.doctor.finding import Finding, fault, ok, warning

_SIDE = 256
_TOLERANCE = 1e-10
"""Of a product of float64 matrices of normal numbers, relative to its largest value."""
_LITTLE_MEMORY = 2 * 2**30
_DRIVER = Path("/proc/driver/nvidia/version")


def check_cuda() -> Iterator[Finding]:
    """Look for devices, and multiply two matrices on each."""
    import torch

    if not torch.cuda.is_available():
        yield _without(torch.version.cuda)
        return
    for index in range(torch.cuda.device_count()):
        yield _of_device(index)


def _without(built_for: str | None) -> Finding:
    if shutil.which("nvidia-smi") is None and not _DRIVER.exists():
        return ok("CUDA", "no GPU: everything runs on the CPU")
    if built_for is None:
        return warning(
            "CUDA",
            "this machine has an NVIDIA driver, but PyTorch was built without CUDA",
            "pip install --force-reinstall torch torchvision torchcodec",
        )
    return warning(
        "CUDA",
        f"this machine has an NVIDIA driver, but PyTorch (CUDA {built_for}) finds no device",
        "Look at `nvidia-smi`; in a container, start it with `--gpus all`.",
    )


def _of_device(index: int) -> Finding:
    import torch

    device = torch.device("cuda", index)
    free, total = torch.cuda.mem_get_info(device)
    told = (
        f"{torch.cuda.get_device_name(device)}, {free / 2**30:.1f} of {total / 2**30:.1f} GB free,"
        f" CUDA {torch.version.cuda}"
    )
    error = product_error(str(device))
    if not error <= _TOLERANCE:
        return fault(
            "CUDA",
            f"{told}; a product of matrices is wrong by {error:.1g}",
            "Look at `nvidia-smi -q` for errors of the memory, and install the driver again.",
        )
    if free < _LITTLE_MEMORY:
        return warning("CUDA", f"{told}: others are using it", "nvidia-smi")
    return ok("CUDA", f"{told}; a product of matrices agrees with the CPU to {error:.0e}")


def product_error(device: str) -> float:
    """Return how far a product on a device is from that on the CPU, relative to its largest."""
    import torch

    generator = torch.Generator().manual_seed(0)
    one, two = torch.randn(2, _SIDE, _SIDE, generator=generator, dtype=torch.float64)
    expected = one @ two
    found = (one.to(device) @ two.to(device)).cpu()
    return float((found - expected).abs().max() / expected.abs().max())
