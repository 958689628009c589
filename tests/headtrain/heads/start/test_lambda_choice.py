"""The curve that lambda is chosen by, beside leave-one-out logits and a general solver."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.start.calibrate import together
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.lambda_choice import _Search, loss_curve, safe_lambda
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.heads.statistics.solve import LambdaPath
from tests.headtrain.heads.start.test_left_out import left_out_logits

OLD, NEW, DIM = 3, 2, 8


def arrival(rows: int = 8, noise: float = 2.0, seed: int = 0) -> NewClasses:
    rng = np.random.default_rng(seed)
    centres, labels = rng.normal(size=(OLD + NEW, DIM)), np.tile(np.arange(OLD + NEW), rows)
    features = centres[labels] + noise * rng.normal(size=(len(labels), DIM))
    return NewClasses(features, labels, Rows(centres, rng.normal(size=OLD + NEW)), OLD, OLD + NEW)


def curve_of(data: NewClasses, loss: str = "ce", **options: Any) -> Any:
    path = LambdaPath.of(data.statistics())
    return found_by(CalibrationSet.of(data, LOSSES[loss]), path, **options)


def found_by(
    around: CalibrationSet, path: LambdaPath, start: Start | None = None, **options: Any
) -> Any:
    return together([loss_curve(around, path, start or Start(), **options)])[0]


@pytest.mark.parametrize("bias", ["write", "keep"])
@pytest.mark.parametrize("init", ["least-square", "fitted"])
@pytest.mark.parametrize("loss", ["ce", "mse", "sqen", "bce"])
def test_each_loss_is_that_of_calibrated_leave_one_out_logits(
    loss: str, init: Any, bias: Any
) -> None:
    data, start = arrival(), Start(init=init, bias=bias, new_share="classes")
    curve = curve_of(data, loss, start=start)
    starts = (start, replace(start, lam=curve.best))
    auto, given = (initialise(each, data, loss=loss) for each in starts)
    np.testing.assert_allclose(auto.rows.weight, given.rows.weight, rtol=1e-6)
    others = data.features @ data.head.weight.T + data.head.bias
    for lam, found in list(zip(curve.lams, curve.errors, strict=True))[::4]:
        left_out = left_out_logits(start, data, lam)

        def calibrated(point: np.ndarray, left_out: np.ndarray = left_out) -> float:
            logits = others.copy()
            logits[:, OLD:] = point[0] * left_out + point[1]
            return float(LOSSES[loss].value(*map(torch.from_numpy, (logits, data.labels))).mean())

        best = minimize(calibrated, [1.0, 0.0], method="Nelder-Mead", tol=1e-9).fun
        assert found == pytest.approx(best, rel=2e-3)  # the prior of the factor is in neither


def test_classes_of_a_single_image_judge_lambda_too() -> None:
    data = arrival(seed=1)
    kept = np.delete(np.arange(len(data.labels)), np.flatnonzero(data.labels == OLD)[1:])
    data = replace(data, features=data.features[kept], labels=data.labels[kept])
    path, around = LambdaPath.of(data.statistics()), CalibrationSet.of(data, LOSSES["ce"])
    found = initialise(Start(lam="auto"), data)
    assert found.curve == found_by(around, path)
    assert found.curve != found_by(around.subset(data.labels != OLD), path)


def opposites(seed: int = 0) -> NewClasses:
    """Return new classes of two opposite rows: without one, a row points away from it."""
    rng = np.random.default_rng(seed)
    old, new = rng.normal(size=(OLD, 20)), 5 * rng.normal(size=(NEW, 20))
    labels = np.r_[np.repeat(np.arange(OLD), 10), np.repeat(np.arange(OLD, OLD + NEW), 2)]
    features = np.r_[old[labels[: 10 * OLD]], np.stack([new, -new], axis=1).reshape(-1, 20)]
    features = features + 0.1 * rng.normal(size=features.shape)
    return NewClasses(features, labels, Rows(np.r_[old, new], np.zeros(OLD + NEW)), OLD, OLD + NEW)


def test_where_rows_are_of_no_use_there_is_no_curve_and_no_negative_factor() -> None:
    data = replace(opposites(), base=OLD - 2)
    around, path = CalibrationSet.of(data, LOSSES["ce"]), LambdaPath.of(data.statistics())
    assert found_by(around, path) is None
    found = initialise(Start(), data)
    # No loss: they are not calibrated.
    assert (found.lam, found.curve, found.loss_after) == (safe_lambda(path), None, None)
    rows = data.head.weight[: OLD - 2], found.rows.weight
    of_base, new = (np.linalg.norm(each, axis=1).mean() for each in rows)
    assert new == pytest.approx(of_base)


def test_a_lambda_of_negative_factor_is_not_chosen() -> None:
    # Of few noisy rows the least loss may be that of rows that point away from their classes.
    chosen_negative = 0
    for seed in range(10):
        data = arrival(rows=2, noise=6.0, seed=seed)
        around, path = CalibrationSet.of(data, LOSSES["ce"]), LambdaPath.of(data.statistics())
        curve, search = found_by(around, path), _Search(around, path, Start())
        together([search.begin()])
        if curve is None:
            continue
        assert curve.errors == tuple(min(error, search.without) for error in curve.errors)
        found = initialise(Start(new_share="classes"), data)
        assert (found.factor > 0, found.lam) == (True, curve.best)
        chosen_negative += search.without in curve.errors
    assert chosen_negative > 0


def test_the_grid_goes_on_where_its_lower_edge_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    data = arrival(noise=0.1)
    whole = curve_of(data)
    monkeypatch.setattr("clinit.headtrain.heads.start.lambda_choice.BELOW", 1)
    monkeypatch.setattr("clinit.headtrain.heads.start.lambda_choice.ABOVE", 1)
    longer = curve_of(data)
    assert len(longer.lams) > 3
    assert longer.errors[0] > min(longer.errors)
    assert longer.best == whole.best


@pytest.mark.parametrize("near", [None, 1e-8, 1e-3, 1.0, 1e6])
def test_the_search_finds_the_best_lambda_of_the_whole_grid(near: float | None) -> None:
    for seed, noise in product(range(3), (0.1, 1.0, 3.0)):
        data = arrival(rows=5, noise=noise, seed=seed)
        around, path = CalibrationSet.of(data, LOSSES["ce"]), LambdaPath.of(data.statistics())
        curve = found_by(around, path, near=near)
        whole = _Search(around, LambdaPath.of(data.statistics()), Start())
        together([whole.begin()])
        lams = (step * 10.0**power for power in range(-8, 5) for step in (1, 3))
        least = min(together([whole.loss(lam)])[0] for lam in lams)
        if curve is None:
            assert least >= 0.999 * whole.without
            continue
        assert min(curve.errors) <= 1.001 * least + 1e-9
        warm = found_by(around, path, near=curve.best)
        assert min(warm.errors) <= 1.001 * least + 1e-9
        assert len(warm.lams) <= 9  # flat curves let it wander
