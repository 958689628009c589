"""Scales of new rows relative to the rows that the head has."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.headtrain.array import namespace, to_numpy
from clinit.headtrain.init.new_classes import NewClasses
from clinit.headtrain.rows import Rows


def norm_factor(rows: Rows, data: NewClasses) -> float:
    """Return mean norm of the head's existing rows / mean norm of the new rows.

    1 where there is nothing to compare: no existing row, or only zeros.
    """
    return _ratio(_norms(data.head.weight[: data.start, :]), _norms(rows.weight))


def pretrained_norm_factor(rows: Rows, data: NewClasses) -> float:
    """Return mean norm of the rows that came with the head / mean norm of the new rows.

    As `norm_factor`, but a factor besides does not grow from task to task with the rows it made.
    """
    return _ratio(_norms(data.pretrained.weight), _norms(rows.weight))


def row_factors(rows: Rows, data: NewClasses) -> Float[np.ndarray, " new"]:
    """Return one factor per row, which brings it to the mean norm of the existing rows."""
    existing, new = _norms(data.head.weight[: data.start, :]), _norms(rows.weight)
    if not len(existing):
        return np.ones(len(new))
    return np.where(new > 0, existing.mean() / np.where(new > 0, new, 1.0), 1.0)


def _ratio(existing: Float[np.ndarray, " rows"], new: Float[np.ndarray, " new"]) -> float:
    return float(existing.mean() / new.mean()) if len(existing) and new.mean() > 0 else 1.0


def _norms(weight: Float[Any, "rows dim"]) -> Float[np.ndarray, " rows"]:
    return to_numpy(namespace(weight).linalg.vector_norm(weight, axis=1))
