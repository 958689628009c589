from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import Ridge as PeerRidge
from sklearn.neighbors import NearestCentroid

from clinit.extract.features import FeatureSet
from clinit.extract.head import Head
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.start.new_rows import SHRINKAGE
from clinit.headtrain.start.task_start import SOLVED, Solve
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.stream.notes import data_notes
from clinit.headtrain.stream.scenario import build_scenario
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study import HEAD_METHODS, Study, names_of

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


def test_naive_trains_on_new_rows_alone() -> None:
    (record,) = run("naive")
    assert record.steps["loss_old"].null_count() == len(record.steps) == 24
    assert [task["buffer_rows"] for task in record.info["tasks"]] == [0, 0]
    assert record.info["config"]["method"] == "naive"
    assert record.info["config"]["buffer"] is None
    assert record.info["id"] == "naive-random"


def test_joint_trains_on_all_rows_of_all_classes_seen() -> None:
    (record,) = run("joint", iterations=40)
    assert [task["buffer_rows"] for task in record.info["tasks"]] == [100, 100 + 36]
    assert record.steps["loss"].null_count() == 0
    parts = record.steps.drop_nulls()
    low, high = np.sort(parts.select("loss_new", "loss_old").to_numpy(), axis=1).T
    loss = parts["loss"].to_numpy()
    assert ((loss >= low - 1e-6) & (loss <= high + 1e-6)).all()


def test_a_joint_batch_without_a_new_row_has_no_new_loss() -> None:
    (record,) = run("joint", iterations=60, batch_size=2, base_rows=(200,) * BASE)
    alone = record.steps.filter(pl.col("loss_new").is_null())
    assert len(alone) > 0
    assert alone["loss"].equals(alone["loss_old"].alias("loss"))


def test_naive_forgets_what_joint_keeps() -> None:
    start = {"scale": "norm", "lr": 0.05}
    naive, joint = (run(name, [start], iterations=60)[0] for name in ("naive", "joint"))
    assert accuracy(joint, 2) > 0.9 > accuracy(naive, 2)


@pytest.mark.parametrize("init", ["least-square", "class-mean", "imprint", "lda"])
def test_naive_initialises_from_new_rows_alone(init: str) -> None:
    (record,) = run("naive", [{"init": init}])
    assert np.isfinite(record.points["loss_new"].to_numpy()).all()


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


def test_ridge_can_choose_its_lambda_from_held_out_rows() -> None:
    (record,) = run("ridge", [{"lam": "auto"}])
    for task in record.info["tasks"]:
        curve: Any = task["lambda_curve"]
        best = curve["lam"][int(np.argmin(curve["held_out_error"]))]
        assert task["initialisation"]["lam"] == best


def test_two_ridge_heads_differ_by_lambda_and_two_class_mean_heads_are_one() -> None:
    heads: list[dict[str, Any]] = [{"lam": 0.1}, {"lam": 1.0}]
    names = names_of([study("ridge", each) for each in heads])
    assert names == ["ridge-lam=0.1", "ridge-lam=1.0"]
    with pytest.raises(ValueError, match=r"two heads of a bank are the same: \{'loss': 'ce', 'm"):
        names_of([study("ncm", each) for each in heads])


def test_naive_heads_are_named_by_method_and_initialisation() -> None:
    assert names_of([study("naive", RANDOM), study("naive")]) == [
        "naive-random",
        "naive-least-square-calibrated",
    ]


def test_a_solved_head_is_never_wider_than_the_classes_seen() -> None:
    assert study("ncm", head_width="full").start.head_width == "grow"


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="method must be one of"):
        study("icarl")


def test_only_rehearsal_is_told_about_its_buffer() -> None:
    base, new = sources((0, *[20] * (BASE - 1)))
    for name in HEAD_METHODS:
        size = {"buffer": 5000} if name == "rehearsal" else {}
        asked = study(name, RANDOM, batch_size=100, **size)
        scenario = build_scenario(base, new, head(), asked.stream)
        notes = data_notes(scenario, base, new, [asked])
        text = "\n".join(notes)
        assert ("the buffer of 5,000 rows never fills" in text) == (name == "rehearsal")
        assert ("rows come more than once in a batch" in text) == (name in ("rehearsal", "naive"))
        assert ("are left out of a head that is solved" in text) == asked.is_solved


def test_the_default_buffer_belongs_to_rehearsal() -> None:
    assert study("rehearsal").stream.buffer == 24_000
    assert study("rehearsal").changed({"method": "joint"}).resolved().stream.buffer is None
