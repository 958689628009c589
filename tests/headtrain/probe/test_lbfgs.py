from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.preprocessing import StandardScaler

from clinit.headtrain.probe import fit as lbfgs
from clinit.headtrain.probe.fit import LogisticRegression, Standard
from clinit.headtrain.train.rows import LabelledRows
from tests.headtrain.probe.digits import digits


@pytest.fixture(autouse=True)
def _to_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbfgs, "GRADIENT", 1e-7)


def regression(*, standardised: bool = False, count: int = 300) -> LogisticRegression:
    data = digits().train
    rows = LabelledRows.on(torch.device("cpu"), data.features[:count], data.labels[:count])
    standard = Standard.of(rows) if standardised else Standard.none(rows)
    return LogisticRegression(rows, 10, standard)


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("c", [0.01, 1.0, 30.0])
def test_weights_are_those_of_scikit_learn(c: float, standardised: bool) -> None:
    data = digits().train
    features = data.features.astype(np.float64)
    if standardised:
        features = StandardScaler().fit_transform(features)
    reference = Reference(C=c, max_iter=5000, tol=1e-7).fit(features, data.labels)
    problem = regression(standardised=standardised)
    found = problem.minimum(c)
    weight, bias = (part.numpy() for part in problem.split(found.parameters))
    assert found.converged
    scale = np.abs(reference.coef_).max()
    np.testing.assert_allclose(weight, reference.coef_, atol=0.02 * scale)
    expected = reference.intercept_ - reference.intercept_.mean()
    np.testing.assert_allclose(bias - bias.mean(), expected, atol=0.02 * np.abs(expected).max())
    logits = features @ weight.T + bias
    assert (logits.argmax(1) == reference.predict(features)).all()


def test_the_gradient_is_that_of_differences() -> None:
    problem = regression(count=25)
    point = np.random.default_rng(1).normal(size=problem.size)

    def loss(parameters: np.ndarray) -> float:
        return problem.mean_loss(parameters)[0]

    slope = approx_fprime(point, loss, 1e-6)
    np.testing.assert_allclose(problem.mean_loss(point)[1], slope, atol=1e-5)


def test_blocks_of_rows_give_what_all_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    point = np.random.default_rng(1).normal(size=regression().size)
    whole = regression().mean_loss(point)
    monkeypatch.setattr(lbfgs, "BLOCK_VALUES", 70)  # seven rows
    parts = regression().mean_loss(point)
    assert parts[0] == pytest.approx(whole[0], rel=1e-12)
    np.testing.assert_allclose(parts[1], whole[1], atol=1e-14)
