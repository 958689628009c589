"""What a family of networks must say so that its networks can be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
    """A model of timm."""
    networks: tuple[type[nn.Module], ...]
    steps: Callable[[nn.Module], Iterator[Step]]
    """The steps of `forward_features` in order; `forward_head` follows."""
    linear_layers: Callable[[nn.Module], tuple[str, ...]]
    """Names, in a block, of its linear layers for low-rank updates; empty for an unknown block."""


def numbered(prefix: str, blocks: nn.Module) -> Iterator[Step]:
    """Yield the blocks of a module that runs its children one after another."""
    for name, block in blocks.named_children():
        yield Step(block, f"{prefix}.{name}")


def mlp_layers(block: Any) -> tuple[str, ...]:
    """Name the linear layers of the MLP of a block, if it has one."""
    # A gated MLP (SwiGLU) may hold its first layer as two.
    names = ("fc1", "fc1_g", "fc1_x", "fc2")
    return tuple(f"mlp.{name}" for name in names if hasattr(getattr(block, "mlp", None), name))
