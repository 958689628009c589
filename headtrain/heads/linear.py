"""Weight and bias of a linear head, or of some of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import to_numpy

NEVER = -1e9
"""Bias of a row that must not win: finite, so that losses stay numbers."""
MASKED = 1e-5
"""Chance of a gap below which classes are masked; see `may_win`."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of a linear head: logits = weight @ features + bias."""

    weight: Float[Any, "classes dim"]
    """A NumPy or CuPy array, float64; a tensor if it is only passed on."""
    bias: Float[Any, " classes"]
    """An array of the same kind."""

    @classmethod
    def of_head(cls, head: Head) -> Rows:
        """Return the rows of a head file, in float64."""
        return cls(head.weight.astype(np.float64), head.bias.astype(np.float64))

    def as_head(
        self,
        class_names: Sequence[str] | None,
        fingerprint: str = "",
        *,
        feature_map: Mapping[str, Any] | None = None,
    ) -> Head:
        """Return the rows as a head to be stored, in float32.

        Args:
            class_names: One per row; None if the classes of the rows are unknown.
            fingerprint: Identifier of the backbone whose features the rows read; empty if unknown.
            feature_map: The map from these features to the inputs of the rows; None if the rows
                read the features themselves.
        """
        rows = self.on_host()
        weight, bias = rows.weight.astype(np.float32), rows.bias.astype(np.float32)
        names = None if class_names is None else tuple(class_names)
        return Head(weight, bias, names, fingerprint, feature_map=feature_map)

    def between(self, start: int, stop: int) -> Rows:
        """Return the rows `start` to `stop` - 1, without a copy."""
        return Rows(self.weight[start:stop, :], self.bias[start:stop])

    def on_host(self) -> Rows:
        """Return the rows as NumPy arrays."""
        return Rows(to_numpy(self.weight), to_numpy(self.bias))


def may_win(rows: Rows, features: Float[Any, "images dim"]) -> Bool[np.ndarray, " classes"]:
    """Return which rows may win: not those whose bias lies far below what features can change.

    Heads mask classes by `NEVER`, the least float16, or a number such as -1e4 or -100. So rows must
    not win if their logits at the mean of the features lie below a gap that is wider than twice the
    range of the n logits above it, and so wide that by chance, as the last of n + 1 numbers of
    a uniform distribution, it had the probability (1 + gap / range)^(1 - n) < `MASKED`.
    """
    found: np.ndarray = rows.bias > NEVER / 2
    if len(found) < 3:
        return found
    logits = rows.weight @ to_numpy(features).mean(axis=0, dtype=np.float64) + rows.bias
    ranked = np.sort(logits)[::-1]
    gaps, ranges, above = -np.diff(ranked), ranked[0] - ranked[:-1], np.arange(len(logits) - 1)
    ratios = gaps / np.where(ranges > 0, ranges, np.inf)
    wide = (ratios > 2) & (above * np.log1p(ratios) > -np.log(MASKED))
    return found & (logits >= ranked[wide.argmax()]) if wide.any() else found


def shared_row(rows: Rows, kept: Bool[np.ndarray, " classes"]) -> Rows:
    """Return the mean of these rows, which differences of logits ignore; zeros for fewer than two.

    Args:
        rows: Rows of a head.
        kept: Those that may win.
    """
    if kept.sum() < 2:
        return Rows(np.zeros((1, rows.weight.shape[1])), np.zeros(1))
    weight, bias = rows.weight[kept], rows.bias[kept]
    return Rows(weight.mean(axis=0, keepdims=True), bias.mean(keepdims=True))


def logit_size(rows: Rows, features: Float[Any, "images dim"]) -> float:
    """Return the deviation of an image's logits over classes, in the mean square of images.

    Zero for fewer than two rows.
    """
    if len(rows.bias) < 2:
        return 0.0
    logits = to_numpy(features).astype(np.float64) @ rows.weight.T + rows.bias
    return float(np.sqrt(logits.var(axis=1).mean()))
