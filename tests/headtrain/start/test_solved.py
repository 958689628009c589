from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge as PeerRidge
from sklearn.neighbors import NearestCentroid

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.start.new_rows import SHRINKAGE
from clinit.headtrain.start.task_start import SOLVED, Solve
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study.study import Study

DIM, BASE, NEW = 10, 5, 6
RANDOM = {"init": "random"}


def rows(prefix: str, counts: Sequence[int], seed: int) -> FeatureSet:
    labels = np.repeat(np.arange(len(counts)), counts)
    centres = np.random.default_rng(len(prefix)).normal(size=(len(counts), DIM))
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIM))
    features = (2 * centres[labels] + 0.6 * noise).astype(np.float32)
    return FeatureSet(features, labels, tuple(f"{prefix}{i}" for i in range(len(counts))))


def sources(base_rows: Sequence[int] = (20,) * BASE) -> tuple[Source, Source]:
    base = Source(rows("a", base_rows, 1), rows("a", [9] * BASE, 2), path="base")
    new = Source(rows("bb", [12] * NEW, 3), rows("bb", [9] * NEW, 4), path="new")
    return base, new


def head() -> Head:
    weight = np.random.default_rng(0).normal(size=(BASE, DIM)).astype(np.float32)
    return Head(weight, np.zeros(BASE, np.float32), tuple(f"a{i}" for i in range(BASE)))


def study(method: str, head: Mapping[str, Any] = {}, **changes: Any) -> Study:
    sizes = {"tasks": 2, "iterations": 12, "batch_size": 8, "eval_every": 6, "device": "cpu"}
    return Study.of({"method": method, **sizes, **changes, **head}).resolved()


def run(
    method: str,
    heads: Sequence[Mapping[str, Any]] = (RANDOM,),
    *,
    base_rows: Sequence[int] = (20,) * BASE,
    **changes: Any,
) -> list[RunRecord]:
    return run_experiment(
        *sources(base_rows), head(), [study(method, each, **changes) for each in heads]
    )


def accuracy(record: RunRecord, task: int) -> float:
    end = record.evaluations.filter(pl.col("task") == task)
    end = end.filter(pl.col("iteration") == end["iteration"].max())
    return int(end["correct"].sum()) / int(end["total"].sum())


def statistics() -> tuple[np.ndarray, np.ndarray, ClassStatistics]:
    data = rows("a", [9, 4, 0, 12], 5)
    return data.features, data.labels, ClassStatistics.of(data.features, data.labels, num_classes=4)


def predictions(method: Solve, features: np.ndarray, of: ClassStatistics) -> np.ndarray:
    solved = method(of, 0.05)
    return np.asarray((features @ solved.weight.T + solved.bias).argmax(1))


def test_the_nearest_class_mean_is_that_of_scikit_learn() -> None:
    features, labels, of = statistics()
    queries = np.random.default_rng(9).normal(size=(300, DIM)) * 2
    peer = NearestCentroid().fit(features, labels)
    found = predictions(SOLVED["ncm"], queries, of)
    assert found.tolist() == peer.predict(queries).tolist()


def test_ridge_is_that_of_scikit_learn_with_class_balanced_weights() -> None:
    features, labels, of = statistics()
    weights = 1 / (3 * np.bincount(labels)[labels])
    extended = np.hstack([features, np.ones((len(features), 1))])
    peer = PeerRidge(alpha=0.05, fit_intercept=False)
    peer.fit(extended, np.eye(4)[labels], sample_weight=weights)
    solved = SOLVED["ridge"](of, 0.05)
    np.testing.assert_allclose(solved.weight, peer.coef_[:, :-1], atol=1e-6)
    np.testing.assert_allclose(solved.bias, peer.coef_[:, -1], atol=1e-6)


def test_lda_is_the_quadratic_form_written_out() -> None:
    features, labels, of = statistics()
    means = {c: features[labels == c].astype(float).mean(0) for c in (0, 1, 3)}
    within = sum(np.cov(features[labels == c].T.astype(float), bias=True) for c in means) / 3
    inverse = np.linalg.inv((1 - SHRINKAGE) * within + SHRINKAGE * np.eye(DIM))
    queries = np.random.default_rng(9).normal(size=(300, DIM)) * 2
    distances = {
        c: np.einsum("nd,de,ne->n", queries - mean, inverse, queries - mean)
        for c, mean in means.items()
    }
    nearest = np.array(list(distances))[np.argmin(list(distances.values()), axis=0)]
    assert predictions(SOLVED["lda"], queries, of).tolist() == nearest.tolist()


@pytest.mark.parametrize("name", SOLVED)
def test_a_class_without_rows_is_never_predicted_by_a_solved_head(name: str) -> None:
    _, _, of = statistics()
    means = np.asarray(of.class_means)
    assert 2 not in predictions(SOLVED[name], means[[0, 1, 3]], of)


@pytest.mark.parametrize("name", SOLVED)
def test_a_solved_head_is_evaluated_once_a_task_over_all_classes_seen(name: str) -> None:
    (record,) = run(name, [{}], iterations=500)
    assert record.info["id"] == name
    assert record.info["config"]["iterations"] == 0
    assert "init" not in record.info["config"]
    assert record.points["iteration"].to_list() == [0, 0]
    assert accuracy(record, 1) > 0.9
    assert accuracy(record, 2) > 0.9
    seconds = [task["initialisation"]["seconds"] for task in record.info["tasks"]]
    assert all(each > 0 for each in seconds)


def test_the_solved_head_does_not_depend_on_the_number_of_tasks() -> None:
    one, three = (run("ncm", [{}], tasks=tasks)[0] for tasks in (1, 3))
    last = [
        record.evaluations.filter(pl.col("task") == task)["correct"].to_list()
        for record, task in ((one, 1), (three, 3))
    ]
    assert last[0] == last[1]
