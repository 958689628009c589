from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from clinit.errors import CacheError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.groups import held_out_rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares, leave_one_out_curve
from clinit.headtrain.probe.protocol import Probe, first_head, probe
from clinit.headtrain.probe.settings import C, ProbeConfig
from clinit.headtrain.protocol.stream.source import Source

NAMES = ("ant", "none", "bee", "cat")


LABELS = np.array([0, 2, 3])


def source(per_class: int = 60, seed: int = 0, apart: float = 1.3, mean: float = 2.0) -> Source:
    """Return rows of three classes; the class `none` has none."""
    rng, labels = np.random.default_rng(seed), np.repeat(LABELS, per_class)
    features = rng.standard_normal((len(labels), 6)) + mean + apart * np.eye(6)[labels]
    train = FeatureSet(features.astype(np.float32), labels, NAMES)
    return Source(train=train, val=train.part(np.zeros(len(labels), dtype=bool)))


def fit(data: Source) -> Probe:
    return probe(data, ProbeConfig(device="cpu"))


def fitted(head: Head, data: Source) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the logits of the training rows, and how the head was fitted."""
    assert head.class_names == ("ant", "bee", "cat")
    assert head.origin["rows"] == len(data.train.labels)
    return data.train.features @ head.weight.T + head.bias, {**head.origin}  # type: ignore[dict-item]


def held_out(labels: np.ndarray) -> np.ndarray:
    return held_out_rows(labels, np.arange(len(labels)), 0.2, generator(0, Draw.HELD_OUT))


def test_logistic_is_that_of_scikit_learn_on_standardised_features() -> None:
    data = source()
    found, told = fitted(fit(data).head, data)
    features = StandardScaler().fit_transform(data.train.features)
    peer = LogisticRegression(C=told["c"], max_iter=10_000, tol=1e-10)
    expected = peer.fit(features, data.train.labels).decision_function(features)
    centred = [each - each.mean(axis=1, keepdims=True) for each in (found, expected)]
    np.testing.assert_allclose(centred[0], centred[1], atol=5e-3)


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
def test_a_first_head_is_least_squares_divided_by_the_temperature_of_held_out_rows(
    data: Source,
) -> None:
    found, told = fitted(first_head(data), data)
    labels = np.searchsorted(LABELS, data.train.labels)
    statistics = ClassStatistics.of(data.train.features, labels)
    assert told["lam"] == leave_one_out_curve(data.train.features, labels, statistics).best
    assert told["temperature"] == pytest.approx(naive_temperature(data, told["lam"]), rel=1e-3)
    assert told["temperature_rows"] == round(0.2 * len(labels))
    expected = least_squares(data.train.features, labels, lam=told["lam"])
    scores = data.train.features @ expected.weight.T + expected.bias
    np.testing.assert_allclose(found * told["temperature"], scores, atol=1e-5)


def test_of_penalties_that_label_rows_alike_the_likeliest_wins() -> None:
    by_loss = fit(FAR)
    assert [point.top1 for point in by_loss.grid] == [100.0] * len(C)
    assert by_loss.chosen == {"c": max(C)} == {"c": by_loss.head.origin["c"]}
    assert "penalties by loss on 36 held-out training rows" in by_loss.protocol
    # Against scikit-learn: the mean loss of the held-out rows at each C.
    labels = FAR.train.labels
    held = held_out(np.searchsorted(LABELS, labels))
    features = StandardScaler().fit(FAR.train.features[~held]).transform(FAR.train.features)
    for point in by_loss.grid:
        peer = LogisticRegression(C=point.c, max_iter=10_000, tol=1e-10)
        chances = peer.fit(features[~held], labels[~held]).predict_proba(features[held])
        assert point.held_out_loss == pytest.approx(log_loss(labels[held], chances), rel=1e-2)


def test_single_rows_are_enough_for_a_solution_and_not_for_a_choice() -> None:
    alone = source(per_class=1)
    head = first_head(alone)
    assert head.num_classes == 3
    assert "temperature" not in head.origin
    with pytest.raises(CacheError, match="every class has a single training row") as caught:
        fit(alone)
    assert "--c 1" in caught.value.remedy
