"""Anchors: their gradients against autograd, whole trainings, and heads side by side."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES, loss_named
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train.heads import Bank
from clinit.headtrain.protocol.train.past import Anchor, OldClasses, class_weights
from clinit.headtrain.protocol.train.step import Updates

DIM, OLD, CLASSES, BATCH, STEPS = 12, 5, 8, 16, 30
CPU = torch.device("cpu")
LABELS = np.repeat(np.arange(OLD), [9, 3, 1, 6, 4])
FEATURES = 2 + np.random.default_rng(0).normal(size=(len(LABELS), DIM)).astype(np.float32)
KNOWN = OldClasses.of(ClassStatistics.of(FEATURES, LABELS, num_classes=OLD))
ANCHORS = [Anchor(0.3, KNOWN), Anchor(4.0, KNOWN)]


def head(seed: int) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(random.normal(size=(CLASSES, DIM)), random.normal(size=CLASSES))


def bank_of(*heads: Training) -> Bank:
    bank = Bank(head(0), heads, CPU)
    for index in range(len(heads)):
        bank.write(index, 0, head(index))
    return bank


def penalty(anchor: Anchor, weight: Tensor, bias: Tensor, start: tuple[Tensor, Tensor]) -> Tensor:
    """As the module defines it."""
    change = torch.cat([weight - start[0], (bias - start[1])[:, None]], dim=1)
    z = np.column_stack([FEATURES, np.ones(len(FEATURES))]).astype(np.float64)
    values, vectors = np.linalg.eigh((z * 1 / (OLD * np.bincount(LABELS)[LABELS])[:, None]).T @ z)
    known = values.copy()
    known[:-1] = values[:-1].mean()  # of 13 eigenvectors one is kept
    directions = torch.from_numpy(vectors * np.sqrt(known))
    return anchor.strength / 2 * (change @ directions).square().sum()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("anchor", ANCHORS)
@torch.no_grad()
def test_the_gradient_is_that_of_autograd(anchor: Anchor, loss: str) -> None:
    bank = bank_of(Training(loss=loss, lr=1e-2))  # type: ignore[arg-type]
    start = bank.weight[0].double(), bank.bias[0].double()
    updates, random = Updates(bank, BATCH, [anchor]), torch.Generator().manual_seed(1)
    for each in (bank.weight, bank.bias):
        each += 0.1 * torch.randn(each.shape, generator=random)
    weight, bias = (each[0].double().requires_grad_() for each in (bank.weight, bank.bias))
    features = torch.randn(BATCH, DIM, generator=random)
    labels = torch.randint(CLASSES, (BATCH,), generator=random)
    with torch.enable_grad():
        logits = features.double() @ weight.T + bias
        values = loss_named(loss).value(logits, labels)
        value = values.mean() + penalty(anchor, weight, bias, start)
        expected = torch.autograd.grad(value, (weight, bias))
    losses = updates.step(features, labels)
    torch.testing.assert_close(losses[:, 0].double(), values.detach(), rtol=1e-4, atol=1e-4)
    found = updates.weight_gradient.double(), updates.bias_gradient.double()
    scale = max(float(each.abs().max()) for each in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * scale)


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(BATCH, DIM), torch.randint(CLASSES, (BATCH,))) for _ in range(STEPS)]


@torch.no_grad()
def trained(bank: Bank, anchors: list[Any] | None) -> Bank:
    updates = Updates(bank, BATCH, anchors)
    for batch in batches():
        updates.step(*batch)
    return bank


def test_a_bank_gives_the_bits_of_single_heads_and_an_unheld_head_those_without_anchors() -> None:
    heads = [
        Training(lr=1e-2),
        Training(lr=1e-2, loss="mse"),
        Training(lr=1e-3),
        Training(lr=1e-2, weight_decay=0.5),
    ]
    anchors = [None, *ANCHORS, ANCHORS[0]]
    among, plain = trained(bank_of(*heads), anchors), trained(bank_of(*heads), None)
    assert torch.equal(among.weight[0], plain.weight[0])
    for index, (training, anchor) in enumerate(zip(heads, anchors, strict=True)):
        alone = Bank(head(index), [training], CPU)
        trained(alone, [anchor])
        assert torch.equal(among.weight[index], alone.weight[0])
        assert torch.equal(among.bias[index], alone.bias[0])
        assert index == 0 or not torch.equal(among.weight[index], plain.weight[index])


def test_each_class_weighs_the_same_and_absent_ones_are_stood_for_by_others_of_their_kind() -> None:
    weights = class_weights(np.array([0, 0, 0, 2, 3, 3]), 3, 5)
    np.testing.assert_allclose(weights, [0.1, 0.1, 0.1, 0.3, 0.2, 0.2])
    assert weights.sum() == pytest.approx(1)
    every = np.array([0, 1, 1, 2])
    np.testing.assert_allclose(class_weights(every, 2, 3), [1 / 3, 1 / 6, 1 / 6, 1 / 3])
