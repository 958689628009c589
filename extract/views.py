"""Random views of images, and the place of their features in a cache.

A crop has 8 to 100 % of the image's area and an aspect ratio, logarithmically uniform, of 3/4 to
4/3; half of the views are mirrored. These are the defaults of torchvision's `RandomResizedCrop` and
timm's training. A crop depends only on (seed, view, row), so the order of work, a resumed run or
another batch size change nothing.

Source: C. Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from clinit.extract.network.transform import Transform, resize

AREA = (0.08, 1.0)
"""Area of a crop as a share of the image's area."""
ASPECT = (3 / 4, 4 / 3)
"""Width / height of a crop."""
FLIP = 0.5
"""Probability of mirroring."""
_ATTEMPTS = 10
MAX_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class View:
    """One random view of every image."""

    size: tuple[int, int]
    """(height, width) of the network's input in pixels."""
    interpolation: str
    """bilinear or bicubic."""
    seed: int
    """In [0, 2^32)."""
    number: int
    """0, 1, ...: number of the view among the views of one seed."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must lie in [0, {MAX_SEED}], got {self.seed}")
        if self.number < 0:
            raise ValueError(f"number must be at least 0, got {self.number}")

    @classmethod
    def of(cls, transform: Transform, *, seed: int, number: int) -> View:
        """Return a view with the size and interpolation that `transform` gives plain images."""
        return cls(transform.crop, transform.interpolation, seed, number)

    def describe(self) -> str:
        """Return the augmentation for a fingerprint: the text that all views of a cache share."""
        size = "x".join(map(str, self.size))
        return (
            f"random resized crop {size} {self.interpolation} antialias, area {AREA[0]:g} to"
            f" {AREA[1]:g}, aspect 3/4 to 4/3, flip {FLIP:g}"
        )

    def to_input(
        self, image: UInt8[Tensor, "3 _h _w"], row: int
    ) -> UInt8[Tensor, "3 height width"]:
        """Crop, resize and, at random, mirror the uint8 image of a row; return uint8."""
        draw = np.random.default_rng([self.seed, self.number, row]).random
        box = crop_box(image.shape[1], image.shape[2], draw)
        part = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
        cropped = resize(part, self.size, self.interpolation)
        return cropped.flip(2) if draw() < FLIP else cropped


def crop_box(height: int, width: int, draw: Callable[[], float]) -> Box:
    """Draw a random part of an image.

    If ten random boxes do not fit into the image (it may be many times longer than wide), the
    result is the largest centred box of an allowed aspect ratio.

    Args:
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        draw: Returns numbers uniform in [0, 1).
    """
    for _ in range(_ATTEMPTS):
        area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * draw())
        aspect = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** draw()
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            top = int(draw() * (height - high + 1))
            left = int(draw() * (width - wide + 1))
            return Box(top, left, high, wide)
    wide = min(width, round(height * ASPECT[1]))
    high = min(height, round(width / ASPECT[0]))
    return Box((height - high) // 2, (width - wide) // 2, high, wide)
