"""NumPy and CuPy through one code path; torch tensors enter and leave without a copy.

The functions come from the Python array API standard, by array-api-compat. If NumPy or CuPy have a
better function (BLAS `syrk`, sparse products, triangular solves), this file or the caller chooses
it; any other library of the standard takes the general path.

Features that fit on the device are kept there as an array. Larger features stay in host memory, or
on disk if host memory is too small. `take` copies blocks of these features to the device, so that
all results are on the device.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np
from jaxtyping import Float, Int, Num

from clinit.extract.cache.features import StoredRows, select_rows

if TYPE_CHECKING:
    import torch


def namespace(array: Any) -> Any:
    """Return the array namespace of `array`: NumPy's or CuPy's, with the standard's names."""
    return array_api_compat.array_namespace(array)


def library(array: Any) -> str:
    """Return the name of the library of `array`: `numpy` or `cupy`."""
    return str(namespace(array).__name__).rpartition(".")[2]


def library_for(device: torch.device) -> str:
    """Return the library that computes for `device`: `cupy` for CUDA if CuPy can be used."""
    return "cupy" if device.type == "cuda" and cupy_problem() is None else "numpy"


@cache
def cupy_problem() -> str | None:
    """Return why CuPy cannot be used; None if it can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    try:
        import cupy

        float(cupy.ones(1).sum())
    except Exception as error:  # many types: no library or compiler, or one for another driver
        return f"CuPy is installed, but cannot be used ({str(error).splitlines()[0]})"
    return None


SLOW_RATIO = 16
"""Consumer GPUs compute float32 32 or 64 times as fast as float64, GPUs of data centres twice."""


def is_slow_in_float64(array: Any) -> bool:
    """Return whether an array is on a GPU that computes float32 many times as fast as float64."""
    if not array_api_compat.is_cupy_array(array):
        return False
    ratio: int = array.device.attributes.get("SingleToDoublePrecisionPerfRatio", 2)
    return ratio >= SLOW_RATIO


def beside(array: Any, values: Any) -> Any:
    """Return NumPy `values` as an array of the library and on the device of `array`."""
    return namespace(array).asarray(values, device=array_api_compat.device(array))


def to_numpy(array: Any) -> np.ndarray:
    """Copy an array to the host; NumPy arrays pass unchanged."""
    if isinstance(array, np.ndarray):
        return array
    if array_api_compat.is_cupy_array(array):
        return np.asarray(array.get())
    return np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)


def placed(array: np.ndarray, device: torch.device) -> Any:
    """Return a CuPy copy of `array` if CuPy computes for `device`, else `array` itself.

    Call this function, and all code that uses its result, inside `torch_stream(device)`.
    """
    if library_for(device) == "cupy":
        import cupy

        return cupy.asarray(array)
    return array


def as_array(source: Any) -> Any:
    """Return `source` as a NumPy or CuPy array that shares its memory if it can.

    torch CUDA tensors become CuPy arrays by DLPack, without a copy; if CuPy is not installed
    they are copied to the host. bfloat16, which NumPy lacks, is widened to float32. Call this
    function, and all code that uses its result, inside `torch_stream(source)`.
    """
    if isinstance(source, np.ma.MaskedArray):
        if not (mask := np.ma.getmaskarray(source)).any():
            return source.data
        filled = source.data.astype(float if source.dtype.kind in "fiu" else object)
        filled[mask] = None  # NaN of numbers
        return filled
    if isinstance(source, np.ndarray) or array_api_compat.is_cupy_array(source):
        return source
    if array_api_compat.is_torch_array(source):
        import torch

        tensor = source.detach()
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()
        if library_for(tensor.device) == "cupy":
            import cupy

            return cupy.from_dlpack(tensor)
        return tensor.cpu().numpy()
    return np.asarray(source)


def as_tensor(array: Any) -> torch.Tensor:
    """Return an array as a torch tensor that shares its memory, on its device."""
    import torch

    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    return tensor


def torch_stream(source: Any) -> contextlib.AbstractContextManager[Any]:
    """Run CuPy on torch's current stream, if `source` is a CUDA device or a tensor on one.

    Otherwise CuPy would read on its own stream, before torch has finished writing. Each library
    caches memory that the other cannot use: torch releases its unused memory beforehand, CuPy
    afterwards.
    """
    device = source.device if array_api_compat.is_torch_array(source) else source
    if getattr(device, "type", "cpu") != "cuda" or library_for(device) != "cupy":
        return contextlib.nullcontext()
    import cupy
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    stream = torch.cuda.current_stream(device)
    torch.cuda.empty_cache()
    stack = contextlib.ExitStack()
    stack.enter_context(cupy.cuda.Device(index))
    stack.callback(cupy.get_default_memory_pool().free_all_blocks)
    if hasattr(cupy.cuda.Stream, "from_external"):  # later versions warn of ExternalStream
        stack.enter_context(cupy.cuda.Stream.from_external(stream))
    else:
        stack.enter_context(cupy.cuda.ExternalStream(stream.cuda_stream, index))
    return stack


def like(result: Any, source: Any) -> Any:
    """Return `result` (NumPy or CuPy) in the library and on the device of `source`."""
    if array_api_compat.is_torch_array(source):
        return as_tensor(result).to(source.device)
    return result


def with_diagonal(
    matrix: Float[Any, "dim dim"], more: Float[np.ndarray, " dim"]
) -> Float[Any, "dim dim"]:
    """Return matrix + diag(more); a NumPy array is changed in place, which saves its copies."""
    if not isinstance(matrix, np.ndarray):
        return matrix + beside(matrix, np.diag(more))
    matrix[np.diag_indices_from(matrix)] += more
    return matrix


@dataclass(frozen=True, slots=True, eq=False)
class Cholesky:
    """The lower triangular factor L of a symmetric positive definite system L L^T."""

    factor: Float[Any, "dim dim"]

    @classmethod
    def ridged(cls, matrix: Float[Any, "dim dim"], lam: float) -> Cholesky:
        """Factorise matrix + lam I; a NumPy array is changed in place, which saves its copies."""
        return cls.of(with_diagonal(matrix, np.full(matrix.shape[0], lam)))

    @classmethod
    def of(cls, system: Float[Any, "dim dim"]) -> Cholesky:
        """Factorise, O(dim^3).

        Raises:
            numpy.linalg.LinAlgError: If `system` is not positive definite to working precision.
        """
        if isinstance(system, np.ndarray):  # in half of NumPy's time
            linalg = importlib.import_module("scipy.linalg")
            return cls(linalg.cholesky(system, lower=True, check_finite=False))
        with contextlib.ExitStack() as stack:
            if array_api_compat.is_cupy_array(system):  # by default, CuPy returns garbage
                import cupyx

                stack.enter_context(cupyx.errstate(linalg="raise"))
            return cls(namespace(system).linalg.cholesky(system))

    def solve(self, right: Float[Any, "dim columns"]) -> Float[Any, "dim columns"]:
        """Return system^-1 @ right, O(dim^2 columns)."""
        return _solve_triangular(self.factor, self.half(right), transposed=True)

    def half(self, right: Float[Any, "dim columns"]) -> Float[Any, "dim columns"]:
        """Return L^-1 @ right, whose columns have the squared norms right^T system^-1 right."""
        return _solve_triangular(self.factor, right, transposed=False)


def _solve_triangular(factor: Any, right: Any, *, transposed: bool) -> Any:
    """Solve with a lower triangular matrix, or with its transpose."""
    modules = {"numpy": "scipy.linalg", "cupy": "cupyx.scipy.linalg"}
    if (name := modules.get(library(factor))) is None:
        # The standard has no triangular solve.
        return namespace(factor).linalg.solve(factor.T if transposed else factor, right)
    linalg = importlib.import_module(name)
    return linalg.solve_triangular(factor, right, lower=True, trans=int(transposed))


@dataclass(frozen=True, slots=True, eq=False)
class StreamedRows:
    """Features in host memory or on disk; blocks are copied to the device that computes."""

    host: Float[Any, "rows dim"]
    """The features, in their stored dtype: an array, or `StoredRows`."""
    send: Callable[[np.ndarray], Any]
    """Copies a block of features to the device, and returns it as an array there."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and width."""
        rows, dim = self.host.shape
        return rows, dim


FeatureRows = Any
"""A NumPy or CuPy array (rows, dim), `StreamedRows`, or `StoredRows` on the host."""


def take(features: FeatureRows, rows: slice | Int[np.ndarray, " taken"]) -> Float[Any, "taken dim"]:
    """Return some rows, by a slice or by their numbers, as an array on the device that computes."""
    if isinstance(features, StreamedRows):
        return features.send(features.host[rows])
    if isinstance(features, StoredRows):
        return features[rows]
    if isinstance(rows, slice) or isinstance(features, np.ndarray):
        return features[rows, ...]
    return namespace(features).take(features, beside(features, rows), axis=0)


def slices(count: int, step: int = 4096) -> Iterator[slice]:
    """Cut the numbers below `count` into slices of at most `step`."""
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def select(features: FeatureRows, rows: Int[np.ndarray, " selected"]) -> FeatureRows:
    """Return some rows by their numbers; rows in host memory or on disk stay there."""
    if isinstance(features, np.ndarray):
        return StreamedRows(select_rows(features, rows), np.asarray)
    if isinstance(features, StreamedRows):
        return StreamedRows(select_rows(features.host, rows), features.send)
    return take(features, rows)


def widen(features: Num[Any, "*shape"]) -> Num[Any, "*shape"]:
    """Return float16 as float32, by torch, because NumPy takes twelve times as long."""
    if not isinstance(features, np.ndarray) or features.dtype != np.float16:
        return features
    import torch

    # torch takes no negative strides, and warns of memory that may not be written.
    writable = np.ascontiguousarray(features) if features.flags.writeable else features.copy()
    return torch.from_numpy(writable).float().numpy()


def as_type(features: Num[Any, "rows dim"], dtype: Any) -> Float[Any, "rows dim"]:
    """Return features as arrays of `dtype`, if possible without a copy."""
    return namespace(features).astype(widen(features), dtype, copy=False)


def float64_of(features: Num[Any, "*shape"]) -> Float[Any, "*shape"]:
    """Return a copy of features in float64."""
    return namespace(features).astype(widen(features), namespace(features).float64)


def unit(features: Num[Any, "rows dim"]) -> Float[Any, "rows dim"]:
    """Return h / |h| in float64; a feature of zeros stays zero."""
    xp, wide = namespace(features), float64_of(features)
    norms = xp.linalg.vector_norm(wide, axis=1, keepdims=True)
    wide /= xp.where(norms > 0, norms, 1.0)
    return wide


def missing_rows(given: Any, array: np.ndarray) -> list[str]:
    """Return the rows in which labels, given as `array` or a sequence, are missing, as texts."""
    items = given if isinstance(given, list | tuple) else np.atleast_1d(array).tolist()
    items = () if array.dtype.kind in "iu" else items
    gaps = (row for row, each in enumerate(items) if not isinstance(each, str))
    return [str(row) for row in gaps if str(items[row]) in ("None", "nan", "NaT", "<NA>")]
