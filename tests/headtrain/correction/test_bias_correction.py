from __future__ import annotations

import numpy as np
import pytest
import torch

from clinit.headtrain.correction import bias_corrected, class_weights
from clinit.headtrain.rows import Rows
from clinit.headtrain.start.calibrate import PRIOR
from clinit.headtrain.start.new_rows import NewClasses

OLD, NEW, DIM = 6, 3, 5
STOP = OLD + NEW


def trained_head(size: float = 1.0, shift: float = 0.0, *, absent: int = 0) -> NewClasses:
    """A head that knows the classes, new ones at another scale; the first classes lack rows."""
    rng = np.random.default_rng(3)
    centres = 1.5 * rng.normal(size=(STOP, DIM))
    labels = rng.integers(absent, STOP, size=400)
    features = centres[labels] + rng.normal(size=(400, DIM))
    weight, bias = centres.copy(), -(centres**2).sum(1) / 2
    weight[OLD:] *= size
    bias[OLD:] = size * bias[OLD:] + shift
    return NewClasses(features, labels, Rows(weight, bias), OLD, STOP)


def naive_objective(data: NewClasses, numbers: torch.Tensor) -> torch.Tensor:
    """Cross entropy of corrected logits, class after class, and the prior of the factor."""
    logits = torch.from_numpy(data.features @ data.head.weight.T + data.head.bias)
    corrected = torch.cat([logits[:, :OLD], numbers[0] * logits[:, OLD:] + numbers[1]], dim=1)
    labels = torch.from_numpy(data.labels)
    losses = torch.nn.functional.cross_entropy(corrected, labels, reduction="none")
    means = {c: losses[labels == c].mean() for c in range(STOP) if (labels == c).any()}
    old = torch.stack([mean for c, mean in means.items() if c < OLD]).mean()
    new = torch.stack([mean for c, mean in means.items() if c >= OLD]).mean()
    return (OLD * old + NEW * new) / STOP + naive_prior(data, numbers)


def naive_prior(data: NewClasses, numbers: torch.Tensor) -> torch.Tensor:
    """Variance of new logits over that of old ones: weighted by class, averaged over rows."""
    weights = class_weights(data.labels, OLD, STOP)
    uniform = 1 / (len(np.unique(data.labels)) * np.bincount(data.labels)[data.labels])

    def spread(logits: np.ndarray, weights: np.ndarray) -> float:
        mean = weights @ logits
        return float(np.mean(weights @ logits**2 - mean**2))

    logits = data.features @ data.head.weight.T + data.head.bias
    ratio = spread(logits[:, OLD:], weights) / spread(logits[:, :OLD], uniform)
    return PRIOR / 2 * ratio * numbers[0] ** 2


@pytest.mark.parametrize(("size", "shift", "absent"), [(1.0, 0.0, 0), (3.0, 4.0, 0), (0.3, -2, 4)])
def test_factor_and_shift_are_those_that_gradient_descent_finds(
    size: float, shift: float, absent: int
) -> None:
    data = trained_head(size, shift, absent=absent)
    found = bias_corrected(data)
    numbers = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([numbers], max_iter=200, tolerance_grad=1e-12)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        objective = naive_objective(data, numbers)
        objective.backward()
        return objective

    optimizer.step(closure)  # type: ignore[arg-type]
    assert [found.factor, found.shift] == pytest.approx(numbers.tolist(), rel=1e-4, abs=1e-5)
    assert found.loss_after is not None
    assert found.loss_before is not None
    prior = naive_prior(data, numbers).item()
    assert found.loss_after + prior == pytest.approx(naive_objective(data, numbers).item())
    assert found.loss_after <= found.loss_before


def test_corrected_rows_give_the_corrected_logits() -> None:
    data = trained_head(3.0, 4.0)
    found = bias_corrected(data)
    raw = data.features @ data.head.weight[OLD:].T + data.head.bias[OLD:]
    corrected = data.features @ found.rows.weight.T + found.rows.bias
    np.testing.assert_allclose(corrected, found.factor * raw + found.shift)


def test_a_head_of_another_scale_ends_as_the_same_head() -> None:
    one, other = (bias_corrected(trained_head(*change)).rows for change in ((1.0, 0.0), (4.0, 5.0)))
    np.testing.assert_allclose(one.weight, other.weight, rtol=1e-4)
    np.testing.assert_allclose(one.bias, other.bias, rtol=1e-3)


def test_each_class_weighs_the_same_and_absent_ones_are_stood_for_by_others_of_their_kind() -> None:
    labels = np.array([0, 0, 0, 2, 3, 3])
    weights = class_weights(labels, 3, 5)
    np.testing.assert_allclose(weights, [0.1, 0.1, 0.1, 0.3, 0.2, 0.2])
    assert weights.sum() == pytest.approx(1)
    every = np.array([0, 1, 1, 2])
    np.testing.assert_allclose(class_weights(every, 2, 3), [1 / 3, 1 / 6, 1 / 6, 1 / 3])


def test_it_says_how_many_rows_it_looked_at_and_how_long_it_searched() -> None:
    facts = bias_corrected(trained_head()).facts()
    assert facts["rows_aside"] == 400
    assert 0 < facts["steps"] < 20
