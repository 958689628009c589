"""The images of a top-block run, and the storage of their activations.

Read by commands before they load PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clinit.extract.dataset.known import MAX_PIXELS


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Storage:
    """A folder for activations, and how they are computed."""

    folder: Path
    budget: int
    """Maximum bytes in the folder; 0: compute all activations from the images each time."""
    workers: int | None = None
    """Threads that read and decode images; None: one per usable CPU."""
    max_pixels: int = MAX_PIXELS
    """Maximum number of pixels of an image that is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopImages:
    """The two caches, the paths of their images and weights, and the storage of activations."""

    base: Path
    new: Path
    storage: Storage
    base_root: Path | None = None
    """Default: the path of the images at extraction."""
    new_root: Path | None = None
    weights: Path | None = None
    """Default: the path of the weights at extraction."""
