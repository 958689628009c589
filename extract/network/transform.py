"""Transform images to the input of a network, or to random views.

`timm` is the preprocessing that the model was evaluated with: resize the shorter side to input
size / crop fraction with the model's interpolation, then crop the centre. `paper` follows "A Good
Start Matters" (Harun and Kanan, CoLLAs 2025, appendix): resize to 256 x 256 without keeping the
aspect ratio, then crop the central 224 x 224. Resizing works on uint8 with antialiasing.
Normalisation runs on the device.

A random *view* is a crop of 8 to 100 % of the image's area and an aspect ratio, logarithmically
uniform, of 3/4 to 4/3; half of the views are mirrored. These are the defaults of torchvision's
`RandomResizedCrop` and timm's training. A crop depends only on (seed, view, row), so the order of
work, a resumed run or another batch size change nothing.

Source: C. Szegedy et al., "Going deeper with convolutions", CVPR 2015, section 6.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import functional

from clinit.errors import BackboneError
from clinit.extract.dataset.decode import Preprocessing
from clinit.extract.network.resample import Span
from clinit.words import cut_short

INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
MAX_CROP = 4096
"""Maximum side of the network's input, in pixels: four times the largest side of timm's models."""
MAX_RESIZE = 2 * MAX_CROP
_MAX_TEXT = 400
_DESCRIPTION = re.compile(
    r"resize (?P<height>\d+)(x(?P<width>\d+))? (?P<interpolation>\w+) antialias,"
    r" centre crop (?P<crop_height>\d+)x(?P<crop_width>\d+),"
    r" mean (?P<mean>[^/ ]+(/[^/ ]+){2}), std (?P<std>[^/ ]+(/[^/ ]+){2})"
)


@dataclass(frozen=True, slots=True)
class Transform(Preprocessing):
    """Resize, centre crop, normalise, with PyTorch.

    Raises:
        ValueError: If a side, the interpolation, the mean or the deviation is out of range.
    """

    def __post_init__(self) -> None:
        """Check the values."""
        resize = (self.resize,) * 2 if isinstance(self.resize, int) else self.resize
        for name, sides, most in (("resize", resize, MAX_RESIZE), ("crop", self.crop, MAX_CROP)):
            if len(sides) != 2 or not all(1 <= side <= most for side in sides):
                raise ValueError(f"{name} must lie in [1, {most}] pixels, got {cut_short(sides)}")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(
                f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got"
                f" {cut_short(self.interpolation)}"
            )
        for name, values, least in (("mean", self.mean, -math.inf), ("std", self.std, 0.0)):
            if len(values) != 3 or not all(least < value < math.inf for value in values):
                kind = "positive" if name == "std" else "finite"
                raise ValueError(f"{name} must be three {kind} numbers, got {cut_short(values)}")

    def describe(self) -> str:
        """Return the transform as text, for fingerprints."""
        side = self.resize if isinstance(self.resize, int) else "x".join(map(str, self.resize))
        crop = "x".join(map(str, self.crop))
        return (
            f"resize {side} {self.interpolation} antialias, centre crop {crop},"
            f" mean {_numbers(self.mean)}, std {_numbers(self.std)}"
        )

    @classmethod
    def parse(cls, text: str) -> Transform:
        """Return the transform for a text that `describe` returned.

        Raises:
            ValueError: If the text has another form, or a value is out of range.
        """
        match = _DESCRIPTION.fullmatch(text) if len(text) <= _MAX_TEXT else None
        if match is None:
            raise ValueError(f"not the description of a transform: {cut_short(text)}")
        height, width = match["height"], match["width"]
        return cls(
            resize=int(height) if width is None else (int(height), int(width)),
            crop=(int(match["crop_height"]), int(match["crop_width"])),
            interpolation=match["interpolation"],
            mean=tuple(map(float, match["mean"].split("/"))),
            std=tuple(map(float, match["std"].split("/"))),
        )

    def to_input(self, image: UInt8[Tensor, "3 _h _w"]) -> UInt8[Tensor, "3 height width"]:
        """Resize and crop an image; return uint8."""
        resized = resize(image, self.resized(*image.shape[1:]), self.interpolation)
        cropped: Tensor = functional.center_crop(resized, list(self.crop))
        return cropped

    def spans(self, height: int, width: int, row: int) -> tuple[Span, Span]:
        """Return what `to_input` shows of an image of this size, for `resample`."""
        resized = self.resized(height, width)
        top, left = self.corner(resized)
        return (0, height, resized[0], top, 1), (0, width, resized[1], left, 1)

    def normalise(
        self, batch: UInt8[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch 3 height width"]:
        """Return (batch / 255 - mean) / std in float32, on the batch's device."""
        mean, std = (_of_channels(each, batch.device) for each in (self.mean, self.std))
        pixels = batch.to(dtype=torch.float32, memory_format=torch.channels_last)
        return pixels.div_(255).sub_(mean).div_(std)


@cache
def _of_channels(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "1 3 1 1"]:
    """Copy numbers to a device, once, because each copy waits for the device."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def resize(
    image: UInt8[Tensor, "3 _h _w"], size: tuple[int, int], interpolation: str
) -> UInt8[Tensor, "3 height width"]:
    """Resize an image on the CPU to (height, width): the same bits on any CPU.

    torchvision's function is not used: without AVX2 it computes in float32, and a sixth of the
    pixels of a bilinear image differ by a grey level.
    """
    # Strides that keep the channels last, as decoded, so that nothing is copied.
    batch = image.as_strided((1, *image.shape), (image.numel(), *image.stride()))
    antialias = interpolation.startswith("bi")
    return interpolate(batch, size, mode=interpolation, antialias=antialias)[0]


def make_transform(
    kind: str,
    config: Mapping[str, Any],
    *,
    input_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Transform:
    """Build the transform of a model.

    Args:
        kind: `timm` or `paper`.
        config: timm's data configuration of the model (`timm.data.resolve_model_data_config`).
        input_size: Height and width in pixels; None takes the model's own.
        mean: One value, or one per channel; None takes the model's own.
        std: One value, or one per channel; None takes the model's own.

    Raises:
        BackboneError: If a `Transform` cannot represent the model's own preprocessing.
    """
    height, width = (input_size, input_size) if input_size else config["input_size"][1:]
    moments = {
        "mean": _per_channel(mean if mean is not None else config["mean"]),
        "std": _per_channel(std if std is not None else config["std"]),
    }
    if kind == "paper":
        square = (round(height * 256 / 224), round(width * 256 / 224))
        return Transform(resize=square, crop=(height, width), interpolation="bilinear", **moments)
    mode, fraction = config.get("crop_mode", "center"), config["crop_pct"]
    scaled = (math.floor(height / fraction), math.floor(width / fraction))
    if mode not in ("center", "squash") or (mode == "center" and height != width):
        raise BackboneError(
            f"the model's own preprocessing has crop mode {mode!r} and size {height} x {width}",
            remedy="Use `--transform paper`, or a square `--input-size`.",
        )
    return Transform(
        resize=scaled if mode == "squash" else scaled[0],
        crop=(height, width),
        interpolation=config["interpolation"],
        **moments,
    )


def _per_channel(values: Sequence[float]) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    return numbers * 3 if len(numbers) == 1 else numbers


def _numbers(values: Sequence[float]) -> str:
    """Return numbers as text that `float` reads back exactly; six digits if they suffice."""
    return "/".join(f"{each:g}" if float(f"{each:g}") == each else repr(each) for each in values)


AREA = (0.08, 1.0)
"""Area of a crop as a share of the image's area."""
ASPECT = (3 / 4, 4 / 3)
"""Width / height of a crop."""
FLIP = 0.5
"""Probability of mirroring."""
_ATTEMPTS = 10


class Box(NamedTuple):
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

    def describe(self) -> str:
        """Return the augmentation for a fingerprint: the text that all views of a cache share."""
        size = "x".join(map(str, self.size))
        return (
            f"random resized crop {size} {self.interpolation} antialias, area {AREA[0]:g} to"
            f" {AREA[1]:g}, aspect 3/4 to 4/3, flip {FLIP:g}"
        )

    def to_input(self, image: UInt8[Tensor, "3 _ _"], row: int) -> UInt8[Tensor, "3 height width"]:
        """Crop, resize and, at random, mirror the uint8 image of a row; return uint8."""
        box, mirrored = self._drawn(image.shape[1], image.shape[2], row)
        part = image[:, box.top : box.top + box.height, box.left : box.left + box.width]
        cropped = resize(part, self.size, self.interpolation)
        return cropped.flip(2) if mirrored else cropped

    def spans(self, height: int, width: int, row: int) -> tuple[Span, Span]:
        """Return what `to_input` shows of an image of this size, for `resample`."""
        box, mirrored = self._drawn(height, width, row)
        ends = (self.size[1] - 1, -1) if mirrored else (0, 1)
        rows = (box.top, box.height, self.size[0], 0, 1)
        return rows, (box.left, box.width, self.size[1], *ends)

    def _drawn(self, height: int, width: int, row: int) -> tuple[Box, bool]:
        draw = np.random.default_rng([self.seed, self.number, row]).random
        return crop_box(height, width, draw), draw() < FLIP


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
