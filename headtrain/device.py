"""Where heads are trained."""

import torch

from clinit.errors import ExperimentError


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is CUDA where there is a device, else the CPU.

    Raises:
        ExperimentError: If CUDA is asked for and there is no CUDA device.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ExperimentError(
            "--device cuda was asked for, but PyTorch finds no CUDA device",
            remedy="Use --device cpu, or install a CUDA build of PyTorch and its driver.",
        )
    return torch.device("cuda" if available and name != "cpu" else "cpu")
