"""Fitted rows beside a general solver and automatic differentiation of the written-out loss."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES
from clinit.headtrain.heads.start.calibration_set import CalibrationSet
from clinit.headtrain.heads.start.fit import Fit, evened, fit
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses, raw_rows
from clinit.headtrain.heads.start.settings import Start
from tests.headtrain.heads.start.test_calibrate import DIM, NAMES, NEW, OLD, arrival


def start_rows() -> Rows:
    rng = np.random.default_rng(6)
    return Rows(rng.normal(size=(NEW, DIM)) / 4, rng.normal(size=NEW))


SHARE = NEW / (OLD + NEW)


def naive(
    name: str, rows: torch.Tensor, start: Rows, data: NewClasses, ridge: float, share: float = SHARE
) -> Any:
    """Return the regularised loss of rows (weight, bias), written as one formula, and the loss."""
    labels, features = torch.from_numpy(data.labels), torch.from_numpy(data.features)
    weight, bias = torch.from_numpy(data.head.weight), torch.from_numpy(data.head.bias)
    weight = torch.cat([weight[:OLD], rows[:, :-1], weight[OLD + NEW :]])
    bias = torch.cat([bias[:OLD], rows[:, -1], bias[OLD + NEW :]])
    values = LOSSES[name].value(features @ weight.T + bias, labels)
    classes, old = sorted(set(data.labels.tolist())), data.came_with
    of_new = share / (OLD + NEW - old)
    each = np.array([of_new if c >= old else (1 - share) / old for c in classes])
    loss = sum(w * values[labels == c].mean() for w, c in zip(each, classes, strict=True))
    size = sum(
        w * features[labels == c].square().mean() for w, c in zip(each, classes, strict=True)
    )
    moved = size * (rows[:, :-1] - torch.from_numpy(start.weight)).square().sum()
    moved = moved + (rows[:, -1] - torch.from_numpy(start.bias)).square().sum()
    rows_per_class = np.mean([(data.labels == c).sum() for c in range(OLD, OLD + NEW)])
    return loss + ridge * of_new / (2 * rows_per_class) * moved, loss


def fitted(
    name: str,
    data: NewClasses,
    start: Rows,
    ridge: float,
    share: Any = "classes",
    *,
    fits_bias: bool = True,
    **options: Any,
) -> Fit:
    sample = CalibrationSet.of(data, LOSSES[name], share)
    return fit(sample, start, ridge, fits_bias=fits_bias, **options)


def together(rows: Rows) -> torch.Tensor:
    return torch.from_numpy(np.column_stack([rows.weight, rows.bias]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("ridge", "share", "base"), [(0.5, SHARE, OLD), (50.0, SHARE, OLD), (5.0, 0.1, OLD - 2)]
)
def test_it_finds_the_minimum_that_scipy_finds(
    name: str, ridge: float, share: float, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.heads.start.fit.EVENED", 0.0)
    data, start = replace(arrival(), base=base), start_rows()
    found = fitted(name, data, start, ridge, share, max_steps=500)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        rows = torch.tensor(x.reshape(NEW, DIM + 1), requires_grad=True)
        value, _ = naive(name, rows, start, data, ridge, share)
        (gradient,) = torch.autograd.grad(value, rows)
        return value.item(), gradient.numpy().ravel()

    begin = together(start).numpy().ravel()
    best = minimize(objective, begin, jac=True, method="BFGS", options={"gtol": 1e-9})
    value, loss = naive(name, together(found.rows), start, data, ridge, share)
    assert value.item() == pytest.approx(best.fun, abs=1e-7)
    np.testing.assert_allclose(together(found.rows).numpy().ravel(), best.x, rtol=1e-3, atol=1e-3)
    assert found.loss_after == pytest.approx(loss.item())
    before = naive(name, together(start), start, data, ridge, share)[1].item()
    assert found.loss_before == pytest.approx(before)


def test_biases_that_are_kept_do_not_move() -> None:
    data, start = arrival(), start_rows()
    found = fitted("ce", data, start, 0.5, fits_bias=False)
    np.testing.assert_array_equal(found.rows.bias, start.bias)
    assert found.loss_after < found.loss_before


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("calibration", ["leave-one-out", "in-sample"])
def test_the_start_of_a_task_lowers_the_loss_of_calibrated_rows(
    name: str, calibration: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.heads.start.fit.EVENED", 0.0)
    data = arrival()
    if calibration == "in-sample":  # the only image of a class takes part
        rest = np.append(np.flatnonzero(data.labels != OLD), np.flatnonzero(data.labels == OLD)[0])
        data = replace(data, features=data.features[rest], labels=data.labels[rest])
    calibrated, found = (
        initialise(Start(init="fitted", calibration=calibration, fit_ridge=ridge), data, loss=name)
        for ridge in (1e12, 60.0)
    )

    def loss(rows: Rows) -> float:
        return float(naive(name, together(rows), rows, data, 0.0)[1])

    assert loss(found.rows) < loss(calibrated.rows)
    assert found.loss_before == pytest.approx(loss(calibrated.rows))
    assert found.loss_after == pytest.approx(loss(found.rows))


def test_left_out_images_are_answered_by_rows_that_are_fitted_to_four_fifths() -> None:
    data, start = arrival(), Start(init="fitted", new_share=0.2)
    pairs = np.arange(len(data.labels)) // 2
    data = replace(data, groups=10 * pairs + data.labels)  # some pairs are one
    found = initialise(start, data)
    assert found.lam is not None
    assert found.left_out is not None
    known = found.left_out()
    kinds = sorted({*zip(data.labels.tolist(), data.groups.tolist(), strict=True)})
    part_of = {group: number % 5 for number, (_, group) in enumerate(kinds)}
    parts = np.array([part_of[group] for group in data.groups.tolist()])
    np.testing.assert_array_equal(known.drawn, np.arange(len(data.labels)))
    for part in range(5):
        kept = parts != part
        fewer = replace(
            data, features=data.features[kept], labels=data.labels[kept], groups=data.groups[kept]
        )
        raw = raw_rows(start, fewer, fewer.statistics(), found.lam)
        begin = Rows(found.factor * raw.weight, found.factor * raw.bias + found.shift)
        around = CalibrationSet.of(fewer, LOSSES["ce"], 0.2)
        rows = fit(around, begin, start.fit_ridge, fits_bias=True).rows
        expected = data.features[~kept] @ rows.weight.T + rows.bias
        np.testing.assert_allclose(known.logits[~kept], expected, rtol=1e-9, atol=1e-9)


def test_biases_are_evened_by_the_numbers_of_images_and_the_leads_of_their_classes() -> None:
    data, rows = arrival(), Rows(np.random.default_rng(0).normal(size=(NEW, DIM)), np.zeros(NEW))
    parts = 1 / (data.counts[OLD:] + 1)
    means = np.stack([data.features[data.labels == OLD + k].mean(axis=0) for k in range(NEW)])
    for k, moved in enumerate(evened(rows, data).bias):
        lead = rows.weight[k] @ (means[k] - np.delete(means, k, axis=0).mean(axis=0))
        assert moved == pytest.approx(lead * (parts[k] - parts.mean()) / 3)
