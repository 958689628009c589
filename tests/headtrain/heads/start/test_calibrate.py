from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from clinit.headtrain.heads.groups import balanced_draw
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES, Loss
from clinit.headtrain.heads.start.calibrate import (
    Calibration,
    calibrate,
    newton_step,
    norm_factor,
    together,
)
from clinit.headtrain.heads.start.calibration_set import NEW_SHARE, CalibrationSet, share_of
from clinit.headtrain.heads.start.left_out import in_sample
from clinit.headtrain.heads.start.new_rows import NewClasses

OLD, NEW, UNSEEN, DIM = 5, 3, 2, 6
NAMES = ["ce", "mse", "sqen", "bce"]


def arrival(dtype: type = np.float64, spread: float = 1.5) -> NewClasses:
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(OLD + NEW, DIM))
    labels = rng.choice(OLD + NEW, size=500, p=np.arange(1, 9) / 36)
    features: np.ndarray = (centres[labels] + spread * rng.normal(size=(500, DIM))).astype(dtype)
    weight = np.r_[centres, rng.normal(size=(UNSEEN, DIM))]
    return NewClasses(features, labels, Rows(weight, rng.normal(size=10)), OLD, OLD + NEW)


def raw_rows(size: float = 1.0) -> Rows:
    rng, data = np.random.default_rng(4), arrival()
    means = np.stack([data.features[data.labels == OLD + k].mean(axis=0) for k in range(NEW)])
    return Rows(size * means, size * rng.normal(size=NEW))


def calibrated(
    raw: Rows, data: NewClasses, loss: Loss, *, kept_bias: np.ndarray | None = None
) -> Calibration:
    """Calibrate rows on the logits that they give themselves."""
    around = CalibrationSet.of(data, loss)
    rows = raw if kept_bias is None else Rows(raw.weight, 0 * raw.bias)
    kept = None if kept_bias is None else torch.from_numpy(kept_bias)
    starts = [np.array([factor, 0.0]) for factor in (1.0, norm_factor(raw, data))]
    return together([calibrate(around, around.logits(in_sample(rows)), starts, kept_bias=kept)])[0]


def naive_loss(name: str, point: np.ndarray, raw: Rows, data: NewClasses) -> float:
    """Write the rows into the head, then the class-balanced loss of all logits."""
    weight, bias = data.head.weight.copy(), data.head.bias.copy()
    weight[data.start : data.stop] = point[0] * raw.weight
    bias[data.start : data.stop] = point[0] * raw.bias + point[1]
    logits = torch.from_numpy(data.features.astype(np.float64) @ weight.T + bias)
    values = LOSSES[name].value(logits, torch.from_numpy(data.labels)).numpy()
    present = sorted(set(data.labels.tolist()))
    return float(np.mean([values[data.labels == c].mean() for c in present]))


def naive_prior(factor: float, raw: Rows, data: NewClasses) -> float:
    """Compare class-balanced variances of logits, a row and a class after the other."""

    def variance(row: np.ndarray) -> float:
        logits, present = data.features.astype(np.float64) @ row, sorted(set(data.labels.tolist()))
        mean = np.mean([logits[data.labels == c].mean() for c in present])
        return float(np.mean([((logits[data.labels == c] - mean) ** 2).mean() for c in present]))

    old = np.mean([variance(row) for row in data.head.weight[: data.start]])
    return float(1e-3 / 2 * factor**2 * np.mean([variance(row) for row in raw.weight]) / old)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_it_finds_the_minimum_that_scipy_finds(name: str, size: float) -> None:
    data, raw = arrival(), raw_rows(size)
    found = calibrated(raw, data, LOSSES[name])

    def loss(x: np.ndarray) -> float:
        point = np.array([x[0] / size, x[1]])
        return naive_loss(name, point, raw, data) + naive_prior(point[0], raw, data)

    best = minimize(loss, np.array([0.5, 0.0]), method="BFGS", tol=1e-9)
    reached = found.loss_after + naive_prior(found.factor, raw, data)
    assert reached == pytest.approx(best.fun, abs=1e-9)
    point = np.array([found.factor, found.shift])
    assert found.loss_after == pytest.approx(naive_loss(name, point, raw, data))
    assert found.factor * size == pytest.approx(best.x[0], rel=1e-4)
    assert found.shift == pytest.approx(best.x[1], rel=1e-4, abs=1e-5)
    assert found.loss_before == pytest.approx(naive_loss(name, np.array([1.0, 0.0]), raw, data))
    assert found.steps < 20


@pytest.mark.parametrize("start", [(-30.0, 100.0), (300.0, -50.0), (0.0, 0.0)])
def test_newton_descends_from_anywhere(start: tuple[float, float]) -> None:
    data, raw = arrival(), raw_rows(30.0)
    around = CalibrationSet.of(data, LOSSES["ce"])
    (end,) = together([calibrate(around, around.logits(in_sample(raw)), [np.array(start)])])
    found = calibrated(raw, data, LOSSES["ce"])
    reached = [each.loss_after + naive_prior(each.factor, raw, data) for each in (end, found)]
    assert reached[0] == pytest.approx(reached[1], abs=1e-7)
    assert end.steps < 60


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_bias_is_not_shifted(name: str) -> None:
    data, raw = arrival(), raw_rows()
    kept = np.array([0.3, -0.2, 0.1])
    found = calibrated(raw, data, LOSSES[name], kept_bias=kept)
    assert found.shift == 0
    losses, around = [], []
    for factor in (0.99 * found.factor, found.factor, 1.01 * found.factor):
        rows = Rows(raw.weight, kept / factor)
        losses.append(naive_loss(name, np.array([factor, 0.0]), rows, data))
        around.append(losses[-1] + naive_prior(factor, raw, data))
    assert found.loss_after == pytest.approx(losses[1])
    assert around[1] == min(around)


def test_a_draw_takes_the_same_number_a_class_and_all_of_a_small_one() -> None:
    labels = np.repeat([0, 1, 2, 4], [100, 3, 50, 1])
    rows = balanced_draw(labels, 40)
    np.testing.assert_array_equal(np.bincount(labels[rows]), [18, 3, 18, 0, 1])
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(balanced_draw(labels, 154), np.arange(154))
    np.testing.assert_array_equal(np.bincount(labels[balanced_draw(labels, 2)]), [1, 1, 1, 0, 1])


def test_a_newton_step_ignores_a_direction_without_curvature() -> None:
    step = newton_step(np.array([2.0, 0.0]), np.array([[4.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(step, [-0.5, 0.0])


@pytest.mark.parametrize("kept", [slice(None), slice(0, 400)])
def test_new_rows_weigh_their_share_and_classes_the_same_within_each_side(kept: slice) -> None:
    data, chosen = arrival(), np.zeros(500, dtype=bool)
    data = replace(data, groups=np.arange(500) % 7 + 7 * data.labels)  # seven of each class
    chosen[kept] = True
    found = CalibrationSet.of(data, LOSSES["ce"], 0.3).subset(chosen)
    weights, is_new = found.weight.numpy(), found.labels >= OLD
    assert weights[is_new].sum() == pytest.approx(0.3)
    per_class = np.bincount(found.labels, weights)
    np.testing.assert_allclose(per_class, [0.7 / OLD] * OLD + [0.3 / NEW] * NEW)


@pytest.mark.parametrize(
    ("labels", "given", "expected"),
    [
        ([0, 1, 2, 3, 4, 5], "classes", None),
        ([0, 1, 2, 3, 4, 5], 0.3, 0.3),
        ([0, 1, 2, 5], "auto", None),  # a new class of four weighs more already
        ([0, 1, 2, 3, 4, 6], 0.05, 0.05),
        ([5, 6, 7], 0.3, None),
    ],
)
def test_a_share_is_that_of_the_classes_unless_it_says_otherwise(
    labels: list[int], given: Any, expected: float | None
) -> None:
    data = replace(arrival(), features=np.ones((len(labels), DIM)), labels=np.array(labels))
    assert share_of(data, given) == expected
    # Classes that came before, but after the base, have their part of it.
    later = replace(arrival(), base=OLD - 1)
    assert share_of(replace(later, labels=np.arange(6)), "auto") is None
    weights = CalibrationSet.of(later, LOSSES["ce"], 0.4).weight.numpy()
    assert weights[later.labels >= OLD - 1].sum() == pytest.approx(0.4)
    many = replace(arrival(), start=98, labels=np.array([*range(98), 98, 98, 99]), stop=100)
    assert share_of(many, "auto") == NEW_SHARE
