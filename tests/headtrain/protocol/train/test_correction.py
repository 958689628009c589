"""Runs whose heads are corrected after each task."""

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.calibrate import PRIOR
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.train.correction import bias_corrected, class_weights, weight_aligned
from tests.headtrain.protocol.test_experiment import BASE, make_base, make_new
from tests.headtrain.protocol.test_experiment import NEW as ARRIVING
from tests.headtrain.protocol.test_experiment import run as train

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
    facts = found.facts
    expected = pytest.approx(numbers.tolist(), rel=1e-4, abs=1e-5)
    assert [facts["factor"], facts["shift"]] == expected
    prior = naive_prior(data, numbers).item()
    assert facts["loss_after"] + prior == pytest.approx(naive_objective(data, numbers).item())
    assert facts["loss_after"] <= facts["loss_before"]


def test_corrected_rows_give_the_corrected_logits() -> None:
    data = trained_head(3.0, 4.0)
    found = bias_corrected(data)
    raw = data.features @ data.head.weight[OLD:].T + data.head.bias[OLD:]
    corrected = data.features @ found.rows.weight.T + found.rows.bias
    np.testing.assert_allclose(corrected, found.facts["factor"] * raw + found.facts["shift"])


def test_each_class_weighs_the_same_and_absent_ones_are_stood_for_by_others_of_their_kind() -> None:
    labels = np.array([0, 0, 0, 2, 3, 3])
    weights = class_weights(labels, 3, 5)
    np.testing.assert_allclose(weights, [0.1, 0.1, 0.1, 0.3, 0.2, 0.2])
    assert weights.sum() == pytest.approx(1)
    every = np.array([0, 1, 1, 2])
    np.testing.assert_allclose(class_weights(every, 2, 3), [1 / 3, 1 / 6, 1 / 6, 1 / 3])


def as_in_pycil(weight: np.ndarray, increment: int) -> tuple[np.ndarray, float]:
    """The published code, for a head that ends with the new classes."""
    weights = torch.from_numpy(weight.copy())
    norms = torch.norm(weights, p=2, dim=1)
    gamma = norms[:-increment].mean() / norms[-increment:].mean()
    weights[-increment:] *= gamma
    return weights.numpy(), float(gamma)


def test_new_rows_get_the_mean_norm_of_the_old_ones_and_keep_their_biases() -> None:
    head = trained_head(3.0, 4.0).head
    later = Rows(np.r_[head.weight, head.weight[:2]], np.r_[head.bias, head.bias[:2]])
    found = weight_aligned(later, OLD, STOP)
    expected, gamma = as_in_pycil(head.weight, NEW)
    np.testing.assert_allclose(found.rows.weight, expected[OLD:])
    np.testing.assert_array_equal(found.rows.bias, head.bias[OLD:])
    assert found.facts == {"factor": pytest.approx(gamma), "shift": 0.0}


def run(*inits: str, **settings: Any) -> list[RunRecord]:
    config = {"tasks": 2, "iterations": 20, "eval_every": 10, "buffer": 60, "batch_size": 16}
    heads = [{**settings, "device": "cpu", "init": init} for init in inits or ("random",)]
    return train(config, heads)


def right(record: RunRecord, task: int) -> list[int]:
    """Test images labelled right at the end of a task, of the base and of each task."""
    here = record.evaluations.filter(pl.col("task") == task, pl.col("iteration") == 20)
    origins = here.join(record.classes.select("row", origin="task"), on="row")
    found = origins.group_by("origin").agg(pl.col("correct").sum()).sort("origin")
    return found["correct"].to_list()


def ends(record: RunRecord) -> list[int]:
    first = int((record.classes["task"] == 1).sum())
    return [0, BASE, BASE + first, BASE + ARRIVING]


def test_weight_aligning_changes_nothing_before_the_end_of_the_first_task() -> None:
    inits = "random", "least-square"
    for one, other in zip(run(*inits), run(*inits, correct="wa"), strict=True):
        first = pl.col("task") == 1
        assert one.steps.filter(first).equals(other.steps.filter(first))
        before = other.info["tasks"][0]["correction"]["correct_before"]
        assert before == right(one, 1)
        assert not one.steps.equals(other.steps)
        assert other.head is not None
        norms = np.linalg.norm(other.head.weight, axis=1)
        last = ends(other)[2]
        assert norms[last:].mean() == pytest.approx(norms[:last].mean(), rel=1e-5)


@pytest.mark.parametrize("correct", ["wa", "bic"])
def test_the_last_evaluation_is_that_of_the_corrected_head(correct: str) -> None:
    (record,) = run(correct=correct)
    assert record.head is not None
    order = [int(name[3:]) for name in record.classes["name"][BASE:]]
    row_of_new = np.empty(ARRIVING, np.int64)
    row_of_new[order] = np.arange(BASE, BASE + ARRIVING)
    base, new = make_base().val, make_new().val
    features = np.concatenate([base.features, new.features]).astype(np.float64)
    labels = np.concatenate([base.labels, row_of_new[new.labels]])
    logits = features @ record.head.weight.T.astype(np.float64) + record.head.bias
    hits = (logits.argmax(1) == labels).astype(int)
    parts = pairwise(ends(record))
    assert right(record, 2) == [int(hits[(labels >= a) & (labels < b)].sum()) for a, b in parts]
    assert len(record.info["tasks"][1]["correction"]["correct_before"]) == 3


def test_bias_correction_trains_on_fewer_rows_and_records_what_it_found() -> None:
    (record,) = run(correct="bic", lr=0.02)
    for task in record.info["tasks"]:
        found, rows = task["correction"], 25 * task["classes"]
        assert 0.85 * rows < task["train_rows"] < rows
        assert task["train_rows"] + found["rows_aside"] + task["buffer_rows"] == rows + 60
        assert found["loss_after"] <= found["loss_before"]
        assert found["factor"] > 0
