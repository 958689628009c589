"""CuPy: a linear system and a kernel of its own, compared with NumPy."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clinit.extract.doctor.finding import Finding, fault, ok, warning

if TYPE_CHECKING:
    import numpy as np

_SIDE = 64
_TOLERANCE = 1e-10


def check_cupy(cuda: str | None) -> Iterator[Finding]:
    """Solve and compile with CuPy.

    Args:
        cuda: Version of CUDA that PyTorch computes with; None where there is no device.
    """
    extra = f'pip install "clinit[cuda{cuda.partition(".")[0]}]"' if cuda else ""
    if importlib.util.find_spec("cupy") is None:
        if cuda is None:
            yield ok("CuPy", "not installed, and no GPU to use it on")
        else:
            told = "not installed: linear systems are solved on the CPU, beside the GPU"
            yield warning("CuPy", told, extra)
        return
    if cuda is None:
        yield ok("CuPy", "installed, but there is no GPU to use it on")
        return
    try:
        solved, compiled = errors_of(importlib.import_module("cupy"))
    except Exception as error:  # it has many: no compiler, no library, one for another driver
        yield fault("CuPy", f"it cannot be used: {str(error).splitlines()[0]}", extra)
        return
    if max(solved, compiled) > _TOLERANCE:
        told = f"its results are wrong: by {solved:.1g} (solve) and {compiled:.1g} (kernel)"
        yield fault("CuPy", told, extra)
    else:
        yield ok("CuPy", f"a solve and a kernel agree with NumPy to {max(solved, compiled):.0e}")


def errors_of(cupy: Any) -> tuple[float, float]:
    """Return how far a solved system and a kernel are from NumPy's, relative to the largest."""
    import numpy as np

    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(_SIDE, _SIDE)) + _SIDE * np.eye(_SIDE)
    vector = rng.normal(size=_SIDE)
    solved = cupy.asnumpy(cupy.linalg.solve(cupy.asarray(matrix), cupy.asarray(vector)))
    kernel = cupy.ElementwiseKernel("float64 x, float64 y", "float64 z", "z = x * y + 1", "probe")
    compiled = cupy.asnumpy(kernel(cupy.asarray(vector), cupy.asarray(vector)))
    return (
        _error(solved, np.linalg.solve(matrix, vector)),
        _error(compiled, vector * vector + 1),
    )


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(abs(found - expected).max() / abs(expected).max())
