from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clinit.headtrain.heads.groups import repeating
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import find_groups
from clinit.headtrain.heads.seeds import Draw
from clinit.headtrain.heads.start.initialise import initialise
from clinit.headtrain.heads.start.new_rows import NewClasses, random_rows, random_task_rows
from clinit.headtrain.heads.start.settings import INITS, SCALES, Start
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares_head

OLD, NEW, DIM = 6, 3, 10
DATA_DRIVEN = [init for init in INITS if init != "random"]


def arrival(rows: int = 300, unseen: int = 0, dtype: type = np.float32) -> NewClasses:
    """A head trained on old classes (scaled nearest class means), and three new classes."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(OLD + NEW, DIM)) + 1
    labels = rng.integers(0, OLD + NEW, size=rows)
    features: np.ndarray = (centres[labels] + rng.normal(size=(rows, DIM))).astype(dtype)
    draw = random_rows(rng, OLD + NEW + unseen, DIM)
    draw.weight[:OLD] = 0.5 * (centres[:OLD] - 1)
    draw.bias[:OLD] = -0.25 * (centres[:OLD] ** 2).sum(1)
    return NewClasses(features, labels, draw, OLD, OLD + NEW)


def test_the_random_rows_of_a_task_follow_from_its_number_and_the_seed_alone() -> None:
    rows = random_task_rows(5, 2, 3, DIM)
    expected = random_rows(np.random.default_rng([5, Draw.RANDOM_ROWS, 2]), 3, DIM)
    np.testing.assert_array_equal(rows.weight, expected.weight)
    np.testing.assert_array_equal(rows.bias, expected.bias)
    for other in (random_task_rows(6, 2, 3, DIM), random_task_rows(5, 3, 3, DIM)):
        assert not np.isin(other.weight, rows.weight).any()


def naive_rows(name: str, data: NewClasses) -> list[tuple[np.ndarray, float]]:
    """Return weight and bias of each new class."""
    groups = [data.features[data.labels == c].astype(np.float64) for c in range(OLD + NEW)]
    within = np.mean([np.cov(group.T, bias=True) for group in groups], axis=0)
    inverse = np.linalg.inv((1 - 1e-4) * within + 1e-4 * np.eye(DIM))
    rows: list[tuple[np.ndarray, float]] = []
    for group in groups[OLD:]:
        mean = group.mean(axis=0)
        directions = np.mean([h / np.linalg.norm(h) for h in group], axis=0)
        rows.append({
            "class-mean": (mean, 1.0),
            "unit": (directions, 0.0),
            "imprint": (directions / np.linalg.norm(directions), 0.0),
            "lda": (inverse @ mean, -0.5 * mean @ inverse @ mean),
        }[name])  # fmt: skip
    return rows


@pytest.mark.parametrize("name", ["class-mean", "unit", "imprint", "lda"])
def test_rows_are_their_formula(name: str) -> None:
    data = arrival()
    settings: dict[str, Any] = {"init": name}
    if name == "unit":
        settings = {"init": "class-mean", "class_mean": "unit"}
    rows = initialise(Start(**settings, scale="none"), data).rows
    for weight, bias, expected in zip(rows.weight, rows.bias, naive_rows(name, data), strict=True):
        np.testing.assert_allclose(weight, expected[0], rtol=1e-9)
        assert bias == pytest.approx(expected[1])


def test_the_direction_of_a_feature_of_zeros_is_zero() -> None:
    data = arrival()
    own = np.flatnonzero(data.labels == OLD)
    data.features[own[0]] = 0
    rows = initialise(Start(init="class-mean", class_mean="unit", scale="none"), data).rows
    directions = [h / np.linalg.norm(h) for h in data.features[own[1:]].astype(np.float64)]
    np.testing.assert_allclose(rows.weight[0], np.sum(directions, axis=0) / len(own), rtol=1e-9)


def test_least_square_rows_are_those_of_the_head_over_all_data() -> None:
    data = arrival()
    found = initialise(Start(scale="none", lam=0.3), data)
    head = least_squares_head(ClassStatistics.of(data.features, data.labels), 0.3)
    # Not to the bit: kernels add in another order for other numbers of rows.
    np.testing.assert_allclose(found.rows.weight, head.weight[OLD:], atol=1e-12)
    np.testing.assert_allclose(found.rows.bias, head.bias[OLD:], atol=1e-12)
    assert found.lam == 0.3


def norms(weight: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(weight, axis=1))


def test_norms_are_those_of_the_existing_rows() -> None:
    data = arrival()
    raw, found = initialise(Start(scale="none"), data).rows, initialise(Start(scale="norm"), data)
    expected = norms(data.head.weight[:OLD]).mean()
    assert norms(found.rows.weight).mean() == pytest.approx(expected)
    np.testing.assert_allclose(found.rows.weight, found.factor * raw.weight)
    np.testing.assert_allclose(found.rows.bias, found.factor * raw.bias)
    by_row = initialise(Start(scale="row-norm"), data).rows
    np.testing.assert_allclose(norms(by_row.weight), expected)
    np.testing.assert_allclose(by_row.bias / raw.bias, expected / norms(raw.weight))


@pytest.mark.parametrize("scale", ["norm", "row-norm"])
def test_without_existing_rows_the_scale_is_one(scale: Any) -> None:
    data = arrival()
    alone = NewClasses(data.features, data.labels, data.head, 0, OLD + NEW)
    found, raw = initialise(Start(scale=scale), alone), initialise(Start(scale="none"), alone)
    np.testing.assert_array_equal(found.rows.weight, raw.rows.weight)


@pytest.mark.parametrize("scale", SCALES)
def test_a_kept_bias_is_the_random_one_unscaled(scale: Any) -> None:
    data = arrival()
    found = initialise(Start(bias="keep", scale=scale), data)
    np.testing.assert_array_equal(found.rows.bias, data.head.bias[OLD:])
    assert found.shift == 0
    assert not np.array_equal(found.rows.weight, data.head.weight[OLD:])


@pytest.mark.parametrize("calibration", ["leave-one-out", "in-sample"])
@pytest.mark.parametrize("init", [i for i in DATA_DRIVEN if i not in ("fitted", "discriminant")])
def test_calibrated_rows_are_affine_in_the_raw_ones_and_lose_less(
    init: Any, calibration: Any
) -> None:
    data = arrival(unseen=4)
    raw = initialise(Start(init=init, scale="none", lam=0.05), data).rows
    found = initialise(Start(init=init, lam=0.05, calibration=calibration), data)
    np.testing.assert_allclose(found.rows.weight, found.factor * raw.weight)
    np.testing.assert_allclose(found.rows.bias, found.factor * raw.bias + found.shift)
    assert found.loss_after <= found.loss_before


def test_a_new_class_without_a_sample_is_refused() -> None:
    data = arrival()
    kept = data.labels != OLD + 1
    with pytest.raises(ValueError, match=r"no sample of the new classes in head rows \[7\]"):
        initialise(
            Start(), NewClasses(data.features[kept], data.labels[kept], data.head, OLD, OLD + NEW)
        )


@pytest.mark.parametrize("init", DATA_DRIVEN)
@pytest.mark.parametrize("bias", ["write", "keep"])
def test_without_a_row_of_an_earlier_class_calibrated_rows_take_the_norm_of_the_old_ones(
    init: Any, bias: Any
) -> None:
    data = arrival()
    new = data.labels >= OLD
    blind = NewClasses(data.features[new], data.labels[new], data.head, OLD, OLD + NEW)
    found = initialise(Start(init=init, scale="calibrated", bias=bias), blind)
    norm = initialise(Start(init=init, scale="norm", bias=bias), blind)
    np.testing.assert_array_equal(found.rows.weight, norm.rows.weight)
    np.testing.assert_array_equal(found.rows.bias, norm.rows.bias)
    assert (found.factor, found.shift, found.steps) == (norm.factor, 0.0, None)


STARTS: list[dict[str, Any]] = [
    {"init": "least-square"},
    {"init": "least-square", "bias": "keep"},
    {"init": "least-square", "weighting": "sample"},
    {"init": "fitted"},
    {"init": "lda"},
    {"init": "imprint"},
    {"init": "class-mean"},
    {"init": "class-mean", "class_mean": "unit"},
]


def repeated(data: NewClasses, times: int) -> NewClasses:
    """Return the data with each new row so many times."""
    rows = np.repeat(np.arange(len(data.labels)), np.where(data.labels < OLD, 1, times))
    more = replace(data, features=data.features[rows], labels=data.labels[rows])
    return replace(more, groups=repeating(find_groups(more.features, more.labels)))


@pytest.mark.parametrize("settings", STARTS, ids=str)
def test_copies_change_nothing(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    centres = 1.5 * rng.normal(size=(10, 20))
    labels = np.concatenate([np.repeat(np.arange(OLD), 20), np.repeat(np.arange(OLD, 10), 3)])
    features = centres[labels] + 2 * rng.normal(size=(len(labels), 20))
    data = NewClasses(features, labels, Rows(2 * centres, -(centres**2).sum(axis=1)), OLD, 10)
    start = Start(**settings)
    once, often = initialise(start, data), initialise(start, repeated(data, 5))
    assert once.lam == often.lam
    # The fit stops when it hardly moves, not at the minimum.
    close: dict[str, Any] = (
        {"rtol": 1e-3, "atol": 1e-4} if start.init == "fitted" else {"rtol": 1e-6, "atol": 1e-8}
    )
    np.testing.assert_allclose(often.rows.weight, once.rows.weight, **close)
    np.testing.assert_allclose(often.rows.bias, once.rows.bias, **close)
