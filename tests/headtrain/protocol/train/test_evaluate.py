"""Correct counts and mean losses of a bank, whatever its precision."""

import operator
from typing import Any

import numpy as np
import pytest
import torch

from clinit.extract.cache.features import StoredRows
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train import evaluate as judgement
from clinit.headtrain.protocol.train.evaluate import evaluate, mean_losses
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DIM, CLASSES = 48, 30


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
    bank = Bank(random_rows(4, scale), [Training(precision=kind)] * 2, CPU)
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


def rows_of_close_classes(seed: int) -> Rows:
    """Each other class is nearly the one before: TF32 rounds weights as much as both differ.

    All sums of products with small integers are exact in float32.
    """
    random = np.random.default_rng(seed)
    weight = random.integers(-(2**13), 2**13, size=(CLASSES // 2, DIM)).repeat(2, 0)
    apart = random.integers(-1, 2, size=weight.shape)
    apart[:8] = 0  # equal, so that the first must win
    return Rows((weight + apart).astype(np.float64), np.zeros(CLASSES))


def close_bank(device: torch.device) -> Bank:
    bank = Bank(rows_of_close_classes(0), [Training()] * 3, device)
    bank.write(1, 0, rows_of_close_classes(1))
    return bank


def close_batch(kind: Any, rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Features that resemble the weights of their label."""
    features, labels = np.zeros((rows, DIM), kind), batch(rows)[1]
    features[:] = (rows_of_close_classes(0).weight[labels] / 2**10).round()
    features[::5] = batch(rows)[0][::5].round()
    return features, labels


def counted(bank: Bank, features: np.ndarray, labels: np.ndarray) -> list[Any]:
    test = LabelledRows.on(bank.device, features, labels)
    correct, in_task, mistakes = evaluate(bank, test, (3, 4, CLASSES), list_mistakes=True)
    return [correct.tolist(), in_task.tolist(), [each.tolist() for each in mistakes]]


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_counts_in_tf32_with_a_second_look_are_those_of_float32(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, given, seen = close_bank(CPU), close_batch(kind), list[torch.Tensor]()
    odd = close_batch(kind)
    odd[0][:3] = [[np.inf], [np.nan], [0]]
    plain, plain_odd = counted(bank, *given), counted(bank, *odd)
    monkeypatch.setattr(Bank, "has_tf32", True)
    listed, rounded = judgement._listed, judgement._rounded

    def noted(close: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen.append(close)
        return listed(close)

    monkeypatch.setattr(judgement, "_listed", noted)
    assert counted(bank, *given) == plain
    assert 0.1 < seen[-1].double().mean() < 0.9
    assert counted(bank, *odd) == plain_odd
    assert seen[-1][:3].all()
    monkeypatch.setattr(judgement, "_rounded", lambda *given: (rounded(*given)[0], 0 * bank.bias))
    assert all(map(operator.ne, counted(bank, *given), plain))
    bank.weight[2, 5] = torch.nan  # and so are the bounds of this head
    monkeypatch.setattr(judgement, "_rounded", rounded)
    found = counted(bank, *given)
    assert seen[-1][:, 2].all()
    monkeypatch.setattr(Bank, "has_tf32", False)
    assert counted(bank, *given) == found


@pytest.mark.parametrize("worst", ["weights", "features", "sums"])
def test_errors_of_tensor_cores_reach_their_bound_and_stay_below(worst: str) -> None:
    """They add four exact products at a time, and truncate at the unit of the largest number."""
    bank = Bank(random_rows(1), [Training()], CPU)
    lost = bank.weight[0] - judgement._to_tf32(bank.weight[0])
    if worst == "weights":
        features = (lost * 2**12).half()  # as parallel to the loss as can be
    else:
        bank.weight -= lost
        alike = torch.cat([bank.weight[0].sign() * (1 + up * 2**-11) for up in (0.99, 1.5)])
        features = alike if worst == "features" else bank.weight[0].half()
    rounded, bounds = judgement._rounded(bank, features.dtype)
    products = judgement._to_tf32(features.float()).double()[:, None] * rounded.weight[0].double()
    total = bank.bias[0].double().expand(products.shape[:2])
    for four in products.split(4, 2):
        numbers = torch.cat([total[..., None], four], 2)
        unit = 2 ** (numbers.abs().amax(2, keepdim=True).log2().floor() - 23)
        total = ((numbers / unit).trunc() * unit).sum(2)
    exact = features.double() @ bank.weight[0].double().T + bank.bias[0].double()
    length = (features.double().square().sum(1) + 1).sqrt()[:, None]
    share = (total - exact).abs() / (length * bounds * judgement.BOUND_UNIT)
    assert {"weights": 0.9, "features": 0.7, "sums": 0.02}[worst] < share.max() < 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_a_cuda_device_counts_as_the_cpu_does(kind: Any) -> None:
    given = close_batch(kind, 4000)
    assert counted(close_bank(CUDA), *given) == counted(close_bank(CPU), *given)


def test_rows_on_disk_are_read_block_by_block_whatever_is_asked_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rows labelled wrong, or too close to call, are as many as there are rows on disk."""
    monkeypatch.setattr(judgement, "BLOCK_VALUES", 1)
    monkeypatch.setattr(judgement, "MIN_BLOCK_ROWS", 7)
    monkeypatch.setattr(Bank, "has_tf32", True)
    bank = Bank(random_rows(scale=0.0), [Training()] * 2, CPU)
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
    assert sum(read) == 100 + 2 * len(one[0])  # without a second look
