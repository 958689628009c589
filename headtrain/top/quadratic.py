"""Sums of quadratic penalties around anchors, as one quadratic.

    sum_a F_a (theta - theta_a)^2 = F (theta - c)^2 + constant,
    F = sum_a F_a,  c = sum_a F_a theta_a / F

for each parameter, so any number of tasks takes the space and the time of one. Kirkpatrick et al.
(2017) note that the sum of two such penalties is one of them. The running centre is updated by
its difference to the new anchor, which loses nothing where the F are far apart in size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


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
            name: _first(values[name].detach(), weights).clone() for name, weights in fisher.items()
        }
        return cls(dict(fisher), centre, torch.zeros((), device=_device(fisher)))

    def value(self, parameters: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """Return the penalty; differentiable in `parameters`."""
        total = self.constant
        for name, weights in self.fisher.items():
            difference = _first(parameters[name], weights) - self.centre[name]
            total = total + (weights * difference * difference).sum()
        return total

    def __add__(self, later: Quadratic) -> Quadratic:
        """Return the sum; `later` may have more rows, not fewer."""
        fisher, centre = {}, {}
        constant = self.constant + later.constant
        for name, new in later.fisher.items():
            old, old_centre = _grown(self.fisher[name], new), _grown(self.centre[name], new)
            fisher[name] = old + new
            share = torch.where(fisher[name] > 0, new / fisher[name], torch.ones_like(new))
            difference = later.centre[name] - old_centre
            centre[name] = old_centre + share * difference
            # Where nothing weighs, the later anchor is the centre, whatever the first one is.
            centre[name] = torch.where(share == 1, later.centre[name], centre[name])
            constant = constant + (old * share * difference * difference).sum()
        return Quadratic(fisher, centre, constant)

    def online(self, later: Quadratic, gamma: float) -> Quadratic:
        """Return gamma F + F_later around the later anchor alone (Schwarz et al., 2018)."""
        fisher = {
            name: gamma * _grown(self.fisher[name], new) + new for name, new in later.fisher.items()
        }
        return Quadratic(fisher, later.centre, later.constant)


def _first(values: Tensor, like: Tensor) -> Tensor:
    """Return the rows of `values` that `like` has."""
    return values[: len(like)] if like.ndim else values


def _grown(values: Tensor, like: Tensor) -> Tensor:
    """Append rows of zeros until there are as many as in `like`."""
    if values.shape == like.shape:
        return values
    return torch.cat([values, values.new_zeros(len(like) - len(values), *values.shape[1:])])


def _device(values: Mapping[str, Tensor]) -> torch.device:
    return next(iter(values.values())).device
