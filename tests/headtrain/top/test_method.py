""""""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from clinit.headtrain.top.activations import Batch
from clinit.headtrain.top.method import Rehearsal, sample_losses
from clinit.headtrain.train.losses import LOSSES

CLASSES, COUNT = 7, 12
Make = Callable[..., Any]


@pytest.fixture
def batch(make_images: Make) -> Batch:
    batch: Batch = make_images(COUNT, classes=CLASSES).batch(np.arange(COUNT), num_new=5)
    return batch


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


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="loss is 'hinge', expected one of"):
        Rehearsal(loss_name="hinge")


LOSS_NAMES = ["ce", "mse", "sqen"]


@pytest.fixture
def logits() -> Tensor:
    return 3 * torch.randn(20, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(20) % 7


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_autograd_through_the_losses_is_autograd_through_their_formula(
    name: str, logits: Tensor, labels: Tensor
) -> None:
    weights = torch.linspace(0, 1, 20, dtype=torch.float64)
    logits.requires_grad_()
    values = sample_losses(name, logits, labels)
    (gradient,) = torch.autograd.grad((weights * values).sum(), logits)
    formula = LOSSES[name].value(logits, labels)
    (expected,) = torch.autograd.grad((weights * formula).sum(), logits)
    torch.testing.assert_close(values, formula)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_finite_differences_agree(name: str, logits: Tensor, labels: Tensor) -> None:
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda u: sample_losses(name, u, labels), logits)


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_a_gradient_a_sample_by_vmap_is_that_of_the_sum(
    name: str, logits: Tensor, labels: Tensor
) -> None:
    def one(u: Tensor, label: Tensor) -> Tensor:
        return sample_losses(name, u[None], label[None])[0]

    each = vmap(grad(one))(logits, labels)
    _, expected = LOSSES[name].value_and_gradient(logits, labels)
    torch.testing.assert_close(each, expected)


def test_logits_of_mixed_precision_are_widened_and_their_gradient_is_narrow_again() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    logits.requires_grad_()
    values = sample_losses("ce", logits, torch.tensor([0, 1, 2, 0]))
    assert values.dtype == torch.float32
    values.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
