"""What the heads of a bank share at the start of a task, and what each is charged for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clinit.errors import StatisticsError
from clinit.headtrain.rows import Rows
from clinit.headtrain.start import task_start
from clinit.headtrain.start.initialise import initialise
from clinit.headtrain.start.new_rows import NewClasses
from clinit.headtrain.start.task_start import SOLVED, Solve, TaskStart
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.lambda_curve import LambdaCurve, lambda_curve
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.study.parts import Start, Weighting
from clinit.headtrain.study.study import Study

OLD, NEW, DIM = 5, 3, 6
TASK = Task(2, np.arange(NEW), OLD)


def study(**settings: Any) -> Study:
    return Study.of(settings).resolved()


def sample() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    labels = random.integers(OLD + NEW, size=300)
    centres = 2 * random.normal(size=(OLD + NEW, DIM))
    return centres[labels] + random.normal(size=(300, DIM)), labels


def head() -> Rows:
    random = np.random.default_rng(4)
    return Rows(random.normal(size=(OLD + NEW, DIM)), random.normal(size=OLD + NEW))


class Reader:
    """Counts how often the features are asked for, and which curves are told."""

    def __init__(self, solved: Solve | None = None) -> None:
        self.reads = 0
        self.curves: list[LambdaCurve] = []
        features, labels = sample()

        def read() -> np.ndarray:
            self.reads += 1
            return features

        self.start = TaskStart(
            TASK, OLD, read, labels, solved, torch.device("cpu"), self.curves.append
        )


@pytest.mark.parametrize(
    "config",
    [
        study(init="least-square", lam=0.05),
        study(init="least-square", scale="norm", weighting="sample", lam=0.5),
        study(init="class-mean"),
        study(init="imprint", scale="norm"),
        study(init="lda"),
        study(init="zero"),
    ],
    ids=lambda config: f"{config.start.init} {config.start.scale}",
)
def test_new_rows_are_those_of_the_initialisation_alone(config: Study) -> None:
    features, labels = sample()
    expected = initialise(config.start, NewClasses(features, labels, head(), OLD, OLD + NEW))
    found, seconds = Reader().start.start(config, head())
    np.testing.assert_array_equal(found.rows.weight, expected.rows.weight)
    np.testing.assert_array_equal(found.rows.bias, expected.rows.bias)
    assert (found.factor, found.shift) == (expected.factor, expected.shift)
    assert {"features", "solve", "calibrate"} <= set(seconds)
    assert all(value >= 0 for value in seconds.values())


def test_random_rows_are_those_of_the_head_and_no_feature_is_read() -> None:
    reader = Reader()
    found, seconds = reader.start.start(study(init="random"), head())
    np.testing.assert_array_equal(found.rows.weight, head().weight[OLD:])
    assert (seconds, reader.reads) == ({}, 0)


def test_features_and_statistics_are_computed_once_and_charged_to_all_who_need_them() -> None:
    reader = Reader()
    least_square = study(init="least-square", lam="auto")
    configs = [least_square, least_square.changed({"scale": "norm"}), study(init="imprint")]
    seconds = [reader.start.start(config, head())[1] for config in configs]
    assert reader.reads == 1
    assert len(reader.curves) == 2  # each for the other rows of its head
    shared = ("features", "statistics")
    assert [seconds[0][name] for name in shared] == [seconds[1][name] for name in shared]
    assert all(seconds[0][name] > 0 for name in (*shared, "lambda"))
    assert seconds[2]["features"] == seconds[0]["features"]
    assert set(seconds[2]) == {"features", "solve", "calibrate"}


def test_lambda_is_chosen_by_the_new_rows_and_for_a_solved_head_by_all() -> None:
    features, labels = sample()
    written, solved = Reader(), Reader(SOLVED["ridge"])
    written.start.start(study(init="least-square", lam="held-out"), head())
    solved.start.start(study(method="ridge", lam="auto"), head())
    for reader, classes in ((written, slice(OLD, OLD + NEW)), (solved, slice(0, OLD + NEW))):
        assert reader.curves == [lambda_curve(features, labels, OLD + NEW, classes=classes)]
    assert written.curves != solved.curves


@pytest.mark.parametrize("weighting", ["class", "sample"])
@pytest.mark.parametrize("method", sorted(SOLVED))
def test_a_solved_head_gets_all_its_rows(method: str, weighting: Weighting) -> None:
    features, labels = sample()
    read: Weighting = "class" if method == "ncm" else weighting
    statistics = ClassStatistics.of(features, labels, num_classes=OLD + NEW, weighting=read)
    config = study(method=method, lam=0.3, weighting=weighting)
    found, seconds = Reader(SOLVED[method]).start.start(config, head())
    reads_lambda = method == "ridge"
    expected = SOLVED[method](statistics, 0.3 if reads_lambda else 0.0)
    np.testing.assert_array_equal(found.rows.weight, expected.weight)
    np.testing.assert_array_equal(found.rows.bias, expected.bias)
    assert found.lam == (0.3 if reads_lambda else None)
    assert list(seconds) == ["features", "statistics", "solve"]


def test_a_lambda_that_cannot_be_chosen_is_refused() -> None:
    features, labels = sample()
    few = labels < OLD
    for label in range(OLD, OLD + NEW):
        few[np.flatnonzero(labels == label)[0]] = True  # one row of each new class
    start = TaskStart(
        TASK, OLD, lambda: features[few], labels[few], None, torch.device("cpu"), lambda curve: None
    )
    with pytest.raises(StatisticsError, match="no class that is judged has two rows"):
        start.start(study(init="least-square", lam="held-out"), head())


def test_heads_that_are_alike_yet_start_alike_and_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels = sample()
    calls: list[Start] = []

    def counted(start: Start, *args: Any, **settings: Any) -> Any:
        calls.append(start)
        return initialise(start, *args, **settings)

    monkeypatch.setattr(task_start, "initialise", counted)
    starts = [
        study(init="least-square", lr=0.1),
        study(init="least-square", lr=0.2),
        study(init="least-square", loss="mse"),
        study(init="class-mean", lr=0.1),
    ]
    shared = TaskStart(
        TASK, OLD, lambda: features, labels, None, torch.device("cpu"), lambda curve: None,
        heads_alike=True,
    )  # fmt: skip
    found = [shared.start(each, head()) for each in starts]
    assert len(calls) == 3
    assert found[1] is found[0]
    for each, (start, seconds) in zip(starts, found, strict=True):
        alone, _ = Reader().start.start(each, head())
        np.testing.assert_array_equal(start.rows.weight, alone.rows.weight)
        assert {"features", "statistics"} <= set(seconds)  # each is charged for all
