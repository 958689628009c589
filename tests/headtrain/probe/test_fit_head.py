from __future__ import annotations

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
from clinit.extract.cache.head import Head
from clinit.headtrain.groups import held_out_rows
from clinit.headtrain.probe.fit_head import C, fit_head
from clinit.headtrain.probe.protocol import probe
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.lambda_curve import leave_one_out_curve
from clinit.headtrain.statistics.solve import least_squares
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source

NAMES = ("ant", "none", "bee", "cat")


def source(per_class: int = 60, seed: int = 0) -> Source:
    """Return rows of three overlapping classes; the class `none` has none."""
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 2, 3], per_class)
    features = rng.standard_normal((len(labels), 6)) + 2 + 1.3 * np.eye(6)[labels]
    train = FeatureSet(features.astype(np.float32), labels, NAMES)
    return Source(train=train, val=train.part(np.zeros(len(labels), dtype=bool)))


def logits(head: object, rows: FeatureSet) -> np.ndarray:
    return np.asarray(rows.features @ head.weight.T + head.bias)  # type: ignore[attr-defined]


def test_logistic_is_that_of_scikit_learn_on_standardised_features() -> None:
    data = source()
    head = fit_head(data, "logistic").head
    assert head.class_names == ("ant", "bee", "cat")
    assert head.origin is not None
    assert (head.origin["fitted"], head.origin["rows"]) == ("logistic", 180)
    scaler = StandardScaler().fit(data.train.features)
    peer = LogisticRegression(C=head.origin["c"], max_iter=10_000, tol=1e-10)
    peer.fit(scaler.transform(data.train.features), data.train.labels)
    expected = peer.decision_function(scaler.transform(data.train.features))
    found = logits(head, data.train)
    centred = [each - each.mean(axis=1, keepdims=True) for each in (found, expected)]
    np.testing.assert_allclose(centred[0], centred[1], atol=5e-3)


def test_ridge_is_least_squares_divided_by_a_temperature() -> None:
    data = source()
    head = fit_head(data, "ridge").head
    assert head.origin is not None
    labels = np.searchsorted([0, 2, 3], data.train.labels)
    expected = least_squares(data.train.features, labels, lam=head.origin["lam"])
    temperature = head.origin["temperature"]
    assert 0 < temperature < 1  # scores of [0, 1] are too alike
    np.testing.assert_allclose(head.weight * temperature, expected.weight, atol=1e-6)
    np.testing.assert_allclose(head.bias * temperature, expected.bias, atol=1e-6)


def test_lda_labels_rows_like_that_of_scikit_learn() -> None:
    data = source(per_class=200)
    head = fit_head(data, "lda").head
    assert head.origin is not None
    assert head.origin["temperature"] > 0
    labels = np.searchsorted([0, 2, 3], data.train.labels)
    peer = LinearDiscriminantAnalysis(solver="lsqr").fit(data.train.features, labels)
    agree = logits(head, data.train).argmax(axis=1) == peer.predict(data.train.features)
    assert agree.mean() > 0.99


def apart(per_class: int = 400, wrong: int = 0) -> Source:
    """Return rows of three classes far apart, the last `wrong` ones with another label."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 2, 3], per_class)
    features = rng.standard_normal((len(labels), 6)) + 12 * np.eye(6)[labels]
    labels[len(labels) - wrong :] = 0
    train = FeatureSet(features.astype(np.float32), labels, NAMES)
    return Source(train=train, val=train.part(np.zeros(len(labels), dtype=bool)))


def sureness(head: Head, rows: FeatureSet) -> float:
    """Return the mean of the largest probability."""
    found = logits(head, rows)
    chances = np.exp(found - found.max(axis=1, keepdims=True))
    return float((1 / chances.sum(axis=1)).mean())


def naive_temperature(data: Source, lam: float) -> float:
    """Minimise the smoothed loss of held-out rows over T, with a head of the other rows."""
    labels = np.searchsorted([0, 2, 3], data.train.labels)
    features = data.train.features.astype(np.float64)
    held = held_out_rows(labels, np.arange(len(labels)), 0.2, generator(0, Draw.HELD_OUT))
    head = least_squares(features[~held], labels[~held], lam=lam)
    scores, truth = features[held] @ head.weight.T + head.bias, np.eye(3)[labels[held]]
    share = 1 / (held.sum() + 2)
    targets = (1 - share) * truth + share * (1 - truth) / 2

    def loss(log_t: float) -> float:
        return float(-(targets * log_softmax(scores / np.exp(log_t), axis=1)).sum())

    found = minimize_scalar(loss, bounds=(-9, 3), method="bounded", options={"xatol": 1e-9})
    return float(np.exp(found.x))


@pytest.mark.parametrize(
    "data", [source(per_class=10, seed=3), source(), apart(60)], ids=["few", "near", "apart"]
)
def test_the_temperature_is_that_of_a_head_of_the_other_rows_at_the_lambda_of_all(
    data: Source,
) -> None:
    told = fit_head(data, "ridge").head.origin
    assert told is not None
    labels = np.searchsorted([0, 2, 3], data.train.labels)
    statistics = ClassStatistics.of(data.train.features, labels)
    assert told["lam"] == leave_one_out_curve(data.train.features, labels, statistics).best
    assert told["temperature"] == pytest.approx(naive_temperature(data, told["lam"]), rel=1e-3)
    assert told["temperature_rows"] == round(0.2 * len(labels))


def test_of_penalties_that_label_rows_alike_the_likeliest_wins() -> None:
    data = apart(60)
    config = ProbeConfig(by="lbfgs", c=C, standardise=True)
    by_top1, by_loss = probe(data, config), probe(data, config, choose_by="loss")
    assert [point.top1 for point in by_loss.grid] == [100.0] * len(C)
    assert by_top1.chosen == {"c": min(C)}
    assert by_loss.chosen == {"c": max(C)}
    assert "settings chosen by loss on 36 held-out training rows" in by_loss.protocol
    # Against scikit-learn: the mean loss of the held-out rows at each C.
    labels = np.searchsorted([0, 2, 3], data.train.labels)
    held = held_out_rows(labels, np.arange(len(labels)), 0.2, generator(0, Draw.HELD_OUT))
    scaler = StandardScaler().fit(data.train.features[~held])
    for point in by_loss.grid:
        peer = LogisticRegression(C=point.settings["c"], max_iter=10_000, tol=1e-10)
        peer.fit(scaler.transform(data.train.features[~held]), labels[~held])
        chances = peer.predict_proba(scaler.transform(data.train.features[held]))
        assert point.held_out_loss == pytest.approx(log_loss(labels[held], chances), rel=1e-2)


def test_what_few_rows_say_of_the_scale_is_called_a_guess() -> None:
    for by, what in (("ridge", "temperature"), ("lda", "temperature"), ("logistic", "penalty")):
        (note,) = fit_head(source(per_class=6), by).notes  # type: ignore[arg-type]
        assert note == (
            f"3 rows are held out to fit the {what} to: how sure the head is of its answers is a"
            " rough guess"
        )
    assert fit_head(source(per_class=50), "ridge").notes == ()


def test_single_rows_are_enough_for_solutions_and_not_for_a_choice() -> None:
    alone = source(per_class=1)
    for by in ("ridge", "lda"):
        fitted = fit_head(alone, by)  # type: ignore[arg-type]
        assert fitted.head.num_classes == 3
        assert "temperature" not in (fitted.head.origin or {})
        assert fitted.notes == (
            "every class has a single training row, so that none can be held out: the head is not"
            " divided by a temperature, and its probabilities mean little",
        )
    with pytest.raises(CacheError, match="every class has a single training row") as caught:
        fit_head(alone, "logistic")
    assert caught.value.remedy == "Fit the head with `--fit-head ridge` or `--fit-head lda`."


def test_features_that_drown_the_shrinkage_are_refused_by_lda() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 2, 3], 13)
    features = (1e6 * rng.standard_normal((39, 200))).astype(np.float32)
    train = FeatureSet(features, labels, NAMES)
    data = Source(train=train, val=train.part(np.zeros(39, dtype=bool)))
    with pytest.raises(CacheError, match="is lost beside features of this scale") as caught:
        fit_head(data, "lda")
    assert caught.value.remedy == "Fit the head with `--fit-head logistic` or `--fit-head ridge`."
    assert fit_head(data, "ridge").head.num_classes == 3
