"""A released head that learns new classes, as scikit-learn sees it."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import clinit
from clinit.headtrain.model.estimator import AddedClassesClassifier

OLD, NEW, DIM = 5, 3, 12
CENTRES = 2 * np.random.default_rng(8).normal(size=(OLD + NEW, DIM))
HEAD = CENTRES[:OLD], -0.5 * (CENTRES[:OLD] ** 2).sum(1)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_it_passes_every_check_of_scikit_learn() -> None:
    found = check_estimator(AddedClassesClassifier(), on_fail=None)
    assert [each for each in found if each["status"] not in ("passed", "skipped")] == []


def drawn(classes: range, images: int = 15, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(classes, images)
    return CENTRES[labels] + np.random.default_rng(seed).normal(size=(len(labels), DIM)), labels


@pytest.mark.parametrize("first", [0, OLD])
def test_new_classes_are_learnt_and_old_rows_stay(first: int) -> None:
    layer = torch.nn.Linear(DIM, OLD, dtype=torch.float64)
    layer.load_state_dict({"weight": torch.tensor(HEAD[0]), "bias": torch.tensor(HEAD[1])})
    model = AddedClassesClassifier(layer if first else HEAD).fit(*drawn(range(first, OLD + NEW)))
    np.testing.assert_array_equal(model.coef_[:OLD], HEAD[0])
    assert model.classes_.tolist() == list(range(OLD + NEW))
    rows, labels = drawn(range(OLD + NEW), 60, seed=1)
    assert model.score(rows, labels) > 0.9
    np.testing.assert_allclose(model.predict_proba(rows).sum(1), 1)


def test_it_is_the_model_that_add_makes(tmp_path: Path) -> None:
    rows, labels = drawn(range(OLD, OLD + NEW))
    clinit.save_head(tmp_path / "head.npz", *HEAD, tuple("abcde"))
    named = np.array(["f", "g", "h"])[labels - OLD]
    added = clinit.load(tmp_path / "head.npz").add((rows.astype(np.float32), named)).model
    model = AddedClassesClassifier(str(tmp_path / "head.npz")).fit(rows, named)
    np.testing.assert_allclose(model.coef_[OLD:], added.head.weight[OLD:], rtol=1e-6)
    assert model.classes_.tolist() == list("abcdefgh")


def test_classes_that_come_later_give_the_rows_of_all_at_once() -> None:
    rows, labels = drawn(range(OLD + NEW))
    whole, parts = AddedClassesClassifier(HEAD).fit(rows, labels), AddedClassesClassifier(HEAD)
    for chosen in (labels < OLD + 1, labels >= OLD + 1):
        parts.partial_fit(rows[chosen], labels[chosen])
    np.testing.assert_allclose(parts.coef_, whole.coef_)


def test_in_a_pipeline_across_folds_and_pickled() -> None:
    rows, labels = drawn(range(OLD + NEW))
    scaled = make_pipeline(StandardScaler(with_std=False), AddedClassesClassifier(HEAD))
    assert cross_val_score(scaled, rows, labels, cv=3).mean() > 0.5
    model = AddedClassesClassifier(HEAD, activation="sigmoid").fit(rows, labels)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(rows), model.predict_proba(rows))
    assert not np.allclose(model.predict_proba(rows).sum(1), 1)


def test_a_classifier_of_scikit_learn_is_a_head_though_it_has_one_row_for_two_classes() -> None:
    with pytest.raises(NotFittedError):
        AddedClassesClassifier(LogisticRegression()).fit(*drawn(range(OLD)))
    head = LogisticRegression().fit(*(given := drawn(range(2), 40)))
    model = AddedClassesClassifier(head).fit(*drawn(range(OLD, OLD + NEW)))
    assert model.classes_.tolist() == [0, 1, *range(OLD, OLD + NEW)]
    logits = given[0] @ model.coef_[:2].T + model.intercept_[:2]
    np.testing.assert_allclose(softmax(logits, axis=1), head.predict_proba(given[0]), atol=1e-5)


@pytest.mark.untyped  # an activation that is none
@pytest.mark.parametrize(
    ("head", "labels", "message"),
    [
        ((np.eye(2, DIM), np.zeros(2)), np.array(["a", "b"] * 4), "labels are texts"),
        ((np.eye(2, DIM + 1), np.zeros(2)), np.arange(8), "the head reads 13"),
        ((np.eye(2, DIM), np.zeros(3)), np.arange(8), r"2 rows and \(3,\) biases"),
    ],
)
def test_what_does_not_fit_is_refused(head: Any, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AddedClassesClassifier(head).fit(np.ones((8, DIM)), labels)
    with pytest.raises(ValueError, match="softmax or sigmoid"):
        AddedClassesClassifier(HEAD, activation="relu").fit(*drawn(range(OLD, OLD + NEW)))
