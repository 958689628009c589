"""What a family of networks declares so that its networks can be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of a forward pass."""

    run: Callable[[Tensor], Tensor]
    block: str | None = None
    """Dotted name in the network where the step is a block, None for what lies between blocks."""


@dataclass(frozen=True, slots=True)
class Family:
    """Networks whose `forward_features` is a chain of steps."""

    name: str
    example: str
    """Name of a timm model of the family."""
    networks: tuple[type[nn.Module], ...]
    steps: Callable[[nn.Module], Iterator[Step]]
    """The steps of `forward_features` in order; `forward_head` follows."""
    linear_layers: Callable[[nn.Module], tuple[str, ...]]
    """Names, in a block, of its linear layers for low-rank updates; empty for an unknown block."""


def numbered(prefix: str, blocks: nn.Module) -> Iterator[Step]:
    """Yield the blocks of a module that runs its children one after another."""
    for name, block in blocks.named_children():
        yield Step(block, f"{prefix}.{name}")


def mlp_layers(block: nn.Module) -> tuple[str, ...]:
    """Return the names of the linear layers of the MLPs of a block, which may have several."""
    # A gated MLP (SwiGLU) may hold its first layer as two.
    layers = ("fc1", "fc1_g", "fc1_x", "fc2")
    mlps = (item for item in block.named_modules() if item[0].rpartition(".")[2] == "mlp")
    return tuple(f"{name}.{layer}" for name, mlp in mlps for layer in layers if hasattr(mlp, layer))
