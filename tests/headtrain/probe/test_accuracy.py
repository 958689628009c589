from __future__ import annotations

import numpy as np
import pytest
import torch

from clinit.headtrain.probe.result import bank_of, count_in_top, measure
from clinit.headtrain.rows import Rows
from clinit.headtrain.train.rows import LabelledRows

CLASSES, DIM = 8, 3
RNG = np.random.default_rng(0)
HEAD = Rows(RNG.normal(size=(CLASSES, DIM)), RNG.normal(size=CLASSES))
FEATURES = RNG.normal(size=(200, DIM)).astype(np.float16)
LABELS = RNG.integers(0, CLASSES, size=200)


def rows(labels: np.ndarray = LABELS) -> LabelledRows:
    return LabelledRows.on(torch.device("cpu"), FEATURES[: len(labels)], labels)


def ranks(head: Rows = HEAD, labels: np.ndarray = LABELS) -> list[int]:
    """The place of each label among the logits, a row at a time."""
    found = []
    for features, label in zip(FEATURES, labels, strict=False):
        logits = head.weight @ features.astype(np.float64) + head.bias
        found.append(sorted(range(CLASSES), key=lambda c: -logits[c]).index(label))
    return found


def test_accuracies_are_those_of_counting_row_by_row() -> None:
    found, places = measure(HEAD, rows(), np.arange(CLASSES)), np.array(ranks())
    assert found is not None
    assert found.rows == 200
    assert found.top1 == pytest.approx(100 * (places == 0).mean())
    assert found.top5 == pytest.approx(100 * (places < 5).mean())
    by_class = [(places[c == LABELS] == 0).mean() for c in range(CLASSES)]
    assert found.per_class == pytest.approx(100 * np.mean(by_class))


@pytest.mark.parametrize("top", [1, 2, CLASSES])
def test_the_top_counts_the_first_of_equal_logits_as_the_larger(top: int) -> None:
    zeros = Rows(np.zeros((CLASSES, DIM)), np.zeros(CLASSES))
    bank = bank_of([zeros], torch.device("cpu"))
    assert count_in_top(bank, rows(), top) == (top > LABELS).sum()


def test_rows_of_a_class_that_the_head_does_not_know_count_as_wrong() -> None:
    known = np.arange(CLASSES)
    known[[2, 5]] = -1
    known[known >= 0] = np.arange(CLASSES - 2)
    kept = np.flatnonzero(known >= 0)
    smaller = Rows(HEAD.weight[kept], HEAD.bias[kept])
    found = measure(smaller, rows(), known)
    assert found is not None
    logits = FEATURES.astype(np.float64) @ smaller.weight.T + smaller.bias
    right = kept[logits.argmax(1)] == LABELS
    assert found.rows == 200
    assert found.top1 == pytest.approx(100 * right.mean())
    by_class = [right[c == LABELS].mean() for c in range(CLASSES)]
    assert found.per_class == pytest.approx(100 * np.mean(by_class))


def test_classes_without_rows_do_not_count_in_the_mean_and_five_classes_have_no_top_5() -> None:
    few = Rows(HEAD.weight[:5], HEAD.bias[:5])
    labels = LABELS % 2
    found = measure(few, rows(labels), np.arange(5))
    assert found is not None
    assert found.top5 is None
    right = (FEATURES.astype(np.float64) @ few.weight.T + few.bias).argmax(1) == labels
    means = [right[labels == c].mean() for c in (0, 1)]
    assert found.per_class == pytest.approx(100 * np.mean(means))
