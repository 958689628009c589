from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clinit.errors import HeadError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.probe.align import align
from clinit.headtrain.probe.settings import AlignConfig
from clinit.headtrain.stream.base_head import head_digest
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source

DIM, CLASSES = 6, 4
NAMES = tuple("abcd")
CONFIG = AlignConfig(epochs=3, batch_size=16, device="cpu")


def rows(count: int, seed: int) -> FeatureSet:
    labels = np.random.default_rng(seed).permutation(np.arange(count) % CLASSES)
    centres = 2 * np.random.default_rng(0).normal(size=(CLASSES, DIM))
    noise = np.random.default_rng(seed).normal(size=(count, DIM))
    return FeatureSet((centres[labels] + noise).astype(np.float16), labels, NAMES)


BASE = Source(rows(70, 1), rows(40, 2), path="base")
HEAD = Head(
    np.random.default_rng(3).normal(size=(CLASSES, DIM)).astype(np.float32),
    np.zeros(CLASSES, np.float32),
    NAMES,
    "print",
)


def mse(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The formula, a sample at a time."""
    total = torch.zeros(())
    for u, y in zip(logits, labels.tolist(), strict=True):
        others = sum((u[j] ** 2 for j in range(CLASSES) if j != y), torch.zeros(()))
        total = total + (15 * (u[y] - 30) ** 2 + others) / CLASSES
    return total / len(labels)


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_alignment_is_that_of_a_linear_layer_with_adamw_and_a_cosine(loss: Any) -> None:
    layer = torch.nn.Linear(DIM, CLASSES)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(HEAD.weight))
        layer.bias.copy_(torch.from_numpy(HEAD.bias))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.05)
    features = torch.from_numpy(BASE.train.features).float()
    labels = torch.from_numpy(BASE.train.labels)
    criterion = mse if loss == "mse" else torch.nn.functional.cross_entropy
    step, steps = 0, 3 * (70 // 16)
    for epoch in range(3):
        order = generator(0, Draw.ALIGNMENT, epoch).permutation(70)
        for batch in np.split(order[: 4 * 16], 4):
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (1 + np.cos(np.pi * step / steps)) / 2
            optimizer.zero_grad()
            criterion(layer(features[batch]), labels[batch]).backward()
            optimizer.step()
            step += 1
    found = align(BASE, HEAD, replace(CONFIG, loss=loss)).head
    np.testing.assert_allclose(found.weight, layer.weight.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(found.bias, layer.bias.detach().numpy(), atol=1e-5)


def test_alignment_lowers_the_loss_and_says_what_it_did() -> None:
    told: list[tuple[int, float]] = []
    config = replace(CONFIG, epochs=40, lr=0.05)
    found = align(BASE, HEAD, config, on_epoch=lambda *pair: told.append(pair))
    facts = found.facts
    assert facts["loss_by_epoch"] == [loss for _, loss in told]
    assert facts["loss_by_epoch"][-1] < 0.2 * facts["loss_by_epoch"][0]
    assert [epoch for epoch, _ in told] == list(range(1, 41))
    assert facts["views"] == 0
    assert facts["train_rows"] == 70
    assert facts["top1_after"] > facts["top1_before"]
    logits = BASE.val.features.astype(np.float32) @ found.head.weight.T + found.head.bias
    expected = 100 * (logits.argmax(1) == BASE.val.labels).mean()
    assert facts["top1_after"] == pytest.approx(expected)
    assert found.head.class_names == NAMES
    assert found.head.fingerprint == "print"
    assert facts["started_from"] == head_digest(HEAD) != facts["digest"]


def test_a_base_smaller_than_a_batch_is_one_batch_and_needs_no_validation_rows() -> None:
    empty = FeatureSet(np.empty((0, DIM), np.float16), np.empty(0, np.int64), NAMES)
    found = align(Source(rows(9, 1), empty), HEAD, CONFIG)
    assert found.facts["top1_before"] is None
    assert found.facts["top1_after"] is None


def test_a_diverging_alignment_is_an_error() -> None:
    with pytest.raises(HeadError, match="the alignment has diverged: its loss is") as caught:
        align(BASE, HEAD, replace(CONFIG, lr=1e30))
    assert "--lr" in caught.value.remedy


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs takes an integer"),
        ({"batch_size": 0}, "batch_size takes an integer"),
        ({"lr": 0.0}, "lr takes a number"),
        ({"weight_decay": -1.0}, "weight_decay takes a number"),
        ({"seed": -1}, "seed takes an integer"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlignConfig(**wrong)
