"""Handwritten digits as a source of features, and a linear layer trained by torch.optim."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.protocol.stream.source import Source

NAMES = tuple(map(str, range(10)))


@cache
def digits() -> Source:
    """Return 300 digits for training and 200 others, shuffled by seed 0."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    features, labels = (images[order] / 16).astype(np.float32), labels[order].astype(np.int64)
    parts = (slice(300), slice(300, 500))
    train, val = (FeatureSet(features[part], labels[part], NAMES) for part in parts)
    return Source(train, val, path="digits")


def trained(
    epochs: Sequence[FeatureSet],
    weight: np.ndarray,
    *,
    lr: float,
    decay: float,
    batch: int,
    loss: Callable[[Tensor, Tensor], Tensor] = torch.nn.functional.cross_entropy,
) -> np.ndarray:
    """Train a layer of that weight with AdamW and a cosine; return weights, then biases."""
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.zero_()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=lr, weight_decay=decay)
    steps = [len(rows.labels) // batch for rows in epochs]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=sum(steps))
    for epoch, rows in enumerate(epochs):
        order = generator(0, Draw.ALIGNMENT, epoch).permutation(len(rows.labels))
        for chosen in np.split(order[: steps[epoch] * batch], steps[epoch]):
            optimizer.zero_grad()
            logits = layer(torch.from_numpy(rows.features[chosen]).float())
            loss(logits, torch.from_numpy(rows.labels[chosen])).backward()
            optimizer.step()
            schedule.step()
    return torch.cat([layer.weight, layer.bias[:, None]], 1).detach().numpy()
