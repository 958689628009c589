import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.preprocessing import StandardScaler

from clinit.headtrain.probe import fit as module
from clinit.headtrain.probe.fit import LogisticRegression, Standard
from clinit.headtrain.protocol.train.heads import LabelledRows
from tests.headtrain.probe.digits import digits

TRAIN = digits().train
FEATURES = TRAIN.features.astype(np.float64)
STANDARDISED = StandardScaler().fit_transform(FEATURES)  # some pixels are constant


def rows(count: int = 300) -> LabelledRows:
    return LabelledRows.on(torch.device("cpu"), TRAIN.features[:count], TRAIN.labels[:count])


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("c", [0.01, 1.0, 30.0])
def test_logistic_regression_is_that_of_scikit_learn(
    c: float, standardise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRADIENT", 1e-7)
    monkeypatch.setattr(module, "BLOCK_VALUES", 700)  # seventy rows
    seen = STANDARDISED if standardise else FEATURES
    reference = Reference(C=c, max_iter=5000, tol=1e-7).fit(seen, TRAIN.labels)
    problem = LogisticRegression(rows(), 10, Standard.of(rows(), standardise=standardise))
    found, parameters = problem.minimum(c)
    weight, bias = (part.numpy() for part in problem.split(parameters))
    assert found.converged
    np.testing.assert_allclose(weight, reference.coef_, atol=0.02 * np.abs(reference.coef_).max())
    expected = reference.intercept_ - reference.intercept_.mean()
    np.testing.assert_allclose(bias - bias.mean(), expected, atol=0.02 * np.abs(expected).max())
    logits = FEATURES @ found.rows.weight.T + found.rows.bias
    np.testing.assert_allclose(logits, seen @ weight.T + bias, atol=1e-9)
    loss = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits), torch.from_numpy(TRAIN.labels)
    )
    assert found.loss == pytest.approx(float(loss))
