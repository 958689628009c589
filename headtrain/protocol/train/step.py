"""One update of a bank: two matrix products and one fused AdamW pass.

    logits     u = x W^T + b                 rows x (heads classes)
    gradient   dW = (1 / rows) (dL/du)^T x   (heads classes) x dim

No autograd: the gradient of a linear head is the gradient of its logits times the features. In
bfloat16 both operands and both results are rounded; the bias is added in float32.

AdamW (I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", ICLR 2019) is PyTorch's
function. The class `torch.optim.AdamW` loads a compiler when it is constructed, which takes longer
than a short run, and its overhead per step is as large as a small head. The function updates views
of the bank's tensors; neighbouring heads with equal settings share a view and a launch. (Our own
AdamW with a tensor of rates per head took three times as long on a CPU: eight passes over memory
instead of one.) The optimizer state is new in each task, so that no moments of stale rows remain.

All tensors of a step are created once and never move, and nothing waits for the device, so that a
step can be captured on a CUDA device.

A step of the user: a function of (batch, head, state) in place of the gradient of the loss.

The function returns a loss, which PyTorch differentiates, or the gradients of weight and bias. The
optimizer, its schedule and the anchor stay. `state` is a dictionary that belongs to one head for
the whole run, for what a method remembers from batch to batch and from task to task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.optim.adamw import adamw

from clinit.errors import ExperimentError
from clinit.headtrain.heads.losses import loss_named
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.train.heads import Bank, Bias, Weight, check_precision, products_in
from clinit.headtrain.protocol.train.past import Anchors, Hold
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

    weight: Weight
    bias: Bias

    def __call__(self, features: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows classes"]:
        """Return the logits."""
        return torch.nn.functional.linear(features, self.weight, self.bias)


class OwnStep:
    """The function at an import path, with the state of one head."""

    def __init__(self, path: Imported, state: dict[str, Any]) -> None:
        self._path, self._function, self._state = path.path, path.load(), state

    def gradients(self, batch: Batch, weight: Weight, bias: Bias) -> tuple[Weight, Bias]:
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


BETAS = (0.9, 0.999)
EPS = 1e-8


class AdamW:
    """Parameters that share a learning rate and a weight decay, with their moments."""

    def __init__(
        self, parameters: list[Tensor], gradients: list[Tensor], *, lr: float, weight_decay: float
    ) -> None:
        """Begin with moments of zero.

        Args:
            parameters: Updated in place.
            gradients: Read at each step, from their present memory.
            lr: Learning rate.
            weight_decay: Decoupled weight decay.
        """
        self._lr, self._weight_decay = lr, weight_decay
        moments, squares = ([*map(torch.zeros_like, parameters)] for _ in range(2))
        steps = [each.new_zeros(()) for each in parameters]
        self._tensors = parameters, gradients, moments, squares, list[Tensor](), steps

    def step(self, share: float | Tensor = 1.0) -> None:
        """Do one step, with this share of the learning rate. Nothing waits for the device."""
        adamw(
            *self._tensors,
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=share * self._lr,
            weight_decay=self._weight_decay,
            eps=EPS,
            maximize=False,
        )


BatchLogits = Float[Tensor, "batch rows"]
"""Logits of a batch, or their gradient; the rows of one head after another."""


class Products:
    """Products of float32 matrices; CUDA computes them in TF32 if this is switched on."""

    def __init__(self) -> None:
        self._features = torch.empty(0)

    def read(self, features: Float[Tensor, "batch dim"]) -> None:
        """Set the features of a batch, for all heads."""
        self._features = features

    def logits(self, weight: Weight, bias: Bias, out: BatchLogits) -> None:
        """Write the logits of the batch into `out`."""
        torch.addmm(bias, self._features, weight.t(), out=out)

    def weight_gradient(self, gradient: BatchLogits, scale: float, out: Weight) -> None:
        """Write the gradient of the weight, `scale` times the product, into `out`."""
        torch.addmm(out, gradient.t(), self._features, beta=0, alpha=scale, out=out)


class Bf16Products(Products):
    """Products of bfloat16 copies, made in place for at most `rows` rows of heads at a time."""

    def __init__(self, batch: int, rows: int, dim: int, device: torch.device) -> None:
        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device=device)

        self._features = empty(batch, dim)
        self._weight = empty(rows, dim)
        self._logits = empty(batch * rows)

    def read(self, features: Float[Tensor, "batch dim"]) -> None:
        """Copy the features of a batch; float32 is faster to convert than float16."""
        self._features.copy_(features)

    def logits(self, weight: Weight, bias: Bias, out: BatchLogits) -> None:
        """Multiply in bfloat16 and add the bias in float32."""
        rounded = self._weight[: len(weight)].copy_(weight)
        logits = self._logits[: out.numel()].view(out.shape)
        torch.mm(self._features, rounded.t(), out=logits)
        out.copy_(logits).add_(bias)  # an addition of two types would allocate

    def weight_gradient(self, gradient: BatchLogits, scale: float, out: Weight) -> None:
        """Multiply in bfloat16, and overwrite the rounded weight, which is no longer needed."""
        rounded = self._logits[: gradient.numel()].view(gradient.shape).copy_(gradient)
        product = self._weight[: len(out)]
        torch.addmm(product, rounded.t(), self._features, beta=0, alpha=scale, out=product)
        out.copy_(product)


class Updates:
    """Steps of a bank whose number of rows does not change."""

    features: Float[Tensor, "batch dim"]
    """Features of the next update, in float32."""
    labels: Int[Tensor, " batch"]
    losses: Float[Tensor, "batch heads"]
    """Losses of the last batch, before its update."""

    def __init__(
        self, bank: Bank, batch_size: int, anchors: Anchors | None = None, task: Task | None = None
    ) -> None:
        """Begin at the present heads.

        Args:
            bank: The heads.
            batch_size: Number of rows in a batch.
            anchors: The penalty that holds each head near its present state; None: no penalties.
            task: The task that is learnt; only a user's own step needs it.
        """
        check_precision(bank.precision, bank.device)
        self._task, self._done = task, 0
        self.anchors = anchors or [None] * bank.num_heads
        self._precision = bank.precision
        self.features = bank.weight.new_empty(batch_size, bank.dim)
        self.labels = torch.zeros(batch_size, dtype=torch.int64, device=bank.device)
        self.losses = bank.weight.new_zeros(batch_size, bank.num_heads)
        split = list(_split(bank))
        rows = max(heads.stop - heads.start for heads, _ in split) * bank.num_classes
        self._products = Products()
        if bank.precision == "bf16":
            self._products = Bf16Products(batch_size, rows, bank.dim, bank.device)
        self.weight_gradient = bank.weight.new_zeros(rows, bank.dim)
        self.bias_gradient = bank.weight.new_zeros(rows)
        self.logits, self.gradient = bank.weight.new_empty(2, batch_size * rows)
        self._groups = [_HeadGroup(self, bank, heads, loss) for heads, loss in split]
        self.runs_own_code = any(group.own is not None for group in self._groups)
        """Whether a step runs code of the user, which may wait for the device."""

    def step(
        self,
        features: Float[Tensor, "batch dim"],
        labels: Int[Tensor, " batch"],
        share: float | Tensor = 1.0,
    ) -> Float[Tensor, "batch heads"]:
        """Do one update on the mean loss of a batch; return the losses before the update.

        `features` may be float16, and are widened into a buffer of this object. The next step
        overwrites the returned losses. `share` scales the learning rates.
        """
        self.features.copy_(features)
        self.labels.copy_(labels)
        self.update(share)
        return self.losses

    def update(self, share: float | Tensor = 1.0) -> None:
        """Do one update on the batch in `features` and `labels`; write `losses`."""
        with products_in(self._precision):
            self._products.read(self.features)
            for group in self._groups:
                group.update(self._products, share)
        self._done += 1

    def batch(self) -> Batch:
        """Return a copy of the present batch, which a user's step may change."""
        task = (self._task.start, self._task.number) if self._task else (0, 1)
        return Batch(self.features.clone(), self.labels.clone(), *task, self._done)


class _HeadGroup:
    """Heads with the same loss, whose products are computed in one call.

    The rows of one head follow the rows of another. All tensors are views, which are created once:
    creating them in each step would take a tenth of the time of a small head. Each group overwrites
    the logits and the gradients of the previous group.
    """

    def __init__(self, updates: Updates, bank: Bank, heads: slice, loss: str) -> None:
        weight, bias = bank.weight[heads], bank.bias[heads]
        batch, rows = len(updates.labels), bias.numel()
        self._loss, self._batch = loss_named(loss), updates.batch
        step = bank.heads[heads][0].step
        self.own = OwnStep(step, bank.states[heads.start]) if isinstance(step, Imported) else None
        self._weight, self._bias = weight.view(rows, -1), bias.view(rows)
        self._weight_gradient = updates.weight_gradient[:rows]
        self._bias_gradient = updates.bias_gradient[None, :rows]
        self._logits, self._gradient = (
            each[: batch * rows].view(batch, rows) for each in (updates.logits, updates.gradient)
        )
        self._ones = bank.weight.new_ones(1, batch)
        self._labels = updates.labels[:, None].expand(batch, len(bias))
        self._losses = updates.losses[:, heads]
        of_weight = self._weight_gradient.view(weight.shape)
        of_bias = updates.bias_gradient[:rows].view(bias.shape)
        settings = [(each.rate, each.weight_decay) for each in bank.heads[heads]]
        self._optimizers = [
            AdamW([weight[p], bias[p]], [of_weight[p], of_bias[p]], lr=lr, weight_decay=decay)
            for p, (lr, decay) in spans(settings)
        ]
        self._holds = [
            Hold(anchor, (weight[p].flatten(0, 1), bias[p].flatten()),
                 (of_weight[p].flatten(0, 1), of_bias[p].flatten()))
            for p, anchor in spans(updates.anchors[heads])
            if anchor is not None
        ]  # fmt: skip

    def update(self, products: Products, share: float | Tensor) -> None:
        """Do one update on the batch that `products` has read, with a share of the rates."""
        products.logits(self._weight, self._bias, out=self._logits)
        shape = (*self._labels.shape, -1)
        values, _ = self._loss.value_and_gradient(
            self._logits.view(shape), self._labels, out=self._gradient.view(shape)
        )
        self._losses.copy_(values)
        scale, out = 1 / len(self._labels), self._bias_gradient
        if self.own is not None:
            weight, bias = self.own.gradients(self._batch(), self._weight, self._bias)
            self._weight_gradient.copy_(weight)
            out.copy_(bias[None])
        else:
            products.weight_gradient(self._gradient, scale, out=self._weight_gradient)
            # A product with ones is twice as fast as the sum over rows on a CPU.
            torch.addmm(out, self._ones, self._gradient, beta=0, alpha=scale, out=out)
        for hold in self._holds:
            hold.pull()
        for optimizer in self._optimizers:
            optimizer.step(share)


def _split(bank: Bank) -> Iterator[tuple[slice, str]]:
    """Yield the heads of each group and their loss.

    A CPU processes one head after another, because weights, logits and moments of one head stay in
    its caches, but a whole bank does not. A CUDA device processes all heads of a loss at once,
    except heads with a step of the user.
    """
    for heads, (loss, step) in spans([(head.loss, head.step) for head in bank.heads]):
        if bank.device.type == "cuda" and step == "loss":
            yield heads, loss
        else:
            yield from ((slice(head, head + 1), loss) for head in range(heads.start, heads.stop))


def spans(settings: Sequence[Any]) -> Iterator[tuple[slice, Any]]:
    """Yield the runs of equal neighbours in `settings`, as slices.

    >>> list(spans(["ce", "ce", "mse"]))
    [(slice(0, 2, None), 'ce'), (slice(2, 3, None), 'mse')]
    """
    start = 0
    for setting, group in groupby(settings):
        stop = start + sum(1 for _ in group)
        yield slice(start, stop), setting
        start = stop
