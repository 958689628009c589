"""The frozen part of a cut network, run over images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clinit.extract.backbone import BackboneConfig
from clinit.extract.transform import Transform
from clinit.headtrain.top.network.cut import Cut

FLOAT16 = torch.finfo(torch.float16)


@dataclass(frozen=True, eq=False)
class Trunk:
    """What turns images into activations in front of the first plastic block."""

    config: BackboneConfig
    cut: Cut
    transform: Transform

    def features(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch ..."]:
        """Return the activations of normalised images, in float32."""
        with torch.no_grad(), self.config.arithmetic():
            activations = self.cut.trunk(batch)
        return activations.float()

    def of_pixels(
        self, pixels: UInt8[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch ..."]:
        """Return the activations of decoded images as a cache would give them back.

        They are rounded to float16, or left alone where that would overflow or round an image to
        zeros (`fits_float16`), so that whether they were stored in between changes last bits only.
        """
        there = pixels.to(self.config.device, non_blocking=True)
        activations = self.features(self.transform.normalise(there))
        return activations.half() if _fits_float16(activations) else activations

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image's activations."""
        pixels = torch.zeros((1, 3, *self.transform.crop), dtype=torch.uint8)
        return tuple(self.of_pixels(pixels).shape[1:])


def _fits_float16(activations: Float[Tensor, "batch ..."]) -> bool:
    """Return whether float16 can hold them, as `clinit.extract.shard.fits_float16` decides."""
    if not len(activations):
        return True
    largest = activations.abs().flatten(1).amax(dim=1)
    small = activations[largest < FLOAT16.smallest_normal]
    return bool((largest < FLOAT16.max).all()) and torch.equal(small.half().float(), small)
