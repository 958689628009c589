import numpy as np
import pytest

from clinit.errors import StatisticsError
from clinit.headtrain.heads.closed.fecam import Fecam
from clinit.headtrain.heads.closed.interface import Arrival, ClosedForm
from clinit.headtrain.heads.closed.settings import FecamConfig
from clinit.headtrain.heads.linear import NEVER
from tests.headtrain.heads.closed.made import COUNTS, DIM, queries, rows_of, stream

SEEN = np.flatnonzero(COUNTS)


def unit(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def shrunk(covariance: np.ndarray, alpha1: float, alpha2: float) -> np.ndarray:
    eye = np.eye(len(covariance))
    off = covariance[(eye == 0) & (covariance != 0)].mean()
    mean = np.diag(covariance).mean()
    return np.asarray(covariance + alpha1 * mean * eye + alpha2 * off * (1 - eye))


def normalised(covariance: np.ndarray) -> np.ndarray:
    return np.asarray(covariance / np.sqrt(np.outer(*[np.diag(covariance)] * 2)))


def naive_scores(
    features: np.ndarray,
    labels: np.ndarray,
    asked: np.ndarray,
    *,
    alphas: tuple[float, float],
    beta: float | None = None,
) -> np.ndarray:
    """The authors' program for transformers; with a power, the one for networks with ReLU."""
    features, asked = features.astype(float), asked.astype(float)
    if beta is None:
        rows, queries = unit(features), unit(asked)
    else:
        rows, queries = features**beta, unit(asked) ** beta
    scatter, degrees = np.zeros((DIM, DIM)), 0
    for label in SEEN:
        own = rows[labels == label]
        scatter += (own - own.mean(0)).T @ (own - own.mean(0))
        degrees += len(own) - 1
    scores = np.empty((len(asked), len(SEEN)))
    for column, label in enumerate(SEEN):
        own = rows[labels == label]
        covariance = shrunk(np.cov(own.T) if len(own) > 1 else scatter / degrees, *alphas)
        mean = own.mean(0)
        if beta is not None:
            covariance = shrunk(covariance, *alphas)
            queries, mean = unit(queries), unit(features[labels == label].mean(0) ** beta)
        precision = np.linalg.pinv(normalised(covariance))
        for number, query in enumerate(queries):
            apart = query - mean
            scores[number, column] = -apart @ precision @ apart
    return scores


@pytest.mark.parametrize("alphas", [(1.0, 0.0), (0.3, 0.2), (1.0, 1.0)])
def test_scores_are_the_mahalanobis_distances_written_out(alphas: tuple[float, float]) -> None:
    form = Fecam(FecamConfig(alpha1=alphas[0], alpha2=alphas[1]), np.zeros(DIM))
    stream(form)
    found = form.scores(queries())[:, SEEN]
    features, labels = rows_of(0, len(COUNTS))
    expected = naive_scores(features, labels, queries(), alphas=alphas)
    np.testing.assert_allclose(found, expected, rtol=2e-4)


@pytest.mark.parametrize("beta", [0.5, 0.8, 1.0])
def test_features_that_are_nowhere_negative_get_the_program_for_relu(beta: float) -> None:
    def rectified(features: np.ndarray) -> np.ndarray:
        features = np.maximum(features + 2, 0)
        features[:, 2] = 0  # a feature without variance
        return features

    form = Fecam(FecamConfig(beta=beta), np.zeros(DIM))
    stream(form, change=rectified)
    features, labels = rows_of(0, len(COUNTS))
    asked = rectified(queries())
    expected = naive_scores(rectified(features), labels, asked, beta=beta, alphas=(1, 1))
    np.testing.assert_allclose(form.scores(asked)[:, SEEN], expected, rtol=2e-4)


def test_a_negative_number_among_later_rows_is_no_missing_one() -> None:
    form = Fecam(FecamConfig(), np.zeros(DIM))
    stream(form, change=np.abs)
    assert np.isfinite(form.scores(queries())).all()


def test_a_class_without_rows_never_wins() -> None:
    form: ClosedForm = Fecam(FecamConfig(), np.zeros(DIM))
    stream(form)
    assert (form.scores(queries())[:, 2] == NEVER).all()
    assert form.head() is None


def test_a_matrix_that_is_not_positive_definite_is_an_error() -> None:
    form = Fecam(FecamConfig(alpha1=1e-300, alpha2=0.0), np.zeros(DIM))
    features = queries(3)
    with pytest.raises(StatisticsError, match="is not positive definite after its shrinkage by"):
        form.learn(Arrival(1, features, np.zeros(3, np.int64), 1))
