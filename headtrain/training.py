"""One task's training of a bank: two matrix products and one fused AdamW pass a step.

No autograd: the gradient of a linear head is the gradient of its logits times the features.
The optimizer state is fresh, so the moments of new rows cannot be those of a stale head.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.adamw import adamw, spans
from clinit.headtrain.bank import Bank
from clinit.headtrain.losses import loss_named


class Training:
    """Steps of a bank whose number of rows stays as it is."""

    def __init__(self, bank: Bank, batch_size: int) -> None:
        self._bank = bank
        names = [head.loss for head in bank.heads]
        self._losses = [(heads, loss_named(name)) for heads, name in spans(names)]
        self._features = bank.weight.new_empty(batch_size, bank.dim)
        self._logits = bank.weight.new_empty(batch_size, bank.num_heads, bank.num_classes)
        self._gradient = torch.empty_like(self._logits)
        self._weight_gradient = torch.zeros_like(bank.weight)
        self._bias_gradient = torch.zeros_like(bank.bias)
        settings = [(head.lr, head.weight_decay) for head in bank.heads]
        self.optimizer = adamw(
            bank.weight, bank.bias, self._weight_gradient, self._bias_gradient, settings
        )

    def step(
        self, features: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch heads"]:
        """Do one update on the mean loss of a batch; return the losses before it.

        `features` may be float16: they are widened into a buffer of this object.
        """
        rows = len(labels)
        self._features.copy_(features)
        logits = self._bank.logits(self._features, out=self._logits)
        losses, gradient = self._losses_and_gradient(logits, labels)
        flat = gradient.mul_(1 / rows).view(rows, -1)
        weight_gradient = self._weight_gradient.view(-1, self._bank.dim)
        torch.mm(flat.t(), self._features, out=weight_gradient)
        torch.sum(flat, dim=0, out=self._bias_gradient.view(-1))
        self.optimizer.step()
        return losses

    def _losses_and_gradient(
        self, logits: Float[Tensor, "batch heads classes"], labels: Int[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch heads"], Float[Tensor, "batch heads classes"]]:
        shared = labels[:, None].expand(logits.shape[:2])
        if len(self._losses) == 1:
            return self._losses[0][1].value_and_gradient(logits, shared)
        values = logits.new_empty(logits.shape[:2])
        for heads, loss in self._losses:
            values[:, heads], self._gradient[:, heads] = loss.value_and_gradient(
                logits[:, heads], shared[:, heads]
            )
        return values, self._gradient
