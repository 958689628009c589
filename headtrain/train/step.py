"""One update of a bank: two matrix products and one fused AdamW pass.

No autograd: the gradient of a linear head is the gradient of its logits times the features. The
optimizer is torch's fused kernel, applied to views of the bank's tensors. Written out with tensors
of per-head rates it took three times as long on a CPU, eight passes instead of one. Neighbours with
equal settings share a view and a launch. The optimizer state is fresh, so that the moments of new
rows cannot be those of a stale head.

All tensors of a step are made once and stay where they are, and nothing waits for the device: a
step on a CUDA device can be captured as it is.

AdamW over views of a bank's tensors: one fused launch for each setting.

Update and kernel are torch's (I. Loshchilov, F. Hutter, "Decoupled weight decay regularization",
ICLR 2019), called as a function: the class `torch.optim.AdamW` loads the compiler of torch when it
is made, which takes longer than a short run, and costs as much per step as a small head does.

The two matrix products of an update, in float32 or bfloat16.

    logits     u = x W^T + b                 rows x (heads classes)
    gradient   dW = (1 / rows) (dL/du)^T x   (heads classes) x dim

In bfloat16 both operands and both results are rounded; the bias is added in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim.adamw import adamw

from clinit.headtrain.train.heads import Bank, check_precision, products_in
from clinit.headtrain.train.losses import Loss, loss_named

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


@runtime_checkable
class Products(Protocol):
    """Products of one batch with blocks of at most as many rows as were announced."""

    def read(self, features: Float[Tensor, "batch dim"]) -> None:
        """Take the features of a batch, for all blocks."""
        ...

    def logits(
        self,
        weight: Float[Tensor, "rows dim"],
        bias: Float[Tensor, " rows"],
        out: Float[Tensor, "batch rows"],
    ) -> None:
        """Write the logits of the batch into `out`."""
        ...

    def weight_gradient(
        self, gradient: Float[Tensor, "batch rows"], scale: float, out: Float[Tensor, "rows dim"]
    ) -> None:
        """Write the gradient of the weight, `scale` times the product, into `out`."""
        ...


class Float32Products:
    """Products of float32 matrices; CUDA may take them in TF32, where that is switched on."""

    def __init__(self) -> None:
        self._features = torch.empty(0)

    def read(self, features: Float[Tensor, "batch dim"]) -> None:
        """Keep a reference."""
        self._features = features

    def logits(
        self,
        weight: Float[Tensor, "rows dim"],
        bias: Float[Tensor, " rows"],
        out: Float[Tensor, "batch rows"],
    ) -> None:
        """Multiply and add in one call."""
        torch.addmm(bias, self._features, weight.t(), out=out)

    def weight_gradient(
        self, gradient: Float[Tensor, "batch rows"], scale: float, out: Float[Tensor, "rows dim"]
    ) -> None:
        """Multiply."""
        torch.addmm(out, gradient.t(), self._features, beta=0, alpha=scale, out=out)


class Bf16Products:
    """Products of bfloat16 copies, made in place for each block."""

    def __init__(self, batch: int, rows: int, dim: int, device: torch.device) -> None:
        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device=device)

        self._features = empty(batch, dim)
        self._weight = empty(rows, dim)
        self._logits = empty(batch * rows)

    def read(self, features: Float[Tensor, "batch dim"]) -> None:
        """Copy them; give them as float32, which is faster to convert than float16."""
        self._features.copy_(features)

    def logits(
        self,
        weight: Float[Tensor, "rows dim"],
        bias: Float[Tensor, " rows"],
        out: Float[Tensor, "batch rows"],
    ) -> None:
        """Multiply in bfloat16 and add the bias in float32."""
        rounded = self._weight[: len(weight)].copy_(weight)
        logits = self._logits[: out.numel()].view(out.shape)
        torch.mm(self._features, rounded.t(), out=logits)
        out.copy_(logits).add_(bias)  # an addition of two types would allocate

    def weight_gradient(
        self, gradient: Float[Tensor, "batch rows"], scale: float, out: Float[Tensor, "rows dim"]
    ) -> None:
        """Multiply in bfloat16; the rounded weight of the block is not needed any more."""
        rounded = self._logits[: gradient.numel()].view(gradient.shape).copy_(gradient)
        product = self._weight[: len(out)]
        torch.addmm(product, rounded.t(), self._features, beta=0, alpha=scale, out=product)
        out.copy_(product)


Setting = TypeVar("Setting")


def spans(settings: Sequence[Setting]) -> Iterator[tuple[slice, Setting]]:
    """Yield the runs of equal neighbours in `settings`, as slices.

    >>> list(spans(["ce", "ce", "mse"]))
    [(slice(0, 2, None), 'ce'), (slice(2, 3, None), 'mse')]
    """
    start = 0
    for setting, group in groupby(settings):
        stop = start + sum(1 for _ in group)
        yield slice(start, stop), setting
        start = stop


def optimizers(
    weight: Float[Tensor, "heads classes dim"],
    bias: Float[Tensor, "heads classes"],
    weight_gradient: Float[Tensor, "heads classes dim"],
    bias_gradient: Float[Tensor, "heads classes"],
    settings: Sequence[tuple[float, float]],
) -> list[AdamW]:
    """Return optimizers with fresh state that update `weight` and `bias` in place.

    They read the gradients from the two tensors given here at each step.

    Args:
        weight: Weights of the bank.
        bias: Biases of the bank.
        weight_gradient: Where the gradient of `weight` is written before each step.
        bias_gradient: Where that of `bias` is written.
        settings: Learning rate and weight decay of each head.
    """
    return [
        AdamW.fresh(
            [weight[heads], bias[heads]],
            [weight_gradient[heads], bias_gradient[heads]],
            lr=lr,
            weight_decay=weight_decay,
        )
        for heads, (lr, weight_decay) in spans(settings)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _HeadGroup:
    """Heads whose products are taken in one call; they share a loss.

    Rows of one head come after those of the other. All are views, made once: a step of a small
    head would spend a tenth of its time on making them.
    """

    loss: Loss
    weight: Float[Tensor, "rows dim"]
    bias: Float[Tensor, " rows"]
    weight_gradient: Float[Tensor, "rows dim"]
    bias_gradient: Float[Tensor, " rows"]
    logits: Float[Tensor, "batch rows"]
    gradient: Float[Tensor, "batch rows"]
    """Gradient of the loss in the logits."""
    ones: Float[Tensor, "1 batch"]
    labels: Int[Tensor, "batch heads"]
    losses: Float[Tensor, "batch heads"]
    optimizers: Sequence[AdamW]

    def update(self, products: Products, share: float) -> None:
        """Do one update on the batch that `products` has read, with a share of the rates."""
        products.logits(self.weight, self.bias, out=self.logits)
        shape = (*self.labels.shape, -1)
        values, _ = self.loss.value_and_gradient(
            self.logits.view(shape), self.labels, out=self.gradient.view(shape)
        )
        self.losses.copy_(values)
        scale = 1 / len(self.labels)
        products.weight_gradient(self.gradient, scale, out=self.weight_gradient)
        # A product with ones is twice as fast as the sum over rows on a CPU.
        bias_gradient = self.bias_gradient[None]
        torch.addmm(bias_gradient, self.ones, self.gradient, beta=0, alpha=scale, out=bias_gradient)
        for optimizer in self.optimizers:
            optimizer.step(share)


class Updates:
    """Steps of a bank whose number of rows stays as it is."""

    features: Float[Tensor, "batch dim"]
    """Features of the next update, in float32."""
    labels: Int[Tensor, " batch"]
    losses: Float[Tensor, "batch heads"]
    """Losses of the last update, from before it."""

    def __init__(self, bank: Bank, batch_size: int) -> None:
        check_precision(bank.precision, bank.device)
        self._precision = bank.precision
        self.features = bank.weight.new_empty(batch_size, bank.dim)
        self.labels = torch.zeros(batch_size, dtype=torch.int64, device=bank.device)
        self.losses = bank.weight.new_zeros(batch_size, bank.num_heads)
        split = list(_split(bank))
        most = max(heads.stop - heads.start for heads, _ in split)
        self._products = _products(bank, batch_size, most * bank.num_classes)
        make = _HeadGroupMaker(bank, self.labels, self.losses, most)
        self._groups = [make(heads, loss) for heads, loss in split]

    @property
    def optimizers(self) -> list[AdamW]:
        """One for each setting of neighbours that are updated together."""
        return [optimizer for group in self._groups for optimizer in group.optimizers]

    def step(
        self,
        features: Float[Tensor, "batch dim"],
        labels: Int[Tensor, " batch"],
        share: float = 1.0,
    ) -> Float[Tensor, "batch heads"]:
        """Do one update on the mean loss of a batch; return the losses before it.

        `features` may be float16: they are widened into a buffer of this object. The losses are
        in a buffer too, which the next step overwrites. `share` is that of the learning rates.
        """
        self.features.copy_(features)
        self.labels.copy_(labels)
        self.update(share)
        return self.losses

    def update(self, share: float = 1.0) -> None:
        """Do one update on what `features` and `labels` hold; fill `losses`."""
        with products_in(self._precision):
            self._products.read(self.features)
            for group in self._groups:
                group.update(self._products, share)


def _split(bank: Bank) -> Iterator[tuple[slice, str]]:
    """Yield the heads of each group and their loss.

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


class _HeadGroupMaker:
    """Makes groups over the same memory: each overwrites logits and gradients of the last."""

    def __init__(
        self,
        bank: Bank,
        labels: Int[Tensor, " batch"],
        losses: Float[Tensor, "batch heads"],
        most_heads: int,
    ) -> None:
        rows = most_heads * bank.num_classes
        self._bank, self._labels, self._losses = bank, labels, losses
        self._weight_gradient = bank.weight.new_zeros(rows, bank.dim)
        self._bias_gradient = bank.weight.new_zeros(rows)
        self._logits, self._gradient = bank.weight.new_empty(2, len(labels) * rows)

    def __call__(self, heads: slice, loss: str) -> _HeadGroup:
        bank, batch = self._bank, len(self._labels)
        weight, bias = bank.weight[heads], bank.bias[heads]
        rows = bias.numel()
        weight_gradient, bias_gradient = self._weight_gradient[:rows], self._bias_gradient[:rows]
        return _HeadGroup(
            loss=loss_named(loss),
            weight=weight.view(rows, -1),
            bias=bias.view(rows),
            weight_gradient=weight_gradient,
            bias_gradient=bias_gradient,
            logits=self._logits[: batch * rows].view(batch, rows),
            gradient=self._gradient[: batch * rows].view(batch, rows),
            ones=bank.weight.new_ones(1, batch),
            labels=self._labels[:, None].expand(batch, len(bias)),
            losses=self._losses[:, heads],
            optimizers=optimizers(
                weight,
                bias,
                weight_gradient.view(weight.shape),
                bias_gradient.view(bias.shape),
                [(head.rate, head.weight_decay) for head in bank.heads[heads]],
            ),
        )
