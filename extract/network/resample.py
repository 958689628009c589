"""Resize and crop images of different sizes at once, on the device that has decoded them.

To resize an image is to multiply its rows, then its columns, by a banded matrix: each pixel of the
input is a weighted sum of neighbours (*taps*). So a batch takes about as many launches as an image;
PyTorch's own function takes images of one size only.

The weights are those of PyTorch's antialiasing, and of Pillow: the kernel, a triangle or Keys'
cubic with a = -1/2, is as many times wider as the image becomes smaller, and its values at the
centres of the pixels are divided by their sum. A pixel differs from PyTorch's, by one level, only
if its sum lies halfway between two levels up to the rounding of float32.

All sums are in float32, whatever the precision of the network is, and taken tap by tap (only the
sum of the weights is not, therefore it is of whole numbers). Taps that an image does not need have
weight 0, so that its bits do not depend on other images.

Source: R. G. Keys, "Cubic convolution interpolation for digital image processing", IEEE
Transactions on Acoustics, Speech, and Signal Processing 29(6), 1981.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.nn.functional import embedding_bag

_MOST_PIXELS = 2**25
"""Pixels to resize at a time, each image in the space of the largest: at most 1.3 GB."""
_MOST_SIDES = 2**19
"""Sides to weigh at a time, each image's as long as the longest: at most 250 MB."""
_RADIUS = {"nearest": 0, "bilinear": 1, "bicubic": 2}
_WHOLE = 2.0**32
"""The weights are multiples of 1 / _WHOLE; a sum of 2^20 of them is exact in float64."""


Span = tuple[int, int, int, int, int]
"""What the rows, or the columns, of an input show: start, side, resized, first and step.

The part of an image from pixel *start* on, of *side* pixels, is *resized* to so many pixels. Pixel
p of the input is the resized part's pixel *first* + *step* p, or black if there is none.
"""


def resample(
    images: Sequence[UInt8[Tensor, "3 _ _"]],
    spans: Sequence[tuple[Span, Span]],
    size: tuple[int, int],
    interpolation: str,
) -> Iterator[tuple[list[int], UInt8[Tensor, "_ 3 height width"]]]:
    """Resize and crop images on their device; yield the places of some, and their inputs.

    Images of similar sides come together, so that a huge one does not make the others take space.

    Args:
        images: Images on one device.
        spans: The rows and the columns of each input.
        size: Height and width of the inputs in pixels.
        interpolation: One of INTERPOLATIONS.
    """
    sides = [max(*image.shape, *size) for image in images]
    order = sorted(range(len(images)), key=sides.__getitem__)
    for places in _cut(order, sides, 1, _MOST_SIDES):
        shown = np.array([spans[place] for place in places])
        pair = _taps(shown.transpose(1, 2, 0), max(size), interpolation, images[0].device)
        groups = [*_cut(places, sides, 2, _MOST_PIXELS)]
        taps, weights = (each.split([*map(len, groups)], dim=1) for each in pair)
        chosen = ([images[place] for place in group] for group in groups)
        yield places, torch.cat([*map(partial(_resized, size), chosen, taps, weights)])


def _cut(places: list[int], sides: Sequence[int], power: int, most: int) -> Iterator[list[int]]:
    """Cut places, from the smallest side up, into parts of number * side^power <= most."""
    while places:
        spaces = (number * sides[place] ** power for number, place in enumerate(places, 1))
        count = max(1, sum(space <= most for space in spaces))
        yield places[:count]
        places = places[count:]


def _taps(
    spans: Int[np.ndarray, "2 5 n"], size: int, interpolation: str, device: torch.device
) -> tuple[Int[Tensor, "2 n {size} taps"], Float[Tensor, "2 n {size} taps"]]:
    """Return the pixels of an axis that each of the first `size` places sums, and the weights."""
    smaller = max(1.0, float((spans[:, 1] / spans[:, 2]).max()))
    most = math.ceil(2 * _RADIUS[interpolation] * smaller) + 1
    given = torch.from_numpy(spans).to(device, non_blocking=True)[..., None, None]
    start, side, resized, first, step = given.unbind(1)
    place = first + step * torch.arange(size, device=device)[:, None]
    shown = (place >= 0) & (place < resized)
    scale = side / resized
    if interpolation == "nearest":
        tap = (place * scale).floor().minimum(side - 1)
        weight = torch.ones_like(tap)
    else:
        stretch, centre = scale.clamp(min=1), scale * (place + 0.5)
        lowest = (centre - _RADIUS[interpolation] * stretch + 0.5).floor().clamp(min=0)
        tap = lowest + torch.arange(most, device=device)
        weight = _kernel(((tap - centre + 0.5) / stretch).abs(), interpolation)
    whole = (weight * (shown & (tap < side))).double().mul(_WHOLE).round()
    weight = (whole / whole.sum(-1, keepdim=True).clamp(min=1)).float()
    return start + tap.clamp(min=0).minimum(side - 1).long(), weight


def _kernel(distance: Float[Tensor, "*n"], interpolation: str) -> Float[Tensor, "*n"]:
    if interpolation == "bilinear":
        return (1 - distance).clamp(min=0)
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = -0.5 * (((distance - 5) * distance + 8) * distance - 4)
    return torch.where(distance < 1, near, far * (distance < 2))


def _resized(
    size: tuple[int, int],
    images: Sequence[UInt8[Tensor, "3 _ _"]],
    taps: Int[Tensor, "2 n _ k"],
    weights: Float[Tensor, "2 n _ k"],
) -> UInt8[Tensor, "n 3 height width"]:
    count, device = len(images), images[0].device
    shapes = np.array([image.shape[1:] for image in images])
    high, wide = (int(most) for most in shapes.max(0))
    begins = 3 * np.append(0, shapes.prod(1).cumsum()[:-1])
    table = torch.from_numpy(np.stack([begins, *shapes.T])).to(device, non_blocking=True)
    begin, height, width = table[..., None, None].unbind()
    row = torch.arange(high, device=device)[:, None].minimum(height - 1)
    starts = begin + (row + height * torch.arange(3, device=device)) * width
    # In one call: each waits for Python's lock.
    content = _flatten_dense_tensors([*images, images[0].new_zeros(wide)])
    windows = content.unfold(0, wide, 1)  # a view: each byte and those after it
    (down, across), (by_row, by_column) = taps, weights
    rows = _sums(windows[starts].float().flatten(2), down[:, : size[0]], by_row[:, : size[0]])
    rows = rows.view(count, -1, wide).mT
    columns = _sums(rows, across[:, : size[1]], by_column[:, : size[1]])
    pixels = columns.view(count, size[1], size[0], 3).permute(0, 3, 2, 1)
    return pixels.round_().clamp_(0, 255).to(torch.uint8)


def _sums(
    rows: Float[Tensor, "n side m"], taps: Int[Tensor, "n out k"], weights: Float[Tensor, "n out k"]
) -> Float[Tensor, "n out m"]:
    """Return weighted sums of rows, each taken from first to last by one thread."""
    count, side, length = rows.shape
    bags = (taps + side * torch.arange(count, device=rows.device)[:, None, None]).flatten(0, 1)
    table, factors = rows.contiguous().view(-1, length), weights.flatten(0, 1)
    found: Tensor = embedding_bag(bags, table, per_sample_weights=factors, mode="sum")
    return found.view(count, -1, length)
