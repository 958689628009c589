from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clinit.headtrain.rows import Rows
from clinit.headtrain.study.parts import Training
from clinit.headtrain.train.heads import Bank
from clinit.headtrain.train.step import Updates

DIM, CLASSES, BATCH, STEPS = 16, 11, 24, 40
CPU = torch.device("cpu")
THREE = [
    Training(lr=1e-2, weight_decay=0.05),
    Training(lr=3e-3, weight_decay=0.05),
    Training(lr=1e-2, weight_decay=0.5),
]


def random_rows(seed: int, classes: int = CLASSES) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(random.normal(size=(classes, DIM)), random.normal(size=classes))


def make_bank(heads: Sequence[Training], seeds: Sequence[int]) -> Bank:
    bank = Bank(random_rows(0), heads, CPU)
    for index, seed in enumerate(seeds):
        bank.write(index, 0, random_rows(seed))
    return bank


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [
        (torch.randn(BATCH, DIM).half(), torch.randint(CLASSES, (BATCH,))) for _ in range(STEPS)
    ]


def naive_run(config: Training, start: Rows) -> list[tuple[Tensor, Tensor, Tensor]]:
    """A plain PyTorch loop: loss a sample before each step, weight and bias after it."""
    linear = nn.Linear(DIM, CLASSES)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(start.weight))
        linear.bias.copy_(torch.from_numpy(start.bias))
    optimizer = torch.optim.AdamW(
        linear.parameters(), lr=config.rate, weight_decay=config.weight_decay
    )
    trace = []
    for features, labels in batches():
        losses = nn.functional.cross_entropy(linear(features.float()), labels, reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        trace.append(
            (losses.detach(), linear.weight.detach().clone(), linear.bias.detach().clone())
        )
    return trace


def bank_run(bank: Bank) -> list[tuple[Tensor, Tensor, Tensor]]:
    trace = []
    with torch.no_grad():
        training = Updates(bank, BATCH)
        for features, labels in batches():
            losses = training.step(features, labels)
            trace.append((losses.clone(), bank.weight.detach().clone(), bank.bias.detach().clone()))
    return trace


def test_a_bank_takes_the_steps_of_single_heads_trained_by_torch() -> None:
    trace = bank_run(make_bank(THREE, seeds=[1, 2, 3]))
    for head, (config, seed) in enumerate(zip(THREE, [1, 2, 3], strict=True)):
        for step, expected in zip(trace, naive_run(config, random_rows(seed)), strict=True):
            losses, weight, bias = step
            torch.testing.assert_close(losses[:, head], expected[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(weight[head], expected[1], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(bias[head], expected[2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", [0, 1, 2])
def test_a_head_alone_is_the_same_head_in_a_bank_of_three(head: int) -> None:
    among = bank_run(make_bank(THREE, seeds=[1, 2, 3]))
    alone = bank_run(make_bank([THREE[head]], seeds=[head + 1]))
    for many, one in zip(among, alone, strict=True):
        torch.testing.assert_close(many[1][head], one[1][0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(many[0][:, head], one[0][:, 0], atol=1e-5, rtol=1e-5)


def test_appended_rows_leave_the_others_as_they_are() -> None:
    bank = make_bank(THREE, seeds=[1, 2, 3])
    before = [bank.rows(index) for index in range(3)]
    bank.grow(random_rows(9, classes=2))
    for index in range(3):
        after = bank.rows(index)
        np.testing.assert_array_equal(after.weight[:CLASSES], before[index].weight)
        np.testing.assert_array_equal(after.bias[:CLASSES], before[index].bias)
        np.testing.assert_allclose(after.weight[CLASSES:], random_rows(9, classes=2).weight, 1e-6)
