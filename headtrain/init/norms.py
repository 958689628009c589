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
    return norm_ratio(data.head.weight[: data.start, :], rows.weight)


def pretrained_norm_factor(rows: Rows, data: NewClasses) -> float:
    """Return mean norm of the rows that came with the head / mean norm of the new rows.

    As `norm_factor`, but a factor besides does not grow from task to task with the rows it made.
    """
    return norm_ratio(data.pretrained.weight, rows.weight)


def row_factors(rows: Rows, data: NewClasses) -> Float[np.ndarray, " new"]:
    """Return one factor per row, which brings it to the mean norm of the existing rows."""
    existing, new = _norms(data.head.weight[: data.start, :]), _norms(rows.weight)
    if not len(existing):
        return np.ones(len(new))
    return np.where(new > 0, existing.mean() / np.where(new > 0, new, 1.0), 1.0)


def norm_ratio(existing: Float[Any, "rows dim"], new: Float[Any, "new dim"]) -> float:
    """Return mean norm of `existing` rows / mean norm of `new` rows; 1 where either is nothing."""
    norms, others = _norms(existing), _norms(new)
    return float(norms.mean() / others.mean()) if len(norms) and others.mean() > 0 else 1.0


def _norms(weight: Float[Any, "rows dim"]) -> Float[np.ndarray, " rows"]:
    return to_numpy(namespace(weight).linalg.vector_norm(weight, axis=1))
