import hashlib
from typing import Any

import numpy as np
import pytest

from clinit.errors import StatisticsError
from clinit.headtrain.heads.closed import ranpac
from clinit.headtrain.heads.closed.methods import Arrival
from clinit.headtrain.heads.closed.settings import RanpacConfig
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.moments import symmetric
from tests.headtrain.heads.closed.made import COUNTS, DIM, queries, rows_of, stream

SEED = 4


def learner(width: int, lam: Any = "auto") -> ranpac.Ranpac:
    return ranpac.Ranpac(RanpacConfig(width=width, lam=lam), np.zeros(DIM), seed=SEED)


def mapped(features: np.ndarray, width: int = 12) -> np.ndarray:
    return np.asarray(
        ranpac.FeatureMap.drawn(np.zeros(DIM), width, seed=SEED)(features), dtype=float
    )


def naive_head(width: int, lam: float) -> np.ndarray:
    features, labels = rows_of(0, len(COUNTS))
    gram, sums = np.zeros((width, width)), np.zeros((width, len(COUNTS)))
    for row, label in zip(mapped(features, width), labels, strict=True):
        gram += np.outer(row, row)
        sums += np.outer(row, np.eye(len(COUNTS))[label])
    return np.linalg.solve(gram + lam * np.eye(width), sums).T


def naive_curve(start: int, stop: int, task: int, width: int) -> list[float]:
    """The authors' choice of lambda: their two parts of the rows, one solve a lambda."""
    features, labels = rows_of(start, stop)
    order = generator(SEED, Draw.RIDGE, task).permutation(len(labels))
    rows, targets = mapped(features[order], width), np.eye(len(COUNTS))[labels[order]]
    fitted, errors = int(len(rows) * 0.8), []
    for lam in ranpac.LAMBDAS:
        gram = rows[:fitted].T @ rows[:fitted] + lam * np.eye(width)
        head = np.linalg.lstsq(gram, rows[:fitted].T @ targets[:fitted], rcond=1e-14)[0]
        answers = rows[fitted:] @ head
        errors.append(float(((answers - targets[fitted:]) ** 2).sum(1).mean()) / 2)
    return errors


def test_a_fixed_lambda_is_the_recursion_of_acil() -> None:
    width, gamma = 12, 0.5
    scale = np.sqrt(3 * DIM)  # ACIL draws the map from U(-1, 1) / sqrt(d), of variance 1 / (3 d)
    inverse, weight = np.eye(width) / gamma, np.zeros((width, len(COUNTS)))
    for start, stop in ((0, 4), (4, 6), (6, 9)):
        features, labels = rows_of(start, stop)
        rows = mapped(features, width) / scale
        gain = np.linalg.inv(np.eye(len(rows)) + rows @ inverse @ rows.T)
        inverse -= inverse @ rows.T @ gain @ rows @ inverse
        weight += inverse @ rows.T @ (np.eye(len(COUNTS))[labels] - rows @ weight)
    form = learner(width, 3 * DIM * gamma)
    stream(form)
    np.testing.assert_allclose(
        form.scores(queries()), mapped(queries(), width) / scale @ weight, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("width", [5, 12, 80])
def test_lambda_has_the_least_error_on_the_last_fifth_of_the_task(width: int) -> None:
    form = learner(width)
    base, first, second = stream(form)
    assert base.lam is None
    assert base.curve is None
    for solution, start, stop, task in ((first, 4, 6, 1), (second, 6, 9, 2)):
        errors = naive_curve(start, stop, task, width)
        assert (solution.curve.lams, len(ranpac.LAMBDAS)) == (ranpac.LAMBDAS, 17)
        large = np.array(ranpac.LAMBDAS) >= 1e-4  # below, the naive solve has lost its digits
        np.testing.assert_allclose(
            np.array(solution.curve.errors)[large], np.array(errors)[large], rtol=1e-4, atol=1e-7
        )
        assert solution.lam == solution.curve.best
    head = form.rows
    assert second.lam is not None
    np.testing.assert_allclose(head.weight, naive_head(width, second.lam), rtol=1e-3, atol=1e-4)


def test_a_lambda_that_rounding_would_drown_is_not_chosen_and_refused_if_given() -> None:
    rng, labels = np.random.default_rng(0), np.arange(40) % 2
    features = 1e3 * rng.normal(size=(2, DIM))[labels] + 1e-6 * rng.normal(size=(40, DIM))
    # No copies, but without noise in float32, to which they are mapped: the least would be best.
    arrival, form = Arrival(1, features, labels, 2), learner(60)
    solution = form.learn(arrival)
    assert solution.lam > solution.curve.best
    assert form.scores(features).argmax(1).tolist() == labels.tolist()
    with pytest.raises(StatisticsError, match="singular at lambda = 1e-12, with 40 rows") as error:
        learner(60, 1e-12).learn(arrival)
    assert "--ranpac-lambda" in error.value.remedy


def test_rows_that_are_held_out_are_mapped_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [solution.curve for solution in stream(learner(5))][1:]
    monkeypatch.setattr(ranpac.FeatureMap, "block_rows", 2)
    found = [solution.curve for solution in stream(learner(5))][1:]
    # Rows are mapped in float32, and some kernels round a product of two rows otherwise than one
    # of many.
    rtol = np.linalg.cond(mapped(rows_of(0, len(COUNTS))[0], 5)) * np.finfo(np.float32).eps
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other.errors, one.errors, rtol=rtol)


ROWS = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
LABELS = np.array([0, 1, 1, 3] * 10)


def drawn(seed: int = 0) -> ranpac.FeatureMap:
    return ranpac.FeatureMap.drawn(np.zeros(5), 30, seed=seed)


def test_sums_in_parts_are_those_of_all_mapped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranpac.FeatureMap, "block_rows", 7)
    mapped, parts = drawn(), []
    for chosen, classes in ((slice(0, 14), 4), (slice(14, None), 5)):
        part = ranpac.ClassMoments.like(np.zeros(1), 30)
        part.grow(4)
        part.grow(classes)
        part.add_mapped(ROWS[chosen], LABELS[chosen], mapped)
        part.grow(5)
        parts.append(part)
    parts[0].merge(parts[1])
    rows, found = mapped(ROWS).astype(float), parts[0]
    for label in (0, 1, 3):
        np.testing.assert_allclose(found.sums[label], rows[label == LABELS].sum(0), rtol=1e-6)
    np.testing.assert_allclose(symmetric(found.lower), rows.T @ rows, rtol=1e-6)
    assert found.counts.tolist() == [10, 20, 0, 10, 0]


@pytest.mark.parametrize("size", [1, 512, 700])
def test_a_number_is_added_to_the_diagonal_alone(size: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(size, size))
    before = matrix.copy()
    np.testing.assert_array_equal(ranpac.plus_diagonal(matrix, 2.5), before + 2.5 * np.eye(size))
    np.testing.assert_array_equal(matrix, before)
    np.testing.assert_array_equal(np.tril(before) + np.tril(before, -1).T, symmetric(before))


def test_features_are_their_formula_for_all_columns_and_for_some() -> None:
    made = drawn()
    expected = np.maximum(ROWS.astype(float) @ made.weight, 0)
    np.testing.assert_allclose(made(ROWS), expected, atol=1e-5)
    np.testing.assert_allclose(made(ROWS, slice(4, 9)), expected[:, 4:9], atol=1e-5)


def test_the_description_says_how_to_draw_it_again() -> None:
    made = drawn(seed=4)
    digest = hashlib.sha256(made.weight.tobytes()).hexdigest()
    told = {"kind": "relu", "width": 30, "input_dim": 5, "seed": 4, "member": 0, "sha256": digest}
    assert made.description == told == drawn(seed=4).description
    assert drawn().description["sha256"] != digest
