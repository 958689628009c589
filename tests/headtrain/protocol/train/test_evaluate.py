"""Correct counts and mean losses of a bank, whatever its precision."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clinit.extract.cache.features import StoredRows
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train import evaluate as judgement
from clinit.headtrain.protocol.train.evaluate import evaluate, logits_of, mean_losses
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DIM, CLASSES = 48, 30


def bank_in(kind: Any, rows: Rows, heads: Sequence[Training], device: torch.device) -> Bank:
    return Bank(rows, [replace(head, precision=kind) for head in heads], device)


def random_rows(seed: int = 0, scale: float = 1.0) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(scale * random.normal(size=(CLASSES, DIM)), scale * random.normal(size=CLASSES))


def batch(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, and labels of all classes but the last."""
    random = np.random.default_rng(3)
    features = random.normal(size=(rows, DIM)).astype(np.float16)
    return features, np.sort(random.integers(CLASSES - 1, size=rows))


@pytest.fixture(params=[1, 2**20])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "BLOCK_VALUES", request.param)
    monkeypatch.setattr(judgement, "MIN_BLOCK_ROWS", 7)


@pytest.mark.usefixtures("_blocks")
def test_each_head_has_its_own_loss() -> None:
    bank = Bank(random_rows(), [Training(), Training(loss="mse"), Training(loss="sqen")], CPU)
    for index in range(3):
        bank.write(index, 0, random_rows(1 + index))
    features, labels = batch(100)
    found = mean_losses(bank, LabelledRows.on(CPU, features, labels))
    for head, name in enumerate(("ce", "mse", "sqen")):
        rows = bank.rows(head)
        logits = torch.from_numpy(features.astype(np.float64) @ rows.weight.T + rows.bias)
        expected = LOSSES[name].value(logits, torch.from_numpy(labels)).mean()
        np.testing.assert_allclose(found[head], expected, rtol=1e-5)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("kind", ["float32", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 0.0])  # of equal logits the first wins
def test_each_head_is_asked_among_all_classes_and_among_those_of_the_task(
    scale: float, kind: Any
) -> None:
    bank = bank_in(kind, random_rows(4, scale), [Training(), Training(loss="mse")], CPU)
    bank.write(1, 0, random_rows(5, scale))
    ends = (3, 4, CLASSES - 1, CLASSES)  # two tasks of a single class; the last is not tested
    features, labels = batch(150)
    test = LabelledRows.on(CPU, features, labels)
    found = evaluate(bank, test, ends, list_mistakes=True)
    np.testing.assert_array_equal(evaluate(bank, test).correct, found.correct)
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


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize(("error", "scale"), [(2**-9, 1.0), (2**-9, 0.0), (0.0, 1.0)])
def test_counts_are_those_of_float32_where_products_are_in_tf32(
    error: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, (features, labels) = random_rows(scale=scale), batch(600)
    rows.weight[1::2] = rows.weight[::2] * (1 + 2e-4 * np.sign(random_rows(1).weight[::2]))
    rows.bias[1::2] = rows.bias[::2]  # pairs of classes that TF32 does not tell apart
    bank, test = Bank(rows, [Training(), Training()], CPU), LabelledRows.on(CPU, features, labels)
    bank.weight[1] += 0.5

    def found() -> list[Any]:
        counts, in_task, mistakes = evaluate(bank, test, (3, 4, CLASSES), list_mistakes=True)
        return [counts.tolist(), in_task.tolist(), *(each.tolist() for each in mistakes)]

    def of_tf32(bank: Bank, *given: Any) -> torch.Tensor:
        if given[3:] == ("tf32",):
            bank = copy.copy(bank)
            bank.weight = (bank.weight.view(torch.int32) & ~0x1FFF).view(torch.float32)
        return logits_of(bank, *given[:3])

    expected = found()
    monkeypatch.setattr(judgement, "logits_of", of_tf32)
    monkeypatch.setattr(Bank, "has_tf32", True)
    monkeypatch.setattr(judgement, "TF32", error)
    assert (found() == expected) == (error > 0)  # a bound that is too small is seen


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["float32", "tf32", "bf16"])
def test_a_cuda_device_counts_as_the_cpu_does(name: str) -> None:
    features, labels = batch(4000)
    counts = []
    for device, kind in ((CPU, "float32"), (CUDA, name)):
        bank = bank_in(kind, random_rows(), [Training(lr=1e-3), Training(lr=1.0)], device)
        test = LabelledRows.on(device, features, labels)
        counts.append(evaluate(bank, test).correct)
    np.testing.assert_array_equal(counts[0], counts[1])


@pytest.mark.parametrize("kind", ["float32", "bf16"])
def test_rows_on_disk_are_read_block_by_block_whatever_is_asked_of_them(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows labelled wrong, or too close to call, are as many as there are rows on disk."""
    monkeypatch.setattr(judgement, "BLOCK_VALUES", 1)
    monkeypatch.setattr(judgement, "MIN_BLOCK_ROWS", 7)
    bank = bank_in(kind, random_rows(scale=0.0), [Training()] * 2, CPU)
    features, labels = batch(100)
    read = []

    def reading(rows: np.ndarray) -> np.ndarray:
        read.append(len(rows))
        return np.asarray(features[rows])

    stored = StoredRows(reading, np.arange(100), DIM, features.dtype)
    expected, found = (
        evaluate(bank, LabelledRows.on(CPU, rows, labels), [10, CLASSES], list_mistakes=True)
        for rows in (features, stored)
    )
    for one, other in zip(expected.mistakes, found.mistakes, strict=True):
        np.testing.assert_array_equal(one, other)
        assert len(one[0]) == 100 - (labels == 0).sum()
    np.testing.assert_array_equal(found.correct_in_task, expected.correct_in_task)
    assert max(read) == 7
