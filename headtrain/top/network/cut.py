"""A network cut in front of its first plastic block.

    normalised images --trunk--> activations --top--> penultimate features

`top(trunk(x))` is `forward_head(forward_features(x), pre_logits=True)`: the same modules run in
the same order. What follows the last block (a norm, the pooling, a dense layer before the
classifier) is part of the top, and so is a downsampling between two plastic blocks; neither is a
block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clinit.errors import BackboneError
from clinit.headtrain.top.network.families import Step, family_of


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The two halves of a network.

    Both run the network's own modules: they follow it from device to device, and
    parametrising or training a module of the network changes `top`. A copy of the network needs
    a cut of its own.
    """

    trunk: Callable[[Tensor], Tensor]
    """Normalised images (batch, 3, height, width) -> activations (batch, *shape) in front of the
    first plastic block; no gradient flows back through it."""
    top: Callable[[Tensor], Tensor]
    """Activations -> penultimate features (batch, dim), differentiable; they are not changed."""
    blocks: tuple[str, ...]
    """Dotted names, in the network, of the plastic blocks, in forward order."""


def block_names(network: nn.Module) -> tuple[str, ...]:
    """Return the dotted names of all blocks of a network, in forward order.

    Raises:
        BackboneError: If the network belongs to no supported family.
    """
    steps = family_of(network).steps(network)
    return tuple(step.block for step in steps if step.block is not None)


def cut(network: nn.Module, top_blocks: int) -> Cut:
    """Cut a network in front of its last `top_blocks` blocks.

    Raises:
        BackboneError: If the network belongs to no supported family, or has fewer blocks.
    """
    names = block_names(network)
    if not 1 <= top_blocks <= len(names):
        raise BackboneError(
            f"{top_blocks} top blocks were asked for; this {type(network).__name__}"
            f" has {len(names)} blocks",
            remedy=f"Give `--top-blocks` from 1 to {len(names)}.",
        )
    blocks = names[-top_blocks:]
    steps = tuple(family_of(network).steps(network))
    first = next(index for index, step in enumerate(steps) if step.block == blocks[0])
    run_trunk, run_top = _chain(steps[:first]), _chain(steps[first:])

    def top(activations: Tensor) -> Tensor:
        features: Tensor = network.forward_head(  # type: ignore[operator]
            run_top(activations), pre_logits=True
        )
        return features

    return Cut(torch.no_grad()(run_trunk), top, blocks)


def _chain(steps: Sequence[Step]) -> Callable[[Tensor], Tensor]:
    runs = tuple(step.run for step in steps)

    def run(x: Tensor) -> Tensor:
        for step in runs:
            x = step(x)
        return x

    return run


@torch.no_grad()
def check_cut(cut: Cut, network: nn.Module, batch: Float[Tensor, "batch 3 height width"]) -> None:
    """Check on one batch of normalised images that the two halves give the network's features.

    Raises:
        BackboneError: If they do not, to 1e-4 of the largest feature.
    """
    maps = network.forward_features(batch)  # type: ignore[operator]
    expected: Tensor = network.forward_head(maps, pre_logits=True)  # type: ignore[operator]
    found = cut.top(cut.trunk(batch))
    scale = float(expected.abs().max().clamp(min=1))
    # Not `>`: a comparison with NaN must fail too.
    if found.shape != expected.shape or not float((found - expected).abs().max()) <= 1e-4 * scale:
        raise BackboneError(
            f"this {type(network).__name__}, cut in front of {cut.blocks[0]}, does not give"
            " its own features",
            remedy="Choose another backbone, or train its head alone with `clinit train-head`.",
        )
