import math
from typing import Any

import numpy as np
import pytest

from clinit.analysis.metrics.collapse import deviation, neural_collapse
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares_head

Sample = tuple[np.ndarray, np.ndarray]


def sample(classes: int = 6, dim: int = 9, rows: int = 200, dtype: type = np.float64) -> Sample:
    rng = np.random.default_rng(0)
    labels = np.r_[np.arange(classes), rng.integers(0, classes, size=rows)]
    centres = 2 * rng.normal(size=(classes, dim)) + 1
    features: np.ndarray = centres[labels] + 0.5 * rng.normal(size=(len(labels), dim))
    return features.astype(dtype), labels


def head(classes: int, dim: int, seed: int = 1) -> Sample:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(classes, dim)), rng.normal(size=classes)


def transcribed(
    features: np.ndarray, labels: np.ndarray, w: np.ndarray, b: np.ndarray, **more: Any
) -> np.ndarray:
    """The appendix of the paper and its Eq. 1, row by row: NC1 to NC4, D_LS.

    Rows of a group count as one. `rank` is the number of directions of the class means.
    """
    classes, groups = len(w), more.get("groups")
    groups = np.arange(len(labels)) if groups is None else groups
    sizes = {g: int((groups == g).sum()) for g in groups}
    shares, features = np.array([1 / sizes[g] for g in groups]), features.astype(np.float64)
    own = [[*zip(features[labels == c], shares[labels == c], strict=True)] for c in range(classes)]
    counts = [sum(s for _, s in rows) for rows in own]
    means = [sum(s * z for z, s in rows) / n for rows, n in zip(own, counts, strict=True)]
    mu = sum(means) / classes
    within = sum(
        s * np.outer(z - m, z - m) / n / classes
        for rows, m, n in zip(own, means, counts, strict=True)
        for z, s in rows
    )
    between = sum(np.outer(m - mu, m - mu) for m in means) / classes
    values, vectors = np.linalg.eigh(between)
    kept = slice(-more.get("rank", min(classes - 1, len(mu))), None)
    inverse = vectors[:, kept] / values[kept] @ vectors[:, kept].T
    etf = (np.eye(classes) - np.ones((classes, classes)) / classes) / math.sqrt(classes - 1)
    z = np.stack([m - mu for m in means], axis=1)
    weights = shares / (np.array(counts) * classes)[labels]
    extended, target = np.c_[features, np.ones(len(features))], np.eye(classes)[labels]
    second = extended.T * weights @ extended + 0.05 * np.eye(len(mu) + 1)
    best = np.linalg.solve(second, extended.T * weights @ target).T

    def loss(head: np.ndarray) -> float:
        errors = ((extended @ head.T - target) ** 2).sum(1)
        return float(weights @ errors + 0.05 * (head**2).sum()) / 2

    return np.array(
        [
            np.trace(within @ inverse) / classes,
            np.linalg.norm(w @ w.T / np.linalg.norm(w @ w.T) - etf),
            np.linalg.norm(w @ z / np.linalg.norm(w @ z) - etf),
            np.linalg.norm(b + w @ mu),
            loss(np.c_[w, b]) - loss(best),
        ]
    )


def metrics(
    features: np.ndarray, labels: np.ndarray, w: np.ndarray, b: np.ndarray, **more: Any
) -> np.ndarray:
    statistics = ClassStatistics.of(features, labels, num_classes=len(w), **more)
    found = neural_collapse(statistics, Rows(w, b), dtype=features.dtype.name)
    excess = deviation(statistics, Rows(w, b), lam=0.05)
    return np.array([found.nc1, found.nc2, found.nc3, found.nc4, excess.d_ls])


def normalised(features: np.ndarray) -> np.ndarray:
    """Behind a LayerNorm, the coordinates add up to zero."""
    centred = features - features.mean(axis=1, keepdims=True)
    return np.asarray(centred / centred.std(axis=1, keepdims=True))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("behind", [np.asarray, normalised, lambda z: np.maximum(z, 0)])
@pytest.mark.parametrize(
    ("classes", "dim", "rows"),
    [(6, 9, 200), (10, 9, 200), (30, 9, 200), (2, 9, 200), (6, 9, 0), (6, 40, 20)],
)
def test_the_metrics_are_those_of_the_transcription(
    classes: int, dim: int, rows: int, behind: Any, dtype: type, grouped: bool
) -> None:
    features, labels = sample(classes, dim, rows)
    rounded, groups = behind(features).astype(dtype), None
    if grouped:  # the first row of each class three times
        chosen = np.r_[np.arange(len(labels)), np.arange(classes), np.arange(classes)]
        rounded, labels, groups = rounded[chosen], labels[chosen], chosen
    w, b = head(classes, dim)
    rank = min(classes - 1, dim - (behind is normalised))
    expected = transcribed(rounded, labels, w, b, groups=groups, rank=rank)
    found = metrics(rounded, labels, w, b, groups=groups)
    assert found[0] >= 0
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_a_class_without_rows_is_left_out() -> None:
    features, labels = sample(6, 9)
    w, b = head(6, 9)
    apart = np.where(labels >= 3, labels + 1, labels)
    more = Rows(np.insert(w, 3, 7.0, axis=0), np.insert(b, 3, 7.0))
    wider = metrics(features, apart, more.weight, more.bias)
    np.testing.assert_allclose(wider, metrics(features, labels, w, b), rtol=1e-12)
    found = deviation(ClassStatistics.of(features, apart, num_classes=7), more, lam=0.05)
    expected = deviation(ClassStatistics.of(features, labels), Rows(w, b), lam=0.05)
    assert found.size == pytest.approx(expected.size)
    assert np.isnan(found.per_class).tolist() == [each == 3 for each in range(7)]


@pytest.mark.parametrize(("classes", "dim"), [(20, 6), (20, 18), (20, 19), (20, 30)])
def test_no_head_is_below_the_floor_and_a_projected_etf_reaches_it(classes: int, dim: int) -> None:
    basis, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(classes, classes)))
    simplex = (np.eye(classes) - 1 / classes) @ basis.T
    projector, _ = np.linalg.qr(simplex[:, : min(dim, classes - 1)])
    weight = np.c_[projector, np.zeros((classes, max(0, dim - classes + 1)))]
    features, labels = sample(classes, dim)
    statistics = ClassStatistics.of(features, labels)
    found = neural_collapse(statistics, Rows(weight, np.zeros(classes)))
    assert found.nc2 == pytest.approx(found.nc2_floor, abs=1e-12)
    other = neural_collapse(statistics, Rows(*head(classes, dim)))
    assert other.nc2 > other.nc2_floor
    assert other.nc3 > other.nc3_floor


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e200])
@pytest.mark.parametrize("where", ["everywhere", "one weight", "one bias"])
def test_a_head_that_is_not_finite_has_no_metrics(value: float, where: str) -> None:
    features, labels = sample(6, 9)
    w, b = head(6, 9)
    if where == "one bias":
        b[2] = value
    else:
        w[slice(None) if where == "everywhere" else 3] = value
    found = neural_collapse(ClassStatistics.of(features, labels), Rows(w, b))
    assert np.isfinite(found.nc1)
    assert np.isnan([found.nc2, found.nc3, found.nc4]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_weak_direction_is_no_rounding(dtype: type) -> None:
    """1,000 times weaker than the others, far above the rounding of either type."""
    features, labels = sample(12, 9, rows=600)
    features[:, 0] /= 1000
    w, b = head(12, 9)
    statistics = ClassStatistics.of(features.astype(dtype), labels)
    found = neural_collapse(statistics, Rows(w, b), dtype=np.dtype(dtype).name)
    assert found.rank == 9
    assert found.nc1 == pytest.approx(transcribed(features, labels, w, b)[0], rel=0.1)


def test_nc1_of_classes_whose_means_are_the_same_is_not_zero() -> None:
    features, labels = np.full((23, 3), 0.1), np.arange(23) % 4
    assert np.isnan(metrics(features, labels, *head(4, 3))[0])


CLASSES, DIM = 5, 7


def skewed(mean: float = 1.0) -> Sample:
    rng = np.random.default_rng(0)
    labels = rng.choice(CLASSES, size=300, p=np.arange(1, 6) / 15)
    return rng.normal(size=(CLASSES, DIM))[labels] + rng.normal(size=(300, DIM)) + mean, labels


def test_the_deviation_survives_a_mean_far_larger_than_the_spread() -> None:
    data = *skewed(mean=100.0), *head(CLASSES, DIM, 0)
    assert metrics(*data)[4] == pytest.approx(transcribed(*data)[4], rel=1e-10)


def test_the_size_is_that_of_the_extended_second_moment() -> None:
    features, labels = skewed()
    weight, bias = head(CLASSES, DIM, 0)
    z = np.c_[features, np.ones(len(features))]
    second, extended = z.T @ z / len(z) + 0.05 * np.eye(DIM + 1), np.c_[weight, bias]
    statistics = ClassStatistics.of(features, labels, weighting="sample")
    found = deviation(statistics, Rows(weight, bias), lam=0.05)
    assert found.size == pytest.approx(0.5 * np.trace(extended @ second @ extended.T))
    assert found.relative == found.d_ls / found.size


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e-3])
def test_the_angle_to_least_squares_does_not_depend_on_the_scale(scale: float) -> None:
    statistics = ClassStatistics.of(*skewed())
    weight, bias = head(CLASSES, DIM, 0)
    best = least_squares_head(statistics, 0.05)
    found = deviation(statistics, Rows(scale * weight, scale * bias), lam=0.05)
    least = min(
        deviation(statistics, Rows(c * weight, c * bias), lam=0.05).d_ls
        for c in np.linspace(-0.05, 0.05, 2001)
    )
    assert found.angle == pytest.approx(least / found.least, rel=1e-4)
    own = deviation(statistics, Rows(scale * best.weight, scale * best.bias), lam=0.05)
    assert own.angle == pytest.approx(0, abs=1e-9)
