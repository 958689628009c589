from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clinit.headtrain.top.activations import Batch
from clinit.headtrain.top.method import Rehearsal, TopMethod, TopModel
from clinit.headtrain.train.losses import LOSSES

CLASSES, ROWS = 7, 12
Make = Callable[..., Any]


@pytest.fixture
def batch(make_images: Make) -> Batch:
    batch: Batch = make_images(ROWS, classes=CLASSES).batch(np.arange(ROWS), num_new=5)
    return batch


def test_the_method_and_the_model_keep_the_protocols(make_top: Make) -> None:
    assert isinstance(Rehearsal(), TopMethod)
    assert isinstance(make_top(), TopModel)


def test_the_loss_is_the_mean_over_new_and_old_rows(make_top: Make, batch: Batch) -> None:
    model = make_top(CLASSES)
    loss, losses = Rehearsal().loss(model, batch, None)
    logits = model.classifier(model.blocks(batch.activations))
    each = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    torch.testing.assert_close(losses, each.detach())
    torch.testing.assert_close(loss, each.mean())
    assert not losses.requires_grad


@pytest.mark.parametrize("name", ["ce", "mse", "sqen"])
def test_training_takes_the_steps_of_a_plain_loop(make_top: Make, name: str, batch: Batch) -> None:
    ours, plain = make_top(CLASSES), make_top(CLASSES)
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


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="loss is 'hinge', expected one of"):
        Rehearsal(loss_name="hinge")
