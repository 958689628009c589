from collections.abc import Generator, Sequence

import numpy as np
import pytest
import timm
import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Study
from clinit.headtrain.top import evaluate
from clinit.headtrain.top.activations import PoolActivations
from clinit.headtrain.top.network import PlasticModel, cut_network


class Held:
    """Activations in memory; remembers how many rows it was asked for at a time."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.values)

    def stream(self, batches: Sequence[np.ndarray]) -> Generator[Float[Tensor, "batch ..."]]:
        for rows in batches:
            self.asked.append(len(rows))
            yield self.values[torch.from_numpy(rows)]


def test_features_are_those_of_one_pass_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=12, depth=2, num_heads=2, num_classes=3
    ).eval()
    halves = cut_network(network, 1)
    head = Rows(np.zeros((3, 12)), np.zeros(3))
    model = PlasticModel(network, halves, head, Study.of({"top_blocks": 1}, top=True))
    held = Held(torch.randn(11, 5, 12))
    activations = PoolActivations([held], torch.device("cpu"))
    rows = np.array([7, 0, 10, 3, 3, 9, 1])
    monkeypatch.setitem(evaluate.FORWARD_ROWS, "cpu", 3)
    found = evaluate.features(model, activations, rows)
    assert held.asked == [3, 3, 1]
    with torch.no_grad():
        expected = model.features(held.values[torch.from_numpy(rows)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
