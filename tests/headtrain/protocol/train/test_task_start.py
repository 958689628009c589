"""What the heads of a bank share at the start of a task, what each is charged for; solved heads."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid

from clinit.errors import StatisticsError
from clinit.headtrain.heads.closed.methods import SOLVED
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start import calibrate
from clinit.headtrain.heads.start.calibrate import expansions
from clinit.headtrain.heads.start.initialise import initialise, initialising
from clinit.headtrain.heads.start.new_rows import SHRINKAGE, NewClasses
from clinit.headtrain.heads.start.settings import Start, Weighting
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import leave_one_out_curve
from clinit.headtrain.protocol.stream.buffer import TaskRows
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train import task_start
from clinit.headtrain.protocol.train.task_start import TaskStart

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


def beside_old_rows(features: Any, labels: Any, old: Rows, statistics: Any) -> Any:
    return statistics.class_means[OLD:] + old.weight.mean(axis=0), np.zeros(NEW)


class Reader:
    """Counts how often the features are asked for."""

    def __init__(
        self,
        solved: Any = None,
        kept: Any = slice(None),
        *,
        alike: bool = False,
        groups: Any = None,
    ) -> None:
        self.reads = 0
        features, labels = sample()
        labels = labels[kept]
        rows: np.ndarray = features[kept]

        def read() -> np.ndarray:
            self.reads += 1
            return rows

        seen, cpu = TaskRows(2, np.arange(len(labels)), labels, 0, 0), torch.device("cpu")
        self.start = TaskStart(
            TASK, OLD, seen, read, lambda: groups, solved, cpu, starts={} if alike else None
        )


def test_features_and_statistics_are_computed_once_and_charged_to_all_who_need_them() -> None:
    reader, least_square = Reader(), study(init="least-square", lam="auto")
    configs = [least_square, least_square.changed({"scale": "norm"}), study(init="imprint")]
    seconds = [reader.start.start(config, head())[1] for config in configs]
    assert reader.reads == 1
    shared = ("features", "statistics")
    assert [seconds[0][name] for name in shared] == [seconds[1][name] for name in shared]
    assert all(seconds[0][name] > 0 for name in (*shared, "lambda"))
    assert seconds[2]["features"] == seconds[0]["features"]
    assert set(seconds[2]) == {"features", "solve", "calibrate"}


def test_lambda_of_a_solved_head_is_chosen_by_all_rows() -> None:
    features, labels = sample()
    found, _ = Reader(SOLVED["ridge"]).start.start(study(method="ridge", lam="auto"), head())
    statistics = ClassStatistics.of(features, labels, num_classes=OLD + NEW)
    assert found.curve == leave_one_out_curve(features, labels, statistics)
    ends, ridge = np.flatnonzero(labels == OLD + NEW - 1)[:3], study(method="ridge", lam="auto")
    Reader(SOLVED["ridge"], ends, groups=np.array([0, 1, 1])).start.start(ridge, head())
    single = Reader(SOLVED["ridge"], np.unique(labels, return_index=True)[1])
    with pytest.raises(StatisticsError, match="no class has two rows") as caught:
        single.start.start(study(method="ridge", lam="auto"), head())
    assert "0.05" in caught.value.remedy


@pytest.mark.parametrize("weighting", ["class", "sample"])
@pytest.mark.parametrize("method", sorted(SOLVED))
def test_a_solved_head_gets_all_its_rows(method: str, weighting: Weighting) -> None:
    features, labels = sample()
    read: Weighting = "class" if method == "ncm" else weighting
    statistics = ClassStatistics.of(features, labels, num_classes=OLD + NEW, weighting=read)
    config = study(method=method, lam=0.3, weighting=weighting)
    found, seconds = Reader(SOLVED[method]).start.start(config, head())
    lam = 0.3 if method == "ridge" else None
    expected = SOLVED[method](statistics, lam or 0.0)
    np.testing.assert_array_equal(found.rows.weight, expected.weight)
    np.testing.assert_array_equal(found.rows.bias, expected.bias)
    assert found.lam == lam
    assert list(seconds) == ["features", "statistics", "solve"]


def test_heads_that_are_alike_yet_start_alike_and_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Start] = []

    def counted(start: Start, *args: Any, **settings: Any) -> Any:
        calls.append(start)
        return initialising(start, *args, **settings)

    monkeypatch.setattr(task_start, "initialising", counted)
    starts = [
        study(init="least-square", lr=0.1),
        study(init="least-square", lr=0.2),
        study(init="least-square", loss="mse"),
        study(init="class-mean", lr=0.1),
    ]
    shared = Reader(alike=True).start
    found = [shared.start(each, head()) for each in starts]
    assert len(calls) == 3
    assert found[1][0].rows is found[0][0].rows
    for each, (start, seconds) in zip(starts, found, strict=True):
        alone, _ = Reader().start.start(each, head())
        np.testing.assert_array_equal(start.rows.weight, alone.rows.weight)
        assert {"features", "statistics"} <= set(seconds)  # each is charged for all


SETTINGS: dict[str, dict[str, Any]] = {
    "least-square": {},
    "class-mean": {"bias": "keep", "loss": "sqen"},
    "imprint": {"calibration": "in-sample", "loss": "bce"},
    "fitted": {"loss": "mse"},
    "lda": {"scale": "norm", "weighting": "sample"},
    f"{__name__}:beside_old_rows": {},
}


@pytest.mark.parametrize("init", SETTINGS)
def test_equal_starts_of_several_heads_go_on_side_by_side_and_end_as_alone(
    monkeypatch: pytest.MonkeyPatch, init: str
) -> None:
    config = study(init=init, **SETTINGS[init])
    heads = [Rows(size * head().weight, head().bias + size) for size in (0.1, 1.0, 6.0)]
    rounds, nears = [0], [None, 1e-3, 30.0]

    def counted(asked: Any) -> Any:
        rounds[-1] += 1
        return expansions(asked)

    monkeypatch.setattr(calibrate, "expansions", counted)
    found = Reader().start.start_all([config] * 3, heads.__getitem__, nears)
    for rows, near, (start, seconds) in zip(heads, nears, found, strict=True):
        rounds.append(0)
        data = NewClasses(*sample(), rows, OLD, OLD + NEW)
        alone = initialise(config.start, data, near=near, loss=config.training.loss)
        np.testing.assert_allclose(start.rows.weight, alone.rows.weight, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(start.rows.bias, alone.rows.bias, rtol=1e-7, atol=1e-9)
        assert (start.lam, start.steps) == (alone.lam, alone.steps)
        assert seconds == found[0][1]
    assert rounds[0] == max(rounds[1:])
    assert len({start.factor for start, _ in found}) == 3


def predictions(method: str, queries: np.ndarray) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Return what a solved head labels queries, and the rows of each class; class 2 has none."""
    features, labels = sample()
    rows = {c: features[labels == c] for c in (0, 1, 3)}
    given = np.concatenate(list(rows.values())), np.repeat([*rows], [*map(len, rows.values())])
    solved = SOLVED[method](ClassStatistics.of(*given, num_classes=4), 0.05)
    return (queries @ solved.weight.T + solved.bias).argmax(1), rows


QUERIES = np.random.default_rng(9).normal(size=(300, DIM)) * 2


def test_the_nearest_class_mean_is_that_of_scikit_learn() -> None:
    found, rows = predictions("ncm", QUERIES)
    labels = np.repeat([*rows], [*map(len, rows.values())])
    peer = NearestCentroid().fit(np.concatenate(list(rows.values())), labels)
    assert found.tolist() == peer.predict(QUERIES).tolist()


def test_lda_is_the_quadratic_form_written_out() -> None:
    found, rows = predictions("lda", QUERIES)
    within = sum(np.cov(own.T, bias=True) for own in rows.values()) / 3
    inverse = np.linalg.inv((1 - SHRINKAGE) * within + SHRINKAGE * np.eye(DIM))
    apart = [QUERIES - own.mean(0) for own in rows.values()]
    distances = [np.einsum("nd,de,ne->n", each, inverse, each) for each in apart]
    assert found.tolist() == np.array([*rows])[np.argmin(distances, axis=0)].tolist()


@pytest.mark.parametrize("method", SOLVED)
def test_a_class_without_rows_is_never_predicted_by_a_solved_head(method: str) -> None:
    assert 2 not in predictions(method, 10 * QUERIES)[0]
