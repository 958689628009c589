"""Sums of quadratic penalties around anchors, as one quadratic.

    sum_a F_a (theta - theta_a)^2 = F (theta - c)^2 + constant,
    F = sum_a F_a,  c = sum_a F_a theta_a / F

for each parameter, so any number of tasks takes the space and the time of one. Kirkpatrick et al.
(2017) note that the sum of two such penalties is again such a penalty. The running centre is
updated by its difference to the new anchor, which loses no precision where the F differ greatly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True, eq=False)
class Quadratic:
    """sum_k F_k (theta_k - c_k)^2 + constant over named parameters.

    A tensor of F may have fewer rows than its parameter: rows of classes that came later are
    free.
    """

    fisher: Mapping[str, Tensor]
    """F, at least 0, by the name of the parameter."""
    centre: Mapping[str, Tensor]
    """c, of the same shapes."""
    constant: Float[Tensor, ""]

    @classmethod
    def around(cls, fisher: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Quadratic:
        """Return the penalty of one anchor: `values`, as far as `fisher` has rows."""
        centre = {
            name: _first(values[name].detach(), like).clone() for name, like in fisher.items()
        }
        return cls(dict(fisher), centre, next(iter(fisher.values())).new_zeros(()))

    def value(self, parameters: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """Return the penalty; differentiable in `parameters`."""
        held = [_first(parameters[name], like) for name, like in self.fisher.items()]
        fisher, centre = list(self.fisher.values()), list(self.centre.values())
        springs: Tensor = _Springs.apply(fisher, centre, *held)
        return self.constant + springs

    def __add__(self, later: Quadratic) -> Quadratic:
        """Return the sum; `later` may have more rows, not fewer."""
        fisher, centre = {}, {}
        constant = self.constant + later.constant
        for name, new in later.fisher.items():
            old, old_centre = _grown(self.fisher[name], new), _grown(self.centre[name], new)
            fisher[name] = old + new
            share = torch.where(fisher[name] > 0, new / fisher[name], torch.ones_like(new))
            difference = later.centre[name] - old_centre
            # Where the first anchor has no weight the later one is the centre, to the last bit.
            centre[name] = torch.where(
                share == 1, later.centre[name], old_centre + share * difference
            )
            constant = constant + (old * share * difference * difference).sum()
        return Quadratic(fisher, centre, constant)

    def online(self, later: Quadratic, gamma: float) -> Quadratic:
        """Return gamma F + F_later around the later anchor alone (Schwarz et al., 2018)."""
        fisher = {
            name: gamma * _grown(self.fisher[name], new) + new for name, new in later.fisher.items()
        }
        return Quadratic(fisher, later.centre, later.constant)


class _Springs(torch.autograd.Function):
    """sum_k F_k (theta_k - c_k)^2 for lists of tensors: a few launches on a CUDA device.

    Written with autograd it takes over ten launches per tensor and step. On a CPU both take the
    same time, and tensors joined to a single vector four times as long.
    """

    @staticmethod
    def forward(ctx: Any, fisher: list[Tensor], centre: list[Tensor], *held: Tensor) -> Tensor:
        difference = torch._foreach_sub(held, centre)
        ctx.force = torch._foreach_mul(difference, fisher)
        energy = torch._foreach_mul(ctx.force, difference)
        return torch.stack(torch._foreach_norm(energy, 1)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *torch._foreach_mul(ctx.force, 2 * upstream)


def _first(values: Tensor, like: Tensor) -> Tensor:
    """Return the rows of `values` that `like` has."""
    return values[: len(like)] if like.ndim else values


def _grown(values: Tensor, like: Tensor) -> Tensor:
    """Append rows of zeros until there are as many as in `like`."""
    if values.shape == like.shape:
        return values
    return torch.cat([values, values.new_zeros(len(like) - len(values), *values.shape[1:])])
