"""Where to compute."""

from __future__ import annotations

import torch

from clinit.errors import DeviceError

CPU_WITH_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Names that PyTorch has for the instructions, of x86 and of Arm."""


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is CUDA where there is a device, else the CPU.

    Raises:
        DeviceError: If CUDA is asked for and there is no CUDA device.
    """
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name.startswith("cuda") and not available:
        raise DeviceError(
            f"--device {name} was asked for, but PyTorch finds no CUDA device",
            remedy="Use --device cpu, or install a CUDA build of PyTorch and its driver"
            " (`nvidia-smi` shows the driver).",
        )
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def cpu_has_bf16() -> bool:
    """Return whether the CPU multiplies bfloat16."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in CPU_WITH_BF16)
