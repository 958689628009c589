import numpy as np
import pytest
from scipy import stats

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.old_rows import pseudo_features, root, whitened
from clinit.headtrain.statistics.class_statistics import ClassStatistics
from clinit.headtrain.statistics.solve import least_squares_head

DIM = 5


@pytest.fixture
def memory() -> Memory:
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(4), 30)
    mixing = rng.normal(size=(DIM, DIM))
    features = rng.normal(size=(120, DIM)) @ mixing + 3 * rng.normal(size=(4, DIM))[labels]
    return Memory.of(FeatureSet(features.astype(np.float32), labels, tuple("abcd")), {})


def statistics(rows: FeatureSet) -> ClassStatistics:
    return ClassStatistics.of(rows.features, rows.labels, num_classes=len(rows.class_names))


def test_their_class_means_are_those_remembered(memory: Memory) -> None:
    found = statistics(pseudo_features(memory, 6, seed=0)).class_means
    np.testing.assert_allclose(found, memory.means, atol=1e-6)


def test_with_enough_rows_their_covariance_is_that_of_the_population(memory: Memory) -> None:
    found = statistics(pseudo_features(memory, 4, seed=0)).within_covariance
    np.testing.assert_allclose(found, memory.population_covariance, rtol=1e-4, atol=1e-4)


def test_so_their_least_squares_are_the_same_whatever_the_seed(memory: Memory) -> None:
    one, two = (
        least_squares_head(statistics(pseudo_features(memory, 8, seed=seed)), 0.1)
        for seed in (0, 1)
    )
    np.testing.assert_allclose(one.weight, two.weight, atol=1e-5)
    drawn = [pseudo_features(memory, 8, seed=seed).features for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).mean() > 0.9


def test_they_are_normal_along_any_direction(memory: Memory) -> None:
    rows = pseudo_features(memory, 400, seed=0)
    direction = np.arange(1.0, DIM + 1)
    centred = (rows.features - memory.means[rows.labels]) @ direction
    deviation = np.sqrt(direction @ memory.population_covariance @ direction)
    assert stats.kstest(centred[:200] / deviation, "norm").pvalue > 0.01


def test_classes_of_which_nothing_is_known_are_left_out(memory: Memory) -> None:
    nothing = FeatureSet(np.empty((0, DIM), np.float32), np.empty(0, np.int64), ("x", "y"))
    both = Memory.of(nothing, {}).joined(memory)
    drawn = pseudo_features(both, 4, seed=0)
    assert drawn.counts().tolist() == [0, 0, 4, 4, 4, 4]
    np.testing.assert_allclose(both.population_covariance, memory.population_covariance)


def test_known_variances_widen_a_class(memory: Memory) -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(2), 200)
    spread = np.where(labels == 1, 4.0, 1.0)[:, None]
    rows = FeatureSet(rng.normal(size=(400, DIM)) * spread, labels, ("calm", "wide"))
    drawn = pseudo_features(Memory.of(rows, {}, with_variances=True), 200, seed=0)
    deviations = [drawn.features[drawn.labels == label].std() for label in (0, 1)]
    assert deviations[0] == pytest.approx(1.0, abs=0.25)
    assert deviations[1] == pytest.approx(4.0, abs=0.5)


def test_few_rows_are_drawn_without_being_whitened() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 7))
    np.testing.assert_array_equal(whitened(noise), noise)


def test_the_root_of_a_covariance_of_low_rank_is_real() -> None:
    factor = np.random.default_rng(0).normal(size=(6, 2))
    covariance = factor @ factor.T
    np.testing.assert_allclose(root(covariance) @ root(covariance), covariance, atol=1e-10)
