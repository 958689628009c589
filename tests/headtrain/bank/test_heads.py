from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clinit.headtrain.bank.evaluate import LabelledRows, count_correct, mean_losses
from clinit.headtrain.bank.heads import Bank
from clinit.headtrain.bank.step import Updates
from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Training

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


def test_heads_of_different_losses_train_side_by_side() -> None:
    mixed = [
        Training(loss="ce", lr=1e-3),
        Training(loss="mse", lr=1e-3),
        Training(loss="sqen", lr=1e-3),
    ]
    among = bank_run(make_bank(mixed, seeds=[1, 2, 3]))
    for head, config in enumerate(mixed):
        alone = bank_run(make_bank([config], seeds=[head + 1]))
        torch.testing.assert_close(among[-1][1][head], alone[-1][1][0], atol=1e-5, rtol=1e-5)


def test_appended_rows_leave_the_others_as_they_are() -> None:
    bank = make_bank(THREE, seeds=[1, 2, 3])
    before = [bank.rows(index) for index in range(3)]
    bank.grow(random_rows(9, classes=2))
    for index in range(3):
        after = bank.rows(index)
        np.testing.assert_array_equal(after.weight[:CLASSES], before[index].weight)
        np.testing.assert_array_equal(after.bias[:CLASSES], before[index].bias)
        np.testing.assert_allclose(after.weight[CLASSES:], random_rows(9, classes=2).weight, 1e-6)


def naive_counts(bank: Bank, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    counts = np.zeros((bank.num_heads, bank.num_classes), dtype=int)
    for head in range(bank.num_heads):
        rows = bank.rows(head)
        for feature, label in zip(features.astype(np.float64), labels, strict=True):
            counts[head, label] += int(np.argmax(rows.weight @ feature + rows.bias) == label)
    return counts


@pytest.mark.parametrize("block_values", [1, 2**20])
def test_counts_and_losses_are_those_of_a_loop_over_rows(
    block_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.bank.evaluate.BLOCK_VALUES", block_values)
    monkeypatch.setattr("clinit.headtrain.bank.evaluate.MIN_BLOCK_ROWS", 7)
    bank = make_bank(THREE, seeds=[1, 2, 3])
    random = np.random.default_rng(5)
    features = random.normal(size=(100, DIM)).astype(np.float16)
    labels = random.integers(CLASSES - 2, size=100)
    test = LabelledRows.on(CPU, features, labels)
    np.testing.assert_array_equal(count_correct(bank, test), naive_counts(bank, features, labels))
    for head in range(3):
        rows = bank.rows(head)
        logits = torch.from_numpy(features.astype(np.float64) @ rows.weight.T + rows.bias)
        expected = nn.functional.cross_entropy(logits, torch.from_numpy(labels))
        np.testing.assert_allclose(mean_losses(bank, test)[head], expected, rtol=1e-5)


def test_no_test_row_gives_no_right_answer() -> None:
    bank = make_bank(THREE, seeds=[1, 2, 3])
    empty = LabelledRows.on(CPU, np.empty((0, DIM), np.float16), np.empty(0, np.int64))
    assert count_correct(bank, empty).sum() == 0


def test_equal_logits_count_for_the_first_class_only() -> None:
    bank = Bank(Rows(np.zeros((3, DIM)), np.zeros(3)), [Training(lr=1e-3)], CPU)
    test = LabelledRows.on(CPU, np.ones((6, DIM), np.float16), np.array([0, 0, 1, 1, 2, 2]))
    assert count_correct(bank, test).tolist() == [[2, 0, 0]]
