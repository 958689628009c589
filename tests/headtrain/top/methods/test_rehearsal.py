from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clinit.headtrain.top.methods.interface import Batch, TopMethod, TopModel
from clinit.headtrain.top.methods.rehearsal import Rehearsal

SHAPE, HIDDEN, DIM, CLASSES, ROWS = (2, 3), 5, 4, 7, 12


class Model(nn.Module):
    """Two linear layers on flattened activations, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(
            nn.Flatten(), nn.Linear(6, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, DIM)
        )
        self.classifier = nn.Linear(DIM, CLASSES)

    @property
    def num_classes(self) -> int:
        return self.classifier.out_features

    def forward(self, activations: Tensor) -> Tensor:
        features: Tensor = self.blocks(activations)
        return features

    def features(self, activations: Tensor) -> Tensor:
        return self.forward(activations)

    def features_at(self, parameters: Mapping[str, Tensor], activations: Tensor) -> Tensor:
        features: Tensor = torch.func.functional_call(self, dict(parameters), (activations,))
        return features

    def logits(self, features: Tensor) -> Tensor:
        logits: Tensor = self.classifier(features)
        return logits

    def trainable(self) -> dict[str, nn.Parameter]:
        return dict(self.named_parameters())


@pytest.fixture
def batch() -> Batch:
    random = torch.Generator().manual_seed(1)
    return Batch(
        torch.randn(ROWS, *SHAPE, generator=random),
        torch.arange(ROWS) % CLASSES,
        np.arange(100, 100 + ROWS),
        num_new=5,
    )


def test_the_method_and_the_model_keep_the_protocols() -> None:
    assert isinstance(Rehearsal(), TopMethod)
    assert isinstance(Model(), TopModel)


def test_the_loss_is_the_mean_over_new_and_old_rows(batch: Batch) -> None:
    model = Model()
    loss, losses = Rehearsal().loss(model, batch, None)
    logits = model.classifier(model.blocks(batch.activations))
    each = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    torch.testing.assert_close(losses, each.detach())
    torch.testing.assert_close(loss, each.mean())
    assert not losses.requires_grad


@pytest.mark.parametrize("name", ["ce", "mse", "sqen"])
def test_training_takes_the_steps_of_a_plain_loop(name: str, batch: Batch) -> None:
    from clinit.headtrain.losses import LOSSES

    ours, plain = Model(), Model()
    for model in (ours, plain):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(10):
            if model is ours:
                loss, _ = Rehearsal(loss_name=name).loss(model, batch, None)
            else:
                logits = model.classifier(model.blocks(batch.activations))
                loss = LOSSES[name].value(logits, batch.labels).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_it_leaves_nothing_behind() -> None:
    method = Rehearsal()
    assert method.state() == {}
    method.restore({})


def test_a_batch_counts_its_old_rows(batch: Batch) -> None:
    assert (len(batch), batch.num_old) == (ROWS, 7)


def test_rows_of_a_method_that_is_not_trained_are_refused() -> None:
    with pytest.raises(ValueError, match="data_method is 'ncm', expected one of"):
        Rehearsal(data_method="ncm")


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="loss is 'hinge', expected one of"):
        Rehearsal(loss_name="hinge")
