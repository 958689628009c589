"""One task's training of a bank: two matrix products and one fused AdamW pass a step.

No autograd: the gradient of a linear head is the gradient of its logits times the features.
The optimizer state is fresh, so the moments of new rows cannot be those of a stale head.

All tensors of a step are made once and stay where they are, nothing waits for the device: a step
on a CUDA device can be captured as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.adamw import adamw, spans
from clinit.headtrain.bank import Bank
from clinit.headtrain.losses import Loss, loss_named
from clinit.headtrain.precision import check_precision, products_in
from clinit.headtrain.products import Bf16Products, Float32Products, Products


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Heads whose products are taken in one call; they share a loss."""

    heads: slice
    loss: Loss
    weight: Float[Tensor, "rows dim"]
    """Of all heads below each other: rows of one head after those of the other."""
    bias: Float[Tensor, " rows"]
    weight_gradient: Float[Tensor, "rows dim"]
    bias_gradient: Float[Tensor, " rows"]
    logits: Float[Tensor, "batch heads classes"]
    gradient: Float[Tensor, "batch heads classes"]
    """Of the logits."""
    optimizer: torch.optim.Optimizer


class Training:
    """Steps of a bank whose number of rows stays as it is."""

    features: Float[Tensor, "batch dim"]
    """Of the next update, float32."""
    labels: Int[Tensor, " batch"]
    losses: Float[Tensor, "batch heads"]
    """Of the last update, before it."""

    def __init__(self, bank: Bank, batch_size: int) -> None:
        check_precision(bank.precision, bank.device)
        self._precision = bank.precision
        self.features = bank.weight.new_empty(batch_size, bank.dim)
        self.labels = torch.zeros(batch_size, dtype=torch.int64, device=bank.device)
        self.losses = bank.weight.new_zeros(batch_size, bank.num_heads)
        most = max(heads.stop - heads.start for heads, _ in _split(bank))
        self._products = _products(bank, batch_size, most * bank.num_classes)
        self._blocks = _make_blocks(bank, batch_size, most)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """One for each block of heads that is updated together."""
        return [block.optimizer for block in self._blocks]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """That of a single head, for a schedule of its learning rate."""
        (only,) = self.optimizers
        return only

    def step(
        self, features: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch heads"]:
        """Do one update on the mean loss of a batch; return the losses before it.

        `features` may be float16: they are widened into a buffer of this object. The losses are
        in a buffer too, which the next step overwrites.
        """
        self.features.copy_(features)
        self.labels.copy_(labels)
        self.update()
        return self.losses

    def update(self) -> None:
        """Do one update on what `features` and `labels` hold; fill `losses`."""
        with products_in(self._precision):
            self._products.read(self.features)
            for block in self._blocks:
                self._update(block)

    def _update(self, block: _Block) -> None:
        rows = len(self.labels)
        logits = block.logits.view(rows, -1)
        self._products.logits(block.weight, block.bias, out=logits)
        labels = self.labels[:, None].expand(block.logits.shape[:2])
        values, _ = block.loss.value_and_gradient(block.logits, labels, out=block.gradient)
        self.losses[:, block.heads] = values
        gradient = block.gradient.view(rows, -1)
        self._products.weight_gradient(gradient, 1 / rows, out=block.weight_gradient)
        torch.sum(gradient, dim=0, out=block.bias_gradient)
        block.bias_gradient.mul_(1 / rows)
        block.optimizer.step()


def _split(bank: Bank) -> Iterator[tuple[slice, str]]:
    """Yield the heads of each block and their loss.

    A CPU takes head after head: weights, logits and moments of one head stay in its caches,
    where those of a whole bank are read from memory by every pass. A CUDA device is filled by
    all heads of a loss at once.
    """
    for heads, loss in spans([head.loss for head in bank.heads]):
        if bank.device.type == "cuda":
            yield heads, loss
        else:
            yield from ((slice(head, head + 1), loss) for head in range(heads.start, heads.stop))


def _products(bank: Bank, batch_size: int, rows: int) -> Products:
    if bank.precision == "bf16":
        return Bf16Products(batch_size, rows, bank.dim, bank.device)
    return Float32Products()


def _make_blocks(bank: Bank, batch_size: int, most_heads: int) -> list[_Block]:
    """Make all blocks; gradients and logits of one are overwritten by the next."""
    shape = (most_heads, bank.num_classes)
    weight_gradient = bank.weight.new_zeros(*shape, bank.dim)
    bias_gradient = bank.weight.new_zeros(shape)
    logits, gradient = (
        bank.weight.new_empty(batch_size * most_heads * bank.num_classes) for _ in range(2)
    )
    blocks = []
    for heads, loss in _split(bank):
        num = heads.stop - heads.start
        settings = [(head.lr, head.weight_decay) for head in bank.heads[heads]]
        part = (batch_size, num, bank.num_classes)
        values = batch_size * num * bank.num_classes
        blocks.append(
            _Block(
                heads=heads,
                loss=loss_named(loss),
                weight=bank.weight[heads].view(-1, bank.dim),
                bias=bank.bias[heads].view(-1),
                weight_gradient=weight_gradient[:num].view(-1, bank.dim),
                bias_gradient=bias_gradient[:num].view(-1),
                logits=logits[:values].view(part),
                gradient=gradient[:values].view(part),
                optimizer=adamw(
                    bank.weight[heads],
                    bank.bias[heads],
                    weight_gradient[:num],
                    bias_gradient[:num],
                    settings,
                ),
            )
        )
    return blocks
