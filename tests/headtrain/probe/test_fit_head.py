from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from clinit.errors import CacheError
from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.heads.groups import held_out_rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares, leave_one_out_curve
from clinit.headtrain.probe.protocol import Probe, probe
from clinit.headtrain.probe.settings import C, HeadFit, ProbeConfig
from clinit.headtrain.protocol.stream.source import Source

NAMES = ("ant", "none", "bee", "cat")


LABELS = np.array([0, 2, 3])


def source(per_class: int = 60, seed: int = 0, apart: float = 1.3, mean: float = 2.0) -> Source:
    """Return rows of three classes; the class `none` has none."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(LABELS, per_class)
    features = rng.standard_normal((len(labels), 6)) + mean + apart * np.eye(6)[labels]
    train = FeatureSet(features.astype(np.float32), labels, NAMES)
    return Source(train=train, val=train.part(np.zeros(len(labels), dtype=bool)))


def fit(data: Source, method: HeadFit) -> Probe:
    return probe(data, ProbeConfig(method=method, device="cpu"))


def fitted(data: Source, by: HeadFit) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the logits of the training rows, and how the head was fitted."""
    head = fit(data, by).head
    assert head.class_names == ("ant", "bee", "cat")
    assert head.origin is not None
    assert (head.origin["fitted"], head.origin["rows"]) == (by, len(data.train.labels))
    return data.train.features @ head.weight.T + head.bias, dict(head.origin)


def held_out(labels: np.ndarray) -> np.ndarray:
    return held_out_rows(labels, np.arange(len(labels)), 0.2, generator(0, Draw.HELD_OUT))


def test_logistic_is_that_of_scikit_learn_on_standardised_features() -> None:
    data = source()
    found, told = fitted(data, "logistic")
    features = StandardScaler().fit_transform(data.train.features)
    peer = LogisticRegression(C=told["c"], max_iter=10_000, tol=1e-10)
    expected = peer.fit(features, data.train.labels).decision_function(features)
    centred = [each - each.mean(axis=1, keepdims=True) for each in (found, expected)]
    np.testing.assert_allclose(centred[0], centred[1], atol=5e-3)


def test_lda_labels_rows_like_that_of_scikit_learn() -> None:
    data = source(per_class=200)
    found, told = fitted(data, "lda")
    assert told["temperature"] > 0
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(data.train.features, data.train.labels)
    agree = LABELS[found.argmax(axis=1)] == peer.predict(data.train.features)
    assert agree.mean() > 0.99


def naive_temperature(data: Source, lam: float) -> float:
    """Minimise the smoothed loss of held-out rows over T, with a head of the other rows."""
    labels = np.searchsorted(LABELS, data.train.labels)
    features, held = data.train.features.astype(np.float64), held_out(labels)
    head = least_squares(features[~held], labels[~held], lam=lam)
    scores, truth = features[held] @ head.weight.T + head.bias, np.eye(3)[labels[held]]
    share = 1 / (held.sum() + 2)
    targets = (1 - share) * truth + share * (1 - truth) / 2

    def loss(log_t: float) -> float:
        return float(-(targets * log_softmax(scores / np.exp(log_t), axis=1)).sum())

    found = minimize_scalar(loss, bounds=(-9, 3), method="bounded", options={"xatol": 1e-9})
    return float(np.exp(found.x))


FAR = source(60, apart=12.0, mean=0.0)


@pytest.mark.parametrize("data", [source(10, seed=3), source(), FAR], ids=["few", "near", "far"])
def test_ridge_is_least_squares_divided_by_the_temperature_of_held_out_rows(data: Source) -> None:
    found, told = fitted(data, "ridge")
    labels = np.searchsorted(LABELS, data.train.labels)
    statistics = ClassStatistics.of(data.train.features, labels)
    assert told["lam"] == leave_one_out_curve(data.train.features, labels, statistics).best
    assert told["temperature"] == pytest.approx(naive_temperature(data, told["lam"]), rel=1e-3)
    assert told["temperature_rows"] == round(0.2 * len(labels))
    expected = least_squares(data.train.features, labels, lam=told["lam"])
    scores = data.train.features @ expected.weight.T + expected.bias
    np.testing.assert_allclose(found * told["temperature"], scores, atol=1e-5)


def test_of_penalties_that_label_rows_alike_the_likeliest_wins() -> None:
    by_loss = fit(FAR, "logistic")
    assert [point.top1 for point in by_loss.grid] == [100.0] * len(C)
    assert by_loss.chosen == {"c": max(C)} == {"c": fitted(FAR, "logistic")[1]["c"]}
    assert "penalties by loss on 36 held-out training rows" in by_loss.protocol
    # Against scikit-learn: the mean loss of the held-out rows at each C.
    labels = FAR.train.labels
    held = held_out(np.searchsorted(LABELS, labels))
    features = StandardScaler().fit(FAR.train.features[~held]).transform(FAR.train.features)
    for point in by_loss.grid:
        peer = LogisticRegression(C=point.c, max_iter=10_000, tol=1e-10)
        chances = peer.fit(features[~held], labels[~held]).predict_proba(features[held])
        assert point.held_out_loss == pytest.approx(log_loss(labels[held], chances), rel=1e-2)


def test_single_rows_are_enough_for_solutions_and_not_for_a_choice() -> None:
    alone = source(per_class=1)
    for by in ("ridge", "lda"):
        found = fit(alone, by)  # type: ignore[arg-type]
        assert found.head.num_classes == 3
        assert "temperature" not in (found.head.origin or {})
        assert "its probabilities are unreliable" in found.notes[0]
    with pytest.raises(CacheError, match="every class has a single training row") as caught:
        fit(alone, "logistic")
    assert "--method ridge" in caught.value.remedy


def test_features_that_drown_the_shrinkage_are_refused_by_lda() -> None:
    rng = np.random.default_rng(0)
    features = (1e6 * rng.standard_normal((39, 200))).astype(np.float32)
    train = FeatureSet(features, np.repeat(LABELS, 13), NAMES)
    data = Source(train=train, val=train.part(np.zeros(39, dtype=bool)))
    with pytest.raises(CacheError, match="shrinkage") as caught:
        fit(data, "lda")
    assert "--method ridge" in caught.value.remedy
    assert fit(data, "ridge").head.num_classes == 3
