"""Correct counts and mean losses of a bank, whatever its precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clinit.extract.cache.features import StoredRows
from clinit.headtrain.rows import Rows
from clinit.headtrain.study.parts import Training
from clinit.headtrain.train import evaluate as judgement
from clinit.headtrain.train.evaluate import count_correct, evaluate, mean_losses
from clinit.headtrain.train.heads import Bank
from clinit.headtrain.train.losses import loss_named
from clinit.headtrain.train.rows import LabelledRows

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DIM, CLASSES = 48, 30


def bank_in(kind: Any, rows: Rows, heads: Sequence[Training], device: torch.device) -> Bank:
    return Bank(rows, [replace(head, precision=kind) for head in heads], device)


def random_rows(seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(random.normal(size=(CLASSES, DIM)), random.normal(size=CLASSES))


def three_heads() -> Bank:
    heads = [Training(lr=1e-3), Training(loss="mse", lr=1e-3), Training(loss="sqen", lr=1e-3)]
    bank = Bank(random_rows(), heads, CPU)
    for index in range(3):
        bank.write(index, 0, random_rows(1 + index))
    return bank


def batch(seed: int = 0, rows: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, DIM, generator=generator).half(),
        torch.randint(CLASSES, (rows,), generator=generator),
    )


def naive_counts(bank: Bank, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    counts = np.zeros((bank.num_heads, bank.num_classes), dtype=int)
    for head in range(bank.num_heads):
        rows = bank.rows(head)
        for feature, label in zip(features.astype(np.float64), labels, strict=True):
            counts[head, label] += int(np.argmax(rows.weight @ feature + rows.bias) == label)
    return counts


@pytest.mark.parametrize("block_values", [1, 2**20])
def test_counts_are_those_of_a_loop_over_rows_and_each_head_has_its_own_loss(
    block_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judgement, "BLOCK_VALUES", block_values)
    monkeypatch.setattr(judgement, "MIN_BLOCK_ROWS", 7)
    bank = three_heads()
    random = np.random.default_rng(5)
    features = random.normal(size=(100, DIM)).astype(np.float16)
    labels = random.integers(CLASSES - 2, size=100)
    test = LabelledRows.on(CPU, features, labels)
    np.testing.assert_array_equal(count_correct(bank, test), naive_counts(bank, features, labels))
    for head in range(3):
        rows = bank.rows(head)
        logits = torch.from_numpy(features.astype(np.float64) @ rows.weight.T + rows.bias)
        each = loss_named(bank.heads[head].loss).value(logits, torch.from_numpy(labels))
        expected = each.mean()
        np.testing.assert_allclose(mean_losses(bank, test)[head], expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["float32", "bf16"])
@pytest.mark.parametrize("block_values", [1, 2**20])
def test_each_head_is_asked_among_all_classes_and_among_those_of_the_task(
    block_values: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judgement, "BLOCK_VALUES", block_values)
    monkeypatch.setattr(judgement, "MIN_BLOCK_ROWS", 7)
    bank = bank_in(kind, random_rows(4), [Training(lr=1e-3), Training(lr=1.0, loss="mse")], CPU)
    ends = (3, 4, CLASSES - 1, CLASSES)  # two tasks of a single class
    random = np.random.default_rng(6)
    features = random.normal(size=(150, DIM)).astype(np.float16)
    labels = np.sort(random.choice(CLASSES - 1, size=150))  # the last task is not tested
    found = evaluate(bank, LabelledRows.on(CPU, features, labels), ends, list_mistakes=True)
    assert found.mistakes is not None
    bounds = [0, *ends]
    for head in range(2):
        rows = bank.rows(head)
        correct, in_task, wrong = np.zeros(CLASSES), np.zeros(CLASSES), []
        for index, (feature, label) in enumerate(zip(features, labels, strict=True)):
            logits = rows.weight.astype(np.float64) @ feature + rows.bias
            task = next(t for t, end in enumerate(ends) if label < end)
            own = logits[bounds[task] : bounds[task + 1]]
            correct[label] += logits.argmax() == label
            in_task[label] += own.argmax() + bounds[task] == label
            if logits.argmax() != label:
                wrong.append((label, index - list(labels).index(label), logits.argmax()))
        np.testing.assert_array_equal(found.correct[head], correct)
        np.testing.assert_array_equal(found.correct_in_task[head], in_task)
        np.testing.assert_array_equal(found.mistakes[head].T, wrong)
    assert found.correct.sum() < found.correct_in_task.sum() < 2 * 150


def test_equal_logits_count_for_the_first_class_only() -> None:
    bank = Bank(Rows(np.zeros((3, DIM)), np.zeros(3)), [Training(lr=1e-3)], CPU)
    test = LabelledRows.on(CPU, np.ones((6, DIM), np.float16), np.array([0, 0, 1, 1, 2, 2]))
    assert count_correct(bank, test).tolist() == [[2, 0, 0]]


@pytest.mark.parametrize("block_values", [1, 2**20])
@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_counts_are_those_of_float32_logits(
    block_values: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judgement, "BLOCK_VALUES", block_values)
    monkeypatch.setattr(judgement, "MIN_BLOCK_ROWS", 7)
    features, _ = batch(seed=3, rows=400)
    head = random_rows(5)
    rows = Rows(scale * head.weight, scale * head.bias)
    logits = features.double().numpy() @ rows.weight.T + rows.bias
    runner_up, best = np.argsort(logits, axis=1)[:, -2:].T
    labels = np.where(np.arange(400) % 2, best, runner_up)
    counts = []
    for name in ("float32", "bf16"):
        bank = bank_in(name, rows, [Training(lr=1e-3), Training(lr=1.0)], CPU)
        counts.append(count_correct(bank, LabelledRows.on(CPU, features.numpy(), labels)))
    np.testing.assert_array_equal(counts[0], counts[1])
    expected = np.bincount(labels[labels == logits.argmax(1)], minlength=CLASSES)
    np.testing.assert_array_equal(counts[0], [expected, expected])


def test_a_diverged_head_is_right_nowhere() -> None:
    rows = Rows(np.full((3, DIM), np.nan), np.full(3, np.nan))
    for name in ("float32", "bf16"):
        bank = bank_in(name, rows, [Training(lr=1e-3)], CPU)
        test = LabelledRows.on(CPU, batch()[0].numpy(), np.zeros(16, np.int64))
        assert count_correct(bank, test).sum() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["float32", "tf32", "bf16"])
def test_a_cuda_device_counts_as_the_cpu_does(name: str) -> None:
    features, labels = batch(seed=3, rows=4000)
    counts = []
    for device, kind in ((CPU, "float32"), (CUDA, name)):
        bank = bank_in(kind, random_rows(), [Training(lr=1e-3), Training(lr=1.0)], device)
        test = LabelledRows.on(device, features.numpy(), labels.numpy())
        counts.append(count_correct(bank, test))
    np.testing.assert_array_equal(counts[0], counts[1])


@pytest.mark.parametrize("kind", ["float32", "bf16"])
def test_rows_on_disk_are_read_block_by_block_whatever_is_asked_of_them(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows labelled wrong, or too close to call, are as many as there are rows on disk."""
    monkeypatch.setattr(judgement, "BLOCK_VALUES", 1)
    monkeypatch.setattr(judgement, "MIN_BLOCK_ROWS", 7)
    bank = bank_in(kind, Rows(np.zeros((CLASSES, DIM)), np.zeros(CLASSES)), [Training()] * 2, CPU)
    features = np.random.default_rng(3).normal(size=(100, DIM)).astype(np.float16)
    labels = np.sort(np.random.default_rng(4).integers(CLASSES, size=100))
    read = []

    def reading(rows: np.ndarray) -> np.ndarray:
        read.append(len(rows))
        chosen: np.ndarray = features[rows]
        return chosen

    stored = StoredRows(reading, np.arange(100), DIM, features.dtype)
    expected, found = (
        evaluate(bank, LabelledRows.on(CPU, rows, labels), [10, CLASSES], list_mistakes=True)
        for rows in (features, stored)
    )
    assert expected.mistakes is not None
    assert found.mistakes is not None
    for one, other in zip(expected.mistakes, found.mistakes, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(found.mistakes[0][0]) == 100 - (labels == 0).sum()
    np.testing.assert_array_equal(found.correct_in_task, expected.correct_in_task)
    assert max(read) == 7
