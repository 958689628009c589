from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clinit.headtrain.top.activations import ActivationBatch, TaskReader
from clinit.headtrain.top.network import PlasticModel

HIDDEN, DIM = 5, 4


class TinyTop(nn.Module, PlasticModel):
    """Two linear layers on flattened activations, and a classifier."""

    def __init__(self, classes: int, blocks: nn.Module, dim: int) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.blocks = blocks
        self.mixed = False
        self.classifier = nn.Linear(dim, classes)

    @property
    def num_classes(self) -> int:
        return self.classifier.out_features

    def forward(self, activations: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.mixed):
            features: Tensor = self.blocks(activations)
        return features.float() if self.mixed else features

    def features(self, activations: Tensor) -> Tensor:
        return self.forward(activations)

    def features_at(self, parameters: Mapping[str, Tensor], activations: Tensor) -> Tensor:
        features: Tensor = torch.func.functional_call(self, dict(parameters), (activations,))
        return features

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        self.mixed, before = False, self.mixed
        try:
            yield
        finally:
            self.mixed = before

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.classifier(features)
        return logits

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def widen(self, classes: int) -> None:
        """Append random rows to the classifier."""
        old = self.classifier
        self.classifier = nn.Linear(old.in_features, old.out_features + classes).to(old.weight)
        with torch.no_grad():
            self.classifier.weight[: old.out_features] = old.weight
            self.classifier.bias[: old.out_features] = old.bias


class Images(TaskReader):
    """Rows 0, 1, ...: activations and labels; a reader of some of them."""

    def __init__(self, values: Tensor, labels: Tensor) -> None:
        self.values, self.labels = values, labels
        self.new = self.old = np.empty(0, dtype=np.int64)

    def batch(self, rows: np.ndarray, num_new: int = 0) -> ActivationBatch:
        index = torch.from_numpy(rows)
        return ActivationBatch(self.values[index], self.labels[index], rows, num_new)

    def batches(self, rows: np.ndarray, size: int) -> Any:
        for start in range(0, len(rows), size):
            yield self.batch(rows[start : start + size])


@pytest.fixture
def make_top() -> Callable[..., TinyTop]:
    def make(
        classes: int = 6, *, seed: int = 0, blocks: nn.Module | None = None, dim: int = DIM
    ) -> TinyTop:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = (nn.Flatten(), nn.Linear(6, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, dim))
            return TinyTop(classes, blocks or nn.Sequential(*layers), dim).eval()

    return make


@pytest.fixture
def make_images() -> Callable[..., Images]:
    def make(rows: int = 30, *, classes: int = 6, shape: tuple[int, ...] = (2, 3)) -> Images:
        random = torch.Generator().manual_seed(1)
        values = torch.randn(rows, *shape, generator=random)
        return Images(values, torch.randint(classes, (rows,), generator=random))

    return make
