"""Streams without base classes: the first task makes the head."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.linear_model import Ridge

from clinit.analysis.runs import runs_of
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.start.calibrate import PRIOR
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.runs import train_heads
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.study import Study

DIM, NAMES = 7, tuple("uvwxyz")
COUNTS = (9, 12, 5, 8, 6, 10)
SIZES: Mapping[str, Any] = {
    **{"tasks": 3, "iterations": 6, "eval_every": 3, "batch_size": 4, "buffer": 20},
    **{"device": "cpu", "class_order": NAMES},  # so that labels of the data are rows of the head
}


def rows(counts: tuple[int, ...], seed: int) -> FeatureSet:
    labels = np.repeat(np.arange(len(counts)), counts)
    centres = 1.5 * np.random.default_rng(1).normal(size=(len(counts), DIM))
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIM))
    features = (centres[labels] + noise).astype(np.float32)
    # None repeats another.
    return FeatureSet(features, labels, NAMES, groups=np.arange(len(labels)))


NEW = Source(rows(COUNTS, 2), rows((6,) * 6, 3))


def trained(*studies: Mapping[str, Any], new: Source = NEW) -> list[RunRecord]:
    every = [Study.of({**SIZES, **study}).resolved() for study in studies]
    records = train_heads(RunData.of(None, new), every)
    return [records[study] for study in every]


def solved(new: Source = NEW, **study: Any) -> RunRecord:
    idle = ("iterations", "eval_every", "batch_size", "buffer")
    sizes = {name: value for name, value in SIZES.items() if name not in idle}
    every = Study.of({**sizes, **study}).resolved()
    return train_heads(RunData.of(None, new), [every])[every]


def head_of(record: RunRecord) -> Head:
    assert record.head is not None
    assert record.head.class_names == NAMES
    return record.head


def extended(features: np.ndarray) -> np.ndarray:
    return np.hstack([features.astype(np.float64), np.ones((len(features), 1))])


def class_weights(labels: np.ndarray) -> np.ndarray:
    counts = np.bincount(labels)
    return np.asarray(1 / ((counts > 0).sum() * counts[labels]))


def refit(features: np.ndarray, labels: np.ndarray, lam: float, classes: int) -> np.ndarray:
    """W_LS by scikit-learn, the bias as the last column."""
    ridge, targets = Ridge(alpha=lam, fit_intercept=False), np.eye(classes)[labels]
    fitted = ridge.fit(extended(features), targets, sample_weight=class_weights(labels))
    return np.asarray(fitted.coef_)


def test_the_last_ridge_head_is_that_of_scikit_learn_on_all_rows() -> None:
    head = head_of(solved(method="ridge", lam=0.05))
    expected = refit(NEW.train.features, NEW.train.labels, 0.05, 6)
    np.testing.assert_allclose(np.column_stack([head.weight, head.bias]), expected, rtol=1e-4)


@pytest.mark.parametrize(
    "study",
    [
        {"method": "simplecil"},
        {"method": "slda"},
        {"method": "ranpac", "ranpac_width": 20, "ranpac_lam": 1.0},
        {"method": "ridge", "lam": 0.05},
    ],
    ids=lambda study: study["method"],
)
def test_what_is_solved_at_the_end_does_not_depend_on_the_number_of_tasks(
    study: dict[str, Any],
) -> None:
    ends = []
    for tasks in (1, 3, 6):
        table = solved(**study, tasks=tasks).evaluations
        ends.append(table.filter(table["task"] == tasks).select("row", "correct", "total"))
    assert ends[0].equals(ends[1])
    assert ends[0].equals(ends[2])


def left_out_logits(features: np.ndarray, labels: np.ndarray, lam: float) -> np.ndarray:
    found = []
    for row in range(len(labels)):
        others = np.arange(len(labels)) != row
        head = refit(features[others], labels[others], lam, labels.max() + 1)
        found.append(extended(features[row : row + 1])[0] @ head.T)
    return np.array(found)


def test_the_head_of_the_first_task_is_the_scaled_least_square_solution_of_its_rows() -> None:
    (record,) = trained({"init": "random", "iterations": 0, "stop_after": 1, "tasks": 2})
    head, told = record.head, record.info["tasks"][0]["initialisation"]
    assert told["init"] == "least-square, calibrated"
    first = NEW.train.labels < 3
    features, labels = NEW.train.features[first], NEW.train.labels[first]
    lam, factor = told["lam"], told["factor"]
    assert lam is not None
    assert factor is not None
    found = np.column_stack([head.weight[:3], head.bias[:3]])
    np.testing.assert_allclose(found, factor * refit(features, labels, lam, 3), rtol=1e-4)
    logits, weights = left_out_logits(features, labels, lam), class_weights(labels)
    spread = (weights @ logits**2 - (weights @ logits) ** 2).mean()

    def loss(factor: float) -> float:
        scores = factor * logits
        entropy = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]
        return float(weights @ entropy + PRIOR / 2 * spread * factor**2)

    assert factor == pytest.approx(minimize_scalar(loss, bounds=(0, 100)).x, rel=1e-3)


STARTS = ("random", "class-mean", "least-square", "fitted", "zero", "imprint", "lda")


def test_all_starts_share_the_first_task_and_differ_from_the_second_on() -> None:
    records = trained(*({"init": init} for init in STARTS))
    firsts = [each.evaluations.filter(each.evaluations["task"] == 1) for each in records]
    assert all(each.equals(firsts[0]) for each in firsts)
    losses = [each.points.filter(each.points["task"] == 2)["loss_new"][0] for each in records]
    assert len(set(losses)) == len(STARTS)


def test_a_record_has_no_base_and_no_head_to_start_from() -> None:
    (record,) = trained({"init": "class-mean"})
    assert record.info["base"] is None
    assert record.info["head"] is None
    assert record.classes["task"].to_list() == [1, 1, 2, 2, 3, 3]
    assert "init" not in (record.info["tasks"][1]["initialisation"] or {})


def test_accuracies_of_base_and_old_classes_are_absent_and_not_zero() -> None:
    (run,) = runs_of(trained({"init": "least-square"})).runs
    row = run.row()
    for name in ("acc_pre", "acc_pre_alone", "acc_pre_before", "base"):
        assert row[name] is None
    first, second, _ = row["tasks"]
    assert first["acc_old"] is None
    assert second["acc_old"] is not None
    assert [line[0] for line in row["accuracy_matrix"]] == [None] * 3
    ends = run.points.filter(run.points["iteration"] == 6)["acc_all"]
    assert row["average_incremental_accuracy"] == pytest.approx(ends.mean())


def test_starts_and_gains_are_of_the_tasks_after_the_first() -> None:
    report = runs_of(trained({"init": "random"}, {"init": "least-square"}))
    for run in report.runs:
        starts = run.points.filter((run.points["iteration"] == 0) & (run.points["task"] > 1))
        for name in ("acc_new", "loss_new"):
            assert run.row()[f"{name}_start"] == pytest.approx(starts[name].mean())
        assert {*run.gain["task"]} <= {2, 3}


@pytest.mark.parametrize(
    "study",
    [
        {"tasks": 6},
        {"shots": 1},
        {"shots": 1, "iterations": 0},
        {"shots": 2, "tasks": 6},
        {"loss": "mse"},
        {"loss": "sqen"},
        {"method": "naive", "buffer": None},
        {"method": "joint", "buffer": None},
        {"buffer": 0},
        {"init": "class-mean", "scale": "norm"},
        {"init": "class-mean", "scale": "row-norm"},
        {"init": "fitted", "shots": 1},
    ],
    ids=str,
)
def test_any_stream_starts_from_nothing(study: dict[str, Any]) -> None:
    (record,) = trained(study)
    assert record.steps["loss"].is_finite().all()
    assert np.isfinite(head_of(record).weight).all()
    assert not any("base" in note for note in record.info["notes"])


def test_a_sweep_holds_out_rows_of_the_new_classes_alone() -> None:
    held = RunData.of(None, NEW).held_out(0.2, seed=0)
    assert not held.base.class_names
    assert len(held.new.val.labels) == 10
