"""A network that is far larger than its weights is not built.

What a network is made of is said by names and numbers in a file of any size. So it is built
without memory first, on PyTorch's meta device, and what it holds is counted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from clinit.errors import BackboneError

MARGIN = 4
"""How many times larger than its weights a network may be: position embeddings are resampled to
other sizes, and tables of positions stand in no file."""
_FREE = 10_000_000
"""Values that any network may have."""
_FREE_TENSORS = 1_000


@dataclass(frozen=True, slots=True)
class NetworkSize:
    """What a network or its weights consist of."""

    tensors: int
    values: int

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> NetworkSize:
        """Return the size of weights."""
        tensors = [value for value in state.values() if isinstance(value, Tensor)]
        return cls(len(tensors), sum(tensor.numel() for tensor in tensors))

    @classmethod
    def of_model(cls, name: str) -> NetworkSize:
        """Return the size of timm's own model of a name."""
        with torch.device("meta"):
            network: nn.Module = timm.create_model(name)
        return cls.of_state(dict(network.named_parameters()))


def check_size(name: str, arguments: Mapping[str, Any], weights: NetworkSize | None) -> None:
    """Check that a network is not far larger than its weights.

    Args:
        name: timm's name of the network.
        arguments: Keyword arguments of `timm.create_model`.
        weights: What is to be loaded into it; None for timm's own weights of that name.

    Raises:
        BackboneError: If it is.
        Exception: Whatever timm raises: a network that cannot be counted is not to be built.
    """
    held = NetworkSize.of_model(name) if weights is None else weights
    with _counted(name, held), torch.device("meta"):
        timm.create_model(name, pretrained=False, **arguments)


@contextmanager
def _counted(name: str, weights: NetworkSize) -> Iterator[None]:
    """Stop the construction of modules as soon as they hold too much."""
    tensors = values = 0

    def count(module: nn.Module, key: str, value: Tensor | None) -> None:
        nonlocal tensors, values
        if value is None:
            return
        tensors, values = tensors + 1, values + value.numel()
        if values > MARGIN * weights.values + _FREE or (
            tensors > MARGIN * weights.tensors + _FREE_TENSORS
        ):
            raise BackboneError(
                f"{name} with these arguments has more than {MARGIN} times what its weights hold,"
                f" {weights.values:,} values in {weights.tensors:,} tensors",
                remedy="Check `--backbone` and `--model-arg` against the model that was saved; a"
                " file that asks for this by itself is not to be trusted.",
            )

    registers: tuple[Callable[..., Any], ...] = (
        register_module_parameter_registration_hook,
        register_module_buffer_registration_hook,
    )
    handles = [register(count) for register in registers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
