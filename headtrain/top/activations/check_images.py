"""Check that the images are still those of the features.

Nothing else would notice: rows are matched by their paths, and a folder of other images may have
the same ones. So a few images go through the whole network before activations are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.errors import CacheError
from clinit.headtrain.top.activations.rows import ActivationRows

SAMPLE_ROWS = 8
TOLERANCE = 0.1
"""Largest error, as a share of the length of a feature. Mixed precision costs about 0.01, a
different image about 1."""


@torch.no_grad()
def check_images(
    name: str,
    images: ActivationRows,
    rows: Int[np.ndarray, " rows"],
    features: Float[np.ndarray, "valid dim"],
    top: Callable[[Tensor], Tensor],
) -> None:
    """Check on some rows that their images give the features that are stored.

    Args:
        name: Name of the part, for the message.
        images: Activations, computed from the images.
        rows: Rows to choose from.
        features: Stored features of all rows of `images`.
        top: Activations to features, on the device of the activations.

    Raises:
        CacheError: If one of the features differs from the stored one.
    """
    places = np.linspace(0, len(rows) - 1, min(SAMPLE_ROWS, len(rows))).astype(np.int64)
    chosen = rows[places]
    if not len(chosen):
        return
    with closing(images.stream([chosen])) as stream:
        found = top(next(stream).float()).float().cpu().numpy()
    stored = features[chosen].astype(np.float32)
    lengths = np.linalg.norm(stored, axis=1)
    error = np.linalg.norm(found - stored, axis=1) / np.maximum(lengths, lengths.mean())
    if not (error <= TOLERANCE).all():
        raise CacheError(
            f"the images of {name} give features that differ from those in the cache by"
            f" {np.nanmax(error):.0%} of their length",
            remedy="Say with --base-root and --new-root where the extracted images are,"
            " or extract these into a new cache.",
        )
