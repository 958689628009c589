from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.linear import NEVER
from clinit.headtrain.heads.temperature import (
    LEAST_ROWS,
    PRIOR,
    Temperature,
    calibration_error,
    fit_temperature,
    temperature_of,
)


def drawn(
    rows: int = 4000, classes: int = 7, sure: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return logits, and labels drawn from the softmax of these divided by `sure`."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((rows, classes))
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return sure * logits, np.array([rng.choice(classes, p=row) for row in chances])


def naive_error(logits: np.ndarray, labels: np.ndarray, bins: int = 15) -> float:
    """C. Guo and others, ICML 2017: bins ((m - 1) / M, m / M] of the largest probability."""
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    pairs = [(row.max(), row.argmax() == y) for row, y in zip(probabilities, labels, strict=True)]
    total = 0.0
    for m in range(1, bins + 1):
        inside = np.array([pair for pair in pairs if (m - 1) / bins < pair[0] <= m / bins])
        if len(inside):
            confidence, accuracy = inside.mean(axis=0)
            total += len(inside) / len(labels) * abs(accuracy - confidence)
    return total


def scipy_temperature(logits: np.ndarray, targets: np.ndarray, prior: float = 0.0) -> float:
    """Return the T of the least cross entropy with some targets, and with a prior."""

    def loss(t: float) -> float:
        fit = -(targets * log_softmax(logits / np.exp(t), axis=1)).sum()
        return float(fit + prior * t**2 / 2)

    found = minimize_scalar(loss, bounds=(-7, 7), method="bounded", options={"xatol": 1e-9})
    return float(np.exp(found.x))


def test_the_temperature_of_independent_classes_has_the_least_logistic_loss() -> None:
    logits, labels = drawn(rows=500, sure=2.0)
    logits -= logits.mean()

    def loss(log_t: float) -> float:
        signs = 1 - 2 * np.eye(7)[labels]
        return float(np.log1p(np.exp(signs * logits / np.exp(log_t))).sum())

    expected = np.exp(minimize_scalar(loss, bounds=(-7, 7), method="bounded").x)
    found = fit_temperature(logits, labels, activation="sigmoid")
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("sure", [0.02, 0.5, 1.0, 8.0])
@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e13])
def test_the_temperature_has_the_least_loss_that_scipy_finds(sure: float, unit: float) -> None:
    logits, labels = drawn(rows=500, sure=sure)
    found = fit_temperature(unit * logits, labels)
    assert found / unit == pytest.approx(scipy_temperature(logits, np.eye(7)[labels]), rel=1e-4)


@pytest.mark.parametrize("right", [True, False])
def test_with_smoothed_labels_there_is_one_although_all_rows_are_right(right: bool) -> None:
    logits, labels = drawn(rows=30)
    if right:
        labels = logits.argmax(axis=1)
    found = fit_temperature(logits, labels, smoothed=True)
    targets = np.full(logits.shape, 1 / 32 / 6)
    targets[np.arange(30), labels] = 1 - 1 / 32

    assert found == pytest.approx(scipy_temperature(logits, targets), rel=1e-4)


@pytest.mark.parametrize("sure", [0.3, 1.0, 4.0])
def test_the_calibration_error_is_that_of_a_loop_over_bins(sure: float) -> None:
    logits, labels = drawn(rows=700, sure=sure)
    chances = softmax(logits, axis=1)
    found = calibration_error(chances.max(axis=1), chances.argmax(axis=1) == labels)
    assert found == pytest.approx(naive_error(logits, labels), rel=1e-12)


def test_rows_that_are_all_right_or_tell_nothing_give_none() -> None:
    logits, _ = drawn(rows=200)
    assert fit_temperature(logits, logits.argmax(axis=1)) is None
    # The right class scores less than the others on average: the best b is 0.
    assert fit_temperature(logits, logits.argmin(axis=1)) is None
    assert fit_temperature(np.empty((0, 3)), np.empty(0, dtype=np.int64)) is None


def features_of(rows: int) -> tuple[Head, FeatureSet]:
    logits, labels = drawn(rows=rows, classes=5, sure=4.0)
    bias = np.array([0.5, -3.0, 2.0, 0.0, 1.0], dtype=np.float32)
    head = Head(np.eye(5, dtype=np.float32), bias, tuple("abcde"))
    return head, FeatureSet((logits - bias).astype(np.float32), labels, tuple("abcde"))


def test_rows_of_a_class_that_the_head_rules_out_are_left_out() -> None:
    head, rows = features_of(600)
    some = rows.labels != 2
    names, rows_of = tuple("abde"), np.array([0, 1, -1, 2, 3])
    expected = temperature_of(
        Head(head.weight[[0, 1, 3, 4]], head.bias[[0, 1, 3, 4]]),
        FeatureSet(rows.features[some], rows_of[rows.labels[some]], names),
    )
    weight, bias = head.weight.copy(), head.bias.copy()
    weight[2], bias[2] = 0.0, NEVER
    found = temperature_of(Head(weight, bias), rows)
    assert found == expected
    assert found.value == pytest.approx(4.0, rel=0.3)
    few = np.concatenate([np.flatnonzero(some)[: LEAST_ROWS - 1], np.flatnonzero(~some)])
    left = FeatureSet(rows.features[few], rows.labels[few], rows.class_names)
    assert temperature_of(Head(weight, bias), left) is None


@pytest.mark.parametrize("prior", [0.0, PRIOR])
def test_all_fit_and_each_half_is_measured_with_the_other(
    monkeypatch: pytest.MonkeyPatch, prior: float
) -> None:
    head, rows = features_of(1001)
    found = temperature_of(head, rows, prior=prior, before=2.0)
    assert (found.fitted_rows, found.measured_rows) == (1001, 1001)
    order = np.argsort(rows.labels, kind="stable")
    logits, labels = (rows.features + head.bias).astype(np.float64)[order], rows.labels[order]
    value, odd, even = (
        2 * scipy_temperature(logits[some] / 2, np.eye(5)[labels[some]], prior)
        for some in (slice(None), slice(1, None, 2), slice(0, None, 2))
    )
    assert found.value == pytest.approx(value, rel=1e-4)
    assert found.ece_before == pytest.approx(naive_error(logits, labels))
    logits[::2], logits[1::2] = logits[::2] / odd, logits[1::2] / even
    assert found.ece_after == pytest.approx(naive_error(logits, labels), rel=1e-3)
    assert found.ece_after < 0.5 * found.ece_before  # type: ignore[operator]
    monkeypatch.setattr("clinit.headtrain.heads.temperature.MOST_ROWS", 200)
    of_many = temperature_of(head, rows)
    assert (of_many.fitted_rows, of_many.measured_rows) == (200, 200)


def test_with_a_prior_few_rows_move_an_earlier_temperature_by_little() -> None:
    head, rows = features_of(400)
    values = []
    for count in (1, 2, 99, 100, 101):
        part = FeatureSet(rows.features[:count], rows.labels[:count], rows.class_names)
        found = temperature_of(head, part, prior=PRIOR, before=3.0)
        assert found.measured_rows == (count if count >= LEAST_ROWS else 0)
        values.append(found.value)
    assert values[0] == pytest.approx(3.0, rel=0.1)
    np.testing.assert_allclose(values[2:4], values[3:], rtol=0.02)
    weak = temperature_of(head, rows, prior=1e6 * PRIOR, before=3.0)
    assert (weak.value, weak.measured_rows) == (pytest.approx(3.0, rel=1e-3), 0)
    right = (rows.features + head.bias).argmax(axis=1)
    assert 0 < temperature_of(head, replace(rows, labels=right), prior=PRIOR).value < 1


def test_a_head_divided_multiplied_and_divided_has_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((40, 30)), rng.standard_normal(40)
    head = Head(weight.astype(np.float32), bias.astype(np.float32))
    temperature = Temperature(value=1.7402, fitted_rows=50, measured_rows=50)
    once = temperature.divided(head)
    np.testing.assert_allclose(once.weight, head.weight / 1.7402, rtol=1e-6)
    back = temperature.multiplied(once)
    np.testing.assert_allclose(back.weight, head.weight, rtol=2e-7)
    again = temperature.divided(back)
    assert again.weight.tobytes() == once.weight.tobytes()
    assert again.bias.tobytes() == once.bias.tobytes()
