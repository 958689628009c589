"""Diagonal of the empirical Fisher information: mean squares of the gradients of single samples.

    F_k = (1 / N) sum_i (d l(x_i, y_i) / d theta_k)^2

with the *true* label y_i of each sample and the training loss l (for cross entropy, minus the log
likelihood). The square is taken before the mean: the square of the mean gradient of a batch is a
smaller number that shrinks as the batch grows, so that lambda would mean something else at each
batch size. How many samples are read at a time does not matter here, except to rounding.

The classifier needs no gradient of single samples: with r_i = dl / dz the gradient of the logits
and h_i the features, its diagonal is one product, (r * r)^T (h * h) / N, and the mean of r * r for
the biases. For the blocks the gradients are formed one sample at a time, or, on a CUDA device,
several at a time by `vmap`: on a CPU the batched kernels are slower (measured: 1.2 to 2.4
times the time of the loop for blocks of ViT, ConvNeXt and ResNet).

All of it is in float32, also where the training mixes precisions: the gradients of single samples
are small, and `vmap` does not follow all kernels of mixed precision.

Source: F. Kunstner, L. Balles, P. Hennig, "Limitations of the empirical Fisher approximation for
natural gradient descent", NeurIPS 2019 (terminology).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from clinit.headtrain.top.activations.batches import Batch
from clinit.headtrain.top.methods.interface import TopModel
from clinit.headtrain.top.methods.sample_losses import sample_losses
from clinit.headtrain.top.network.plastic import CLASSIFIER, CLASSIFIER_BIAS, CLASSIFIER_WEIGHT
from clinit.headtrain.train.losses import loss_named

CHUNK_VALUES = 2**27
"""Gradient values that `vmap` holds at a time: 0.5 GB in float32."""
MAX_CHUNK = 64
"""Samples at a time, at most: more are not faster."""

SampleLoss = Callable[[Tensor, Tensor], Tensor]
"""Features (batch, dim) and labels (batch,) to losses (batch,)."""


def diagonal_fisher(
    model: TopModel,
    batches: Iterable[Batch],
    *,
    classes: int,
    loss_name: str = "ce",
    by: Literal["auto", "vmap", "loop"] = "auto",
) -> dict[str, Tensor]:
    """Return the diagonal for each trained parameter, by its name.

    Args:
        model: Its dropout and batch statistics are off: the samples do not depend on each other.
        batches: The samples; see `chunk_size`.
        classes: Head rows that exist for these samples: the loss is over the first `classes`
            logits, and the classifier's values have as many rows.
        loss_name: One of `clinit.headtrain.train.losses.LOSSES`.
        by: How the gradients of the blocks are formed; `auto` is `vmap` on a CUDA device.

    Raises:
        ValueError: If there are no samples, or one has a label outside the first `classes`.
    """
    squares = {
        name: torch.zeros_like(values[:classes] if name in CLASSIFIER else values).detach()
        for name, values in model.trainable().items()
    }
    samples = 0
    for batch in batches:
        if len(batch) and int(batch.labels.max()) >= classes:
            raise ValueError(
                f"a sample has label {int(batch.labels.max())}, expected labels below {classes}"
            )
        with model.full_precision():
            _add_squares(squares, model, batch, classes, loss_name, by)
        samples += len(batch)
    if not samples:
        raise ValueError("the Fisher information needs at least one sample, got none")
    return {name: values / samples for name, values in squares.items()}


def chunk_size(model: TopModel) -> int:
    """Return the samples to read at a time: as many gradients as fit, at most MAX_CHUNK."""
    values = sum(values.numel() for values in _blocks(model).values())
    return max(1, min(MAX_CHUNK, CHUNK_VALUES // max(1, values)))


def _add_squares(
    squares: dict[str, Tensor],
    model: TopModel,
    batch: Batch,
    classes: int,
    loss_name: str,
    by: Literal["auto", "vmap", "loop"],
) -> None:
    """Add the sums of squares over one batch."""

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        return sample_losses(loss_name, model.logits(features)[:, :classes], labels)

    if by == "auto":
        by = "vmap" if batch.activations.is_cuda else "loop"
    block_squares = _by_vmap if by == "vmap" else _by_loop
    parts, features = block_squares(model, batch, loss)
    with torch.no_grad():
        logits = model.logits(features)[:, :classes].float()
        parts.update(_classifier_squares(features.float(), logits, batch.labels, loss_name))
        for name, values in squares.items():
            values += parts[name]


def _classifier_squares(
    features: Float[Tensor, "batch dim"],
    logits: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    loss_name: str,
) -> dict[str, Tensor]:
    """Return (r * r)^T (h * h) and the sum of r * r."""
    _, residual = loss_named(loss_name).value_and_gradient(logits, labels)
    squared = residual.square()
    return {
        CLASSIFIER_WEIGHT: squared.t() @ features.square(),
        CLASSIFIER_BIAS: squared.sum(0),
    }


def _by_loop(
    model: TopModel, batch: Batch, loss: SampleLoss
) -> tuple[dict[str, Tensor], Float[Tensor, "batch dim"]]:
    """Run backward once per sample; return the sums of squares and the features."""
    blocks = _blocks(model)
    squares = {name: torch.zeros_like(values) for name, values in blocks.items()}
    features = []
    for sample in range(len(batch)):
        one = slice(sample, sample + 1)
        with torch.enable_grad():
            read = model.features_at(blocks, batch.activations[one])
            value = loss(read, batch.labels[one]).sum()
        features.append(read.detach())
        if blocks:
            gradients = torch.autograd.grad(value, list(blocks.values()))
            for values, gradient in zip(squares.values(), gradients, strict=True):
                values.addcmul_(gradient, gradient)
    return squares, torch.cat(features)


def _by_vmap(
    model: TopModel, batch: Batch, loss: SampleLoss
) -> tuple[dict[str, Tensor], Float[Tensor, "batch dim"]]:
    """Form the gradients of all samples at once; return the sums of squares and the features."""

    def one(blocks: dict[str, Tensor], activations: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        features = model.features_at(blocks, activations[None])
        return loss(features, label[None])[0], features[0]

    # The fused attention kernels have no batching rule: `vmap` would run them in a loop.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        gradients, features = vmap(grad(one, has_aux=True), in_dims=(None, 0, 0))(
            _blocks(model), batch.activations, batch.labels
        )
    return {name: values.square().sum(0) for name, values in gradients.items()}, features


def _blocks(model: TopModel) -> dict[str, Tensor]:
    """Return the trained parameters other than the classifier's."""
    return {name: values for name, values in model.trainable().items() if name not in CLASSIFIER}
