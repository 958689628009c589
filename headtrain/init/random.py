"""Random rows: the default of `torch.nn.Linear`, U(-1/sqrt(d), 1/sqrt(d)) for weight and bias."""

from __future__ import annotations

import numpy as np

from clinit.headtrain.init.data import Rows


def random_rows(rng: np.random.Generator, classes: int, dim: int) -> Rows:
    """Draw `classes` rows for features of width `dim`; the weights first, then the biases."""
    bound = dim**-0.5
    weight = rng.uniform(-bound, bound, size=(classes, dim))
    return Rows(weight, rng.uniform(-bound, bound, size=classes))
