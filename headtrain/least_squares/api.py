"""The least-square head of labelled features, for users of NumPy, torch and CuPy."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Int, Num

from clinit.headtrain.array import as_array, like, to_numpy, torch_stream
from clinit.headtrain.least_squares.solve import least_squares_head
from clinit.headtrain.least_squares.statistics import ClassStatistics, Weighting
from clinit.headtrain.rows import Rows


def least_squares(
    features: Num[Any, "rows dim"],
    labels: Int[Any, " rows"],
    *,
    num_classes: int | None = None,
    lam: float = 0.05,
    weighting: Weighting = "class",
) -> Rows:
    """Return the linear head that predicts one-hot labels with the least squared error.

    It minimises 1/2 Ave |weight h + bias - onehot(y)|^2 + lam/2 (|weight|^2 + |bias|^2) in
    one pass over the features, in float64, without one-hot targets: O(rows dim^2) time and
    O(dim^2 + classes dim) memory beside the features.

    Its outputs estimate class probabilities. Rows of it that are to join a head trained with
    cross entropy need a scale: see `clinit.headtrain.init.initialise`.

    Args:
        features: A NumPy array, a torch tensor or a CuPy array of any float type. CUDA tensors
            stay on their device (this needs CuPy).
        labels: Integers in [0, num_classes), of any of these libraries.
        num_classes: Rows of the head; default: the largest label + 1. A class without a sample
            gets a row of zeros and does not count.
        lam: Ridge, >= 0, beside an average: scikit-learn's `alpha` divided by the number of
            rows. The paper has 0.05 (ConvNeXt) and 1e-4 (ResNet).
        weighting: What Ave is: `class`, the mean over classes of the means over their rows, or
            `sample`, the mean over rows.

    Returns:
        A value with `.weight` (classes, dim) and `.bias` (classes,), float64 arrays of the
        library and on the device of `features`.

    Raises:
        ValueError: If an argument has a wrong shape, type or range.
        StatisticsError: If a feature is not finite, or lam = 0 and the system is singular; the
            message names the directions along which the features do not vary.

    Example:
        >>> import numpy as np
        >>> features = np.array([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0], [4.0, 0.0]])
        >>> head = least_squares(features, np.array([0, 0, 1, 1]), lam=1e-3)
        >>> (features @ head.weight.T + head.bias).argmax(axis=1).tolist()
        [0, 0, 1, 1]
    """
    lam = _ridge(lam)
    with torch_stream(features):
        array = _matrix(features)
        statistics = ClassStatistics.of(
            array, _integers(labels), num_classes=num_classes, weighting=weighting
        )
        head = least_squares_head(statistics, lam)
        return Rows(like(head.weight, features), like(head.bias, features))


def _integers(labels: Any) -> Int[np.ndarray, " rows"]:
    array = to_numpy(as_array(labels))
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"labels are {array.dtype}, expected integers")
    if array.ndim != 1:
        raise ValueError(f"labels have shape {array.shape}, expected (rows,)")
    if len(array) and array.min() < 0:
        raise ValueError(f"the smallest label is {array.min()}, expected labels from 0 on")
    return array.astype(np.int64)


def _matrix(features: Any) -> Any:
    array = as_array(features)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"features are {array.dtype}, expected real numbers")
    if array.ndim != 2:
        raise ValueError(f"features have shape {array.shape}, expected (rows, dim)")
    return array


def _ridge(lam: Any) -> float:
    value = float(lam) if isinstance(lam, Real) else math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"lam is {lam!r}, expected a finite number >= 0")
    return value
