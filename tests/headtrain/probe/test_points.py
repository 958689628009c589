from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clinit.headtrain.probe.fit import Fitted, fit
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.train.rows import LabelledRows
from tests.headtrain.probe.digits import digits

GRID: dict[str, Any] = {"lr": (1e-3, 1e-2), "weight_decay": (0.0, 1.0)}


def rows() -> LabelledRows:
    data = digits().train
    return LabelledRows.on(torch.device("cpu"), data.features, data.labels)


def fitted(config: ProbeConfig) -> list[Fitted]:
    return fit(rows(), 10, config.grid, config.resolved(), lambda done, total: None)


def alone(features: np.ndarray, lr: float, decay: float, epochs: int, batch: int) -> np.ndarray:
    """One training after the other, as one would write it down; weights, then biases."""
    labels = torch.from_numpy(digits().train.labels)
    inputs = torch.from_numpy(features).float()
    layer = torch.nn.Linear(inputs.shape[1], 10)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=lr, weight_decay=decay)
    steps = len(inputs) // batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * steps)
    for epoch in range(epochs):
        order = generator(0, Draw.ALIGNMENT, epoch).permutation(len(inputs))
        for chosen in np.split(order[: steps * batch], steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    return torch.cat([layer.weight, layer.bias[:, None]], 1).detach().numpy()


@pytest.mark.parametrize("standardise", [False, True])
def test_heads_of_a_grid_are_those_of_single_trainings(standardise: bool) -> None:
    config = ProbeConfig(**GRID, epochs=3, batch_size=64, standardise=standardise)
    features = digits().train.features.astype(np.float64)
    mean, deviation = features.mean(0), features.std(0)
    deviation[deviation == 0] = 1
    seen = (features - mean) / deviation if standardise else features
    for point, found in zip(config.grid, fitted(config), strict=True):
        head = alone(seen, point["lr"], point["weight_decay"], epochs=3, batch=64)
        expected = seen @ head[:, :-1].T + head[:, -1]
        logits = features @ found.rows.weight.T + found.rows.bias
        np.testing.assert_allclose(logits, expected, atol=5e-3)
