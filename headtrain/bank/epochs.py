"""Passes over rows in shuffled batches, with a cosine that takes each learning rate to zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.bank.heads import Bank
from clinit.headtrain.bank.rows import LabelledRows
from clinit.headtrain.bank.step import Updates
from clinit.headtrain.stream.seeds import Draw, generator


def unchanged(features: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """Return the features of a batch as they are."""
    return features


def train_epochs(
    bank: Bank,
    rows: Iterator[LabelledRows],
    sizes: Sequence[int],
    *,
    batch_size: int,
    seed: int,
    on_epoch: Callable[[int, Float[np.ndarray, " heads"]], None],
    prepare: Callable[[Tensor], Tensor] = unchanged,
) -> Float[np.ndarray, "epochs heads"]:
    """Train all heads of a bank on the same batches; return the mean loss of each epoch.

    Args:
        bank: Heads, each with its own learning rate at the start of the cosine.
        rows: The rows of one epoch after the other.
        sizes: Their numbers.
        batch_size: At most the smallest size. Rows that do not fill a batch are left out of the
            epoch.
        seed: Seed of the order of the rows.
        on_epoch: Called with the number of finished epochs and the mean losses of the last one.
        prepare: Changes the features of a batch, in any type, before the heads read them.
    """
    updates = Updates(bank, batch_size)
    steps = sum(size // batch_size for size in sizes)
    shares = iter(np.cos(np.linspace(0, np.pi, steps, endpoint=False)) / 2 + 0.5)

    def train_on(rows: LabelledRows, epoch: int) -> Float[np.ndarray, " heads"]:
        count = len(rows) // batch_size
        order = generator(seed, Draw.ALIGNMENT, epoch).permutation(len(rows))
        batches = torch.from_numpy(order[: count * batch_size].reshape(count, batch_size))
        total = torch.zeros(bank.num_heads, dtype=torch.float64, device=bank.device)
        for batch in batches.to(bank.device):
            taken = rows.take(batch)
            share = float(next(shares))
            total += updates.step(prepare(taken.features), taken.labels, share).double().mean(0)
        means: np.ndarray = (total / count).cpu().numpy()
        return means

    losses = np.empty((len(sizes), bank.num_heads))
    for epoch in range(len(sizes)):
        # No name for the rows here: it would keep a view in memory while the next is read.
        losses[epoch] = train_on(next(rows), epoch)
        on_epoch(epoch + 1, losses[epoch])
    return losses
