"""Random views of images, and where their features lie in a cache.

A crop has 8 to 100 % of the image's area and an aspect ratio, logarithmically uniform, of 3/4 to
4/3; half of the views are mirrored. These are the defaults of torchvision's `RandomResizedCrop` and
of timm's training. What happens to an image follows from (seed, view, row) alone, so the order of
work, a resumed run or another batch size change nothing.

Source: C. Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint
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
    """0, 1, ...: views of one seed differ by it."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must lie in [0, {MAX_SEED}], got {self.seed}")
        if self.number < 0:
            raise ValueError(f"number must be at least 0, got {self.number}")

    @classmethod
    def of(cls, transform: Transform, *, seed: int, number: int) -> View:
        """Return a view of the size and interpolation of the plain images."""
        return cls(transform.crop, transform.interpolation, seed, number)

    def describe(self) -> str:
        """Return what all views of this kind have in common, as it stands in a fingerprint."""
        size = "x".join(map(str, self.size))
        return (
            f"random resized crop {size} {self.interpolation} antialias, area {AREA[0]:g} to"
            f" {AREA[1]:g}, aspect 3/4 to 4/3, flip {FLIP:g}"
        )

    def to_input(
        self, image: UInt8[Tensor, "3 _h _w"], row: int
    ) -> UInt8[Tensor, "3 height width"]:
        """Crop, resize and perhaps mirror the image of a row; still uint8."""
        draw = np.random.default_rng([self.seed, self.number, row]).random
        box = crop_box(image.shape[1], image.shape[2], draw)
        part = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
        cropped = resize(part, self.size, self.interpolation)
        return cropped.flip(2) if draw() < FLIP else cropped


def crop_box(height: int, width: int, draw: Callable[[], float]) -> Box:
    """Draw a part of an image.

    Ten attempts are made to find a box that lies within the image. Failing that, as in an image
    many times longer than wide, it is the largest centred one of an allowed aspect.

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


VIEWS_FOLDER = "views"
"""Folder beside the splits; view k of the training images is the split folder `views/<k>`."""
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
"""Numbers of views and their seeds, as texts."""


def view_folders(cache: Path) -> list[Path]:
    """Return the folders of the views of a cache, begun or complete, in order."""
    marks = ("plan.json", "cache.json")
    marked = {path.parent for mark in marks for path in (cache / VIEWS_FOLDER).glob(f"*/{mark}")}
    found = (folder for folder in marked if _NUMBER.fullmatch(folder.name))
    return sorted(found, key=lambda folder: int(folder.name))


def check_view(
    folder: Path, fingerprint: Fingerprint, plain: Fingerprint, first: Fingerprint
) -> None:
    """Check that the split in `folder` is the view that its name says.

    Args:
        folder: Folder of the view.
        fingerprint: Fingerprint of the view.
        plain: Fingerprint of the split whose images it shows.
        first: Fingerprint of the first view, whose seed and augmentation all others share.

    Raises:
        CacheError: If it is not.
    """
    remedy = (
        f"Remove {folder}, then run the `clinit extract` command of this cache with --views:"
        " it computes what is missing."
    )
    for each in plain.differences_but_of_view(fingerprint):
        raise CacheError(
            f"{folder} is no view of the train split beside it: its features have {each.name} ="
            f" {each.other}, those of the split {each.name} = {each.one}",
            remedy=remedy,
        )
    seed = first.view_seed if _NUMBER.fullmatch(first.view_seed or "") else None
    number = folder.name if _NUMBER.fullmatch(folder.name) else None
    for name, found, wanted, kind in (
        ("augmentation", fingerprint.augmentation, first.augmentation, "a text"),
        ("view_seed", fingerprint.view_seed, seed, "a number"),
        ("view", fingerprint.view, number, "a number"),
    ):
        if wanted is None or found != wanted:
            raise CacheError(
                f"{folder} holds features with {name} = {'nothing' if found is None else found}"
                f" where {name} = {wanted or kind} is expected",
                remedy=remedy,
            )
