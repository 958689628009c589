"""Imprinted rows: weight m_c / |m_c| with m_c = mean of h / |h| over the class; bias 0.

Source: H. Qi, M. Brown, D. G. Lowe, "Low-shot learning with imprinted weights", CVPR 2018.
Theirs is a cosine classifier: it normalises features too, has no bias, and multiplies the
cosine by a learnt scale. Here the head is linear in h, and the scale is that of `scale`.
"""

from __future__ import annotations

from clinit.headtrain.array import namespace
from clinit.headtrain.init.class_mean import unit_class_mean_rows
from clinit.headtrain.init.data import NewClasses, Rows


def imprinted_rows(data: NewClasses) -> Rows:
    """Return the normalised mean of the normalised features of each new class."""
    mean = unit_class_mean_rows(data)
    xp = namespace(mean.weight)
    norms = xp.linalg.vector_norm(mean.weight, axis=1, keepdims=True)
    return Rows(mean.weight / xp.where(norms > 0, norms, 1.0), mean.bias)
