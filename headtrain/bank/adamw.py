"""AdamW over views of a bank's tensors: one fused launch for each setting.

Update and kernel are torch's (I. Loshchilov, F. Hutter, "Decoupled weight decay regularization",
ICLR 2019), called as a function: the class `torch.optim.AdamW` loads the compiler of torch when it
is made, which takes longer than a short run, and costs as much per step as a small head does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw

BETAS = (0.9, 0.999)
EPS = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class AdamW:
    """Parameters that share a learning rate and a weight decay, with their moments."""

    parameters: Sequence[Tensor]
    """Updated in place."""
    gradients: Sequence[Tensor]
    """Read at each step, from the memory that they have now."""
    moments: Sequence[Tensor]
    """Running means of the gradients."""
    squares: Sequence[Tensor]
    """Running means of their squares."""
    steps: Sequence[Tensor]
    """Number of steps done, of each parameter."""
    lr: float
    weight_decay: float

    @classmethod
    def fresh(
        cls,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        *,
        lr: float,
        weight_decay: float,
    ) -> AdamW:
        """Begin with moments of zero."""
        return cls(
            parameters=parameters,
            gradients=gradients,
            moments=[torch.zeros_like(each) for each in parameters],
            squares=[torch.zeros_like(each) for each in parameters],
            steps=[each.new_zeros(()) for each in parameters],
            lr=lr,
            weight_decay=weight_decay,
        )

    @property
    def state(self) -> list[Tensor]:
        """Return what it remembers between steps."""
        return [*self.moments, *self.squares, *self.steps]

    def step(self, share: float = 1.0) -> None:
        """Do one step, with this share of the learning rate. Nothing waits for the device."""
        adamw(
            list(self.parameters),
            list(self.gradients),
            list(self.moments),
            list(self.squares),
            [],
            list(self.steps),
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=share * self.lr,
            weight_decay=self.weight_decay,
            eps=EPS,
            maximize=False,
        )
