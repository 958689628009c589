import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression as Reference
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from clinit.errors import CacheError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.groups import held_out_rows
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares, leave_one_out_curve
from clinit.headtrain.probe import fit as module
from clinit.headtrain.probe.fit import LogisticRegression, Standard
from clinit.headtrain.probe.protocol import Probe, first_head, measure, probe
from clinit.headtrain.probe.settings import C, ProbeConfig
from clinit.headtrain.protocol.record.format import finite
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.train.heads import LabelledRows
from tests.headtrain.probe.digits import NAMES, digits

CLASSES, DIM = 8, 3
RNG = np.random.default_rng(0)
HEAD = Rows(RNG.normal(size=(CLASSES, DIM)), RNG.normal(size=CLASSES))
FEATURES = RNG.normal(size=(200, DIM)).astype(np.float16)
LABELS = RNG.integers(0, CLASSES, size=200)
ALL = np.arange(CLASSES)
LACKING = np.array([0, 1, -1, 2, 3, -1, 4, 5])


def run(source: Source | None = None, **settings: Any) -> Probe:
    return probe(source or digits(), ProbeConfig(**{"c": (0.01, 1.0), "device": "cpu", **settings}))


@pytest.mark.parametrize(
    ("head", "labels", "row_of_class"),
    [
        (HEAD, LABELS, ALL),
        (Rows(np.zeros((CLASSES, DIM)), np.zeros(CLASSES)), LABELS, ALL),  # the first of equals
        (Rows(HEAD.weight[:6], HEAD.bias[:6]), LABELS, LACKING),
        (Rows(HEAD.weight[:5], HEAD.bias[:5]), LABELS % 2, np.arange(5)),  # some without a row
    ],
)
def test_accuracies_are_those_of_counting_row_by_row(
    head: Rows, labels: np.ndarray, row_of_class: np.ndarray
) -> None:
    found = measure(
        head, LabelledRows.on(torch.device("cpu"), FEATURES, labels), row_of_class.astype(np.int64)
    )
    places = np.full(200, 99)
    for row, label in enumerate(row_of_class[labels]):
        if label >= 0:
            logits = head.weight @ FEATURES[row].astype(np.float64) + head.bias
            places[row] = sorted(range(len(logits)), key=lambda c: -logits[c]).index(label)
    assert found.rows == 200
    assert found.top1 == pytest.approx(100 * (places == 0).mean())
    if len(head.bias) > 5:
        assert found.top5 == pytest.approx(100 * (places < 5).mean())
    else:
        assert found.top5 is None
    by_class = [(places[labels == c] == 0).mean() for c in np.unique(labels)]
    assert found.per_class == pytest.approx(100 * np.mean(by_class))


def test_the_chosen_setting_is_that_of_a_loop_over_the_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRADIENT", 1e-7)
    train, val = digits().train, digits().val
    held = held_out_rows(train.labels, groups_of(train), 0.2, generator(0, Draw.HELD_OUT))
    values = (0.001, 0.03, 1.0, 30.0)

    def reference(c: float, rows: np.ndarray) -> Any:
        model = Reference(C=c, max_iter=5000, tol=1e-7)
        return model.fit(train.features[rows].astype(float), train.labels[rows])

    models = [reference(c, ~held) for c in values]
    aside = train.features[held], train.labels[held]
    losses = [log_loss(aside[1], model.predict_proba(aside[0])) for model in models]
    found = probe(digits(), ProbeConfig(standardise=False, device="cpu", c=values[::-1]))
    scores = [100 * model.score(*aside) for model in models]
    assert [point.top1 for point in found.grid] == pytest.approx(scores, abs=1e-9)
    best = values[int(np.argmin(losses))]
    assert found.chosen == {"c": best}
    last = reference(best, np.ones(len(held), dtype=bool))
    assert found.val.top1 == pytest.approx(100 * last.score(val.features, val.labels))


def test_the_content_is_plain_values_and_names_the_edge_of_the_grid() -> None:
    found = run()
    (told,) = (note for note in found.notes if "at the end" in note)
    assert f"--c, {found.chosen['c']:g}" in told
    content = json.loads(json.dumps(finite(found.content()), allow_nan=False))
    assert content["top1"] == pytest.approx(found.top1)
    assert content["measured_on"] == "val"
    assert [point["c"] for point in content["grid"]] == [0.01, 1.0]
    assert content["chosen"] == dict(found.chosen)
    assert content["config"]["max_iterations"] == 1000


def test_without_validation_rows_the_number_is_that_of_the_held_out_ones() -> None:
    source = replace(digits(), val=digits().val.part(np.zeros(200, dtype=bool)))
    found = run(source)
    assert found.val is None
    best = min(found.grid, key=lambda point: point.held_out_loss)
    assert found.top1 == found.held_out_top1 == best.top1
    assert found.content()["measured_on"] == "held-out training rows"
    assert run(source, c=(0.01,)).top1 is None


def test_classes_without_a_training_row_have_no_head_row() -> None:
    found = run(replace(digits(), train=digits().train.part(digits().train.labels != 4)))
    assert found.classes == 9
    assert found.head.class_names == tuple(name for name in NAMES if name != "4")
    assert found.val.rows == 200


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        ({"c": ()}, "c takes a list of numbers"),
        ({"c": (0.0,)}, "c takes a list"),
        ({"held_out": 0.95}, "held_out takes a number"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        ProbeConfig(**wrong)


PRESENT = np.array([0, 2, 3])


def animals(per_class: int = 60, seed: int = 0, apart: float = 1.3, mean: float = 2.0) -> Source:
    """Return rows of three classes; the class `none` has none."""
    rng, labels = np.random.default_rng(seed), np.repeat(PRESENT, per_class)
    features = rng.standard_normal((len(labels), 6)) + mean + apart * np.eye(6)[labels]
    train = FeatureSet(features.astype(np.float32), labels, ("ant", "none", "bee", "cat"))
    return Source(train=train, val=train.part(np.zeros(len(labels), dtype=bool)))


CPU = ProbeConfig(device="cpu")


def fitted(head: Head, data: Source) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the logits of the training rows, and how the head was fitted."""
    assert head.class_names == ("ant", "bee", "cat")
    assert head.origin["rows"] == len(data.train.labels)
    return data.train.features @ head.weight.T + head.bias, {**head.origin}  # type: ignore[dict-item]


def held_out(labels: np.ndarray) -> np.ndarray:
    return held_out_rows(labels, np.arange(len(labels)), 0.2, generator(0, Draw.HELD_OUT))


def test_logistic_is_that_of_scikit_learn_on_standardised_features() -> None:
    data = animals()
    found, told = fitted(probe(data, CPU).head, data)
    features = StandardScaler().fit_transform(data.train.features)
    peer = Reference(C=told["c"], max_iter=10_000, tol=1e-10)
    expected = peer.fit(features, data.train.labels).decision_function(features)
    centred = [each - each.mean(axis=1, keepdims=True) for each in (found, expected)]
    np.testing.assert_allclose(centred[0], centred[1], atol=5e-3)


def naive_temperature(data: Source, lam: float) -> float:
    """Minimise the smoothed loss of held-out rows over T, with a head of the other rows."""
    labels = np.searchsorted(PRESENT, data.train.labels)
    features, held = data.train.features.astype(np.float64), held_out(labels)
    head = least_squares(features[~held], labels[~held], lam=lam)
    scores, truth = features[held] @ head.weight.T + head.bias, np.eye(3)[labels[held]]
    share = 1 / (held.sum() + 2)
    targets = (1 - share) * truth + share * (1 - truth) / 2

    def loss(log_t: float) -> float:
        return float(-(targets * log_softmax(scores / np.exp(log_t), axis=1)).sum())

    found = minimize_scalar(loss, bounds=(-9, 3), method="bounded", options={"xatol": 1e-9})
    return float(np.exp(found.x))


FAR = animals(60, apart=12.0, mean=0.0)


@pytest.mark.parametrize("data", [animals(10, seed=3), animals(), FAR], ids=["few", "near", "far"])
def test_a_first_head_is_least_squares_divided_by_the_temperature_of_held_out_rows(
    data: Source,
) -> None:
    found, told = fitted(first_head(data), data)
    labels = np.searchsorted(PRESENT, data.train.labels)
    statistics = ClassStatistics.of(data.train.features, labels)
    assert told["lam"] == leave_one_out_curve(data.train.features, labels, statistics).best
    assert told["temperature"] == pytest.approx(naive_temperature(data, told["lam"]), rel=1e-3)
    assert told["temperature_rows"] == round(0.2 * len(labels))
    expected = least_squares(data.train.features, labels, lam=told["lam"])
    scores = data.train.features @ expected.weight.T + expected.bias
    np.testing.assert_allclose(found * told["temperature"], scores, atol=1e-5)


def test_of_penalties_that_label_rows_alike_the_likeliest_wins() -> None:
    by_loss = probe(FAR, CPU)
    assert [point.top1 for point in by_loss.grid] == [100.0] * len(C)
    assert by_loss.chosen == {"c": max(C)} == {"c": by_loss.head.origin["c"]}
    assert "penalties by loss on 36 held-out training rows" in by_loss.protocol
    # Against scikit-learn: the mean loss of the held-out rows at each C.
    labels = FAR.train.labels
    held = held_out(np.searchsorted(PRESENT, labels))
    features = StandardScaler().fit(FAR.train.features[~held]).transform(FAR.train.features)
    for point in by_loss.grid:
        peer = Reference(C=point.c, max_iter=10_000, tol=1e-10)
        chances = peer.fit(features[~held], labels[~held]).predict_proba(features[held])
        assert point.held_out_loss == pytest.approx(log_loss(labels[held], chances), rel=1e-2)


def test_single_rows_are_enough_for_a_solution_and_not_for_a_choice() -> None:
    alone = animals(per_class=1)
    head = first_head(alone)
    assert head.num_classes == 3
    assert "temperature" not in head.origin
    with pytest.raises(CacheError, match="every class has a single training row") as caught:
        probe(alone, CPU)
    assert "--c 1" in caught.value.remedy


TRAIN = digits().train
PIXELS = TRAIN.features.astype(np.float64)
STANDARDISED = StandardScaler().fit_transform(PIXELS)  # some pixels are constant


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("c", [0.01, 1.0, 30.0])
def test_logistic_regression_is_that_of_scikit_learn(
    c: float, standardise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRADIENT", 1e-7)
    monkeypatch.setattr(module, "BLOCK_VALUES", 700)  # seventy rows
    seen = STANDARDISED if standardise else PIXELS
    reference = Reference(C=c, max_iter=5000, tol=1e-7).fit(seen, TRAIN.labels)
    rows = LabelledRows.on(torch.device("cpu"), TRAIN.features, TRAIN.labels)
    problem = LogisticRegression(rows, 10, Standard.of(rows, standardise=standardise))
    found, parameters = problem.minimum(c)
    weight, bias = (part.numpy() for part in problem.split(parameters))
    assert found.converged
    np.testing.assert_allclose(weight, reference.coef_, atol=0.02 * np.abs(reference.coef_).max())
    expected = reference.intercept_ - reference.intercept_.mean()
    np.testing.assert_allclose(bias - bias.mean(), expected, atol=0.02 * np.abs(expected).max())
    logits = PIXELS @ found.rows.weight.T + found.rows.bias
    np.testing.assert_allclose(logits, seen @ weight.T + bias, atol=1e-9)
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(logits), rows.labels)
    assert found.loss == pytest.approx(float(loss))
