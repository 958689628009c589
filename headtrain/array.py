"""NumPy and CuPy through one code path; torch tensors enter without a copy.

The array functions come from array-api-compat; what it lacks (triangular solves) comes from
SciPy or from `cupyx.scipy`, which have the same names.
"""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np


def namespace(array: Any) -> Any:
    """Return the array namespace of `array`: NumPy's or CuPy's, with the standard's names."""
    return array_api_compat.array_namespace(array)


def on_gpu(array: Any) -> bool:
    """Say whether `array` is a CuPy array."""
    return bool(array_api_compat.is_cupy_array(array))


def linear_algebra(array: Any) -> ModuleType:
    """Return `scipy.linalg` for NumPy arrays and `cupyx.scipy.linalg` for CuPy arrays."""
    return importlib.import_module("cupyx.scipy.linalg" if on_gpu(array) else "scipy.linalg")


def to_numpy(array: Any) -> np.ndarray:
    """Copy a CuPy array to the host; NumPy arrays pass unchanged."""
    return array.get() if on_gpu(array) else np.asarray(array)


def as_array(source: Any) -> Any:
    """Return `source` as a NumPy or CuPy array that shares its memory where it can.

    torch CUDA tensors become CuPy arrays by DLPack; bfloat16, which NumPy lacks, is widened
    to float32. Call it, and all that uses the result, inside `torch_stream(source)`.
    """
    if array_api_compat.is_cupy_array(source) or isinstance(source, np.ndarray):
        return source
    if array_api_compat.is_torch_array(source):
        import torch

        tensor = source.detach()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if tensor.device.type == "cuda":
            import cupy

            return cupy.from_dlpack(tensor)
        return tensor.cpu().numpy()
    return np.asarray(source)


def torch_stream(source: Any) -> contextlib.AbstractContextManager[Any]:
    """Run CuPy on torch's current stream while `source` is a torch CUDA tensor.

    Otherwise CuPy would read on its own stream, before torch has finished writing.
    """
    if array_api_compat.is_torch_array(source) and source.device.type == "cuda":
        import cupy
        import torch

        stream = torch.cuda.current_stream(source.device)
        stack = contextlib.ExitStack()
        stack.enter_context(cupy.cuda.Device(source.device.index))
        stack.enter_context(cupy.cuda.ExternalStream(stream.cuda_stream))
        return stack
    return contextlib.nullcontext()


def like(result: Any, source: Any) -> Any:
    """Return `result` (NumPy or CuPy) in the library and on the device of `source`."""
    if array_api_compat.is_torch_array(source):
        import torch

        return torch.utils.dlpack.from_dlpack(result).to(source.device)
    return result
