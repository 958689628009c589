"""A step of the user: a function of (batch, head, state) in place of the gradient of the loss.

The function returns a loss, which PyTorch differentiates, or the gradients of weight and bias. The
optimizer, its schedule and the anchor stay. `state` is a dictionary that belongs to one head for
the whole run, for what a method remembers from batch to batch and from task to task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.errors import ExperimentError
from clinit.setting import Imported


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Batch:
    """The rows of one update, as a user's step sees them."""

    features: Float[Tensor, "rows dim"]
    labels: Int[Tensor, " rows"]
    num_old: int
    """Number of classes before the task; the labels of its classes begin here."""
    task: int
    """Number of the task, from 1."""
    iteration: int
    """Updates of the task before this one."""

    @property
    def is_new(self) -> Bool[Tensor, " rows"]:
        """Whether each row belongs to a class of the task."""
        return self.labels >= self.num_old


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """Weight and bias of a head, to be differentiated."""

    weight: Float[Tensor, "classes dim"]
    bias: Float[Tensor, " classes"]

    def __call__(self, features: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows classes"]:
        """Return the logits."""
        return torch.nn.functional.linear(features, self.weight, self.bias)


class OwnStep:
    """The function at an import path, with the state of one head."""

    def __init__(self, path: Imported, state: dict[str, Any]) -> None:
        self._path, self._function, self._state = path.path, path.load(), state

    def gradients(
        self, batch: Batch, weight: Float[Tensor, "classes dim"], bias: Float[Tensor, " classes"]
    ) -> tuple[Float[Tensor, "classes dim"], Float[Tensor, " classes"]]:
        """Return the gradients of weight and bias.

        Raises:
            ExperimentError: If the function fails, or returns neither a loss nor two gradients.
        """
        with torch.enable_grad():
            head = Parameters(*(each.detach().requires_grad_() for each in (weight, bias)))
            found, of = self._function(batch, head, self._state), (head.weight, head.bias)
            if isinstance(found, Tensor) and found.ndim == 0 and found.requires_grad:
                found = torch.autograd.grad(found, of, materialize_grads=True)
        each = found if isinstance(found, tuple | list) else [found]
        shapes = [tuple(getattr(one, "shape", (type(one).__name__,))) for one in each]
        if shapes != [tuple(one.shape) for one in of]:
            wanted = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise ExperimentError(
                f"{self._path} returned {shapes}, expected a loss, a tensor () with gradient, or"
                f" gradients of weight and bias, {wanted}",
                remedy="docs/extend.md shows a step.",
            )
        return found[0], found[1]
