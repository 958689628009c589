"""Rows drawn from statistics, for batches and for starts."""

import numpy as np
import pytest
import torch

from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol.train.heads import LabelledRows
from clinit.headtrain.protocol.train.loop import DrawnFeed
from clinit.headtrain.protocol.train.past import OldClasses

DIM, BATCH, STEPS = 6, 64, 200
LABELS = np.repeat([0, 1, 3], [40, 7, 1])
"""Class 2 has had no row, class 3 a single one."""


def features() -> np.ndarray:
    random = np.random.default_rng(0)
    spread = random.normal(size=(DIM, DIM))
    rows = 3 * random.normal(size=(4, DIM))[LABELS] + random.normal(size=(len(LABELS), DIM))
    return np.asarray((rows @ spread).astype(np.float32))


ROWS = features()
OLD = OldClasses.of(ClassStatistics.of(ROWS, LABELS, num_classes=4))


def covariance() -> np.ndarray:
    """Row by row: the mean over classes, made unbiased by the mean of 1 - 1 / n."""
    total, freedom = np.zeros((DIM, DIM)), 0.0
    for label in (0, 1, 3):
        own = ROWS[label == LABELS].astype(np.float64)
        total += (own - own.mean(0)).T @ (own - own.mean(0)) / len(own) / 3
        freedom += (1 - 1 / len(own)) / 3
    return np.asarray(total / freedom)


def make_feed(seed: int = 5, device: str = "cpu") -> DrawnFeed:
    features, labels = np.full((10, DIM), 7, np.float16), np.arange(10) % 2 + 4
    new = LabelledRows.on(torch.device(device), features, labels)
    batches = torch.from_numpy(np.random.default_rng(1).integers(13, size=(STEPS, BATCH)))
    return DrawnFeed(new, batches, 25, OLD, seed)


def read(feed: DrawnFeed, *stops: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and labels of all steps, announced up to each of `stops` in turn."""
    found, start = [], 0
    for stop in stops:
        feed.prepare(start, stop)
        batches = feed.batches[start:stop]
        found.append((feed.features[batches], feed.labels[batches]))
        start = stop
    return torch.cat([rows for rows, _ in found]), torch.cat([labels for _, labels in found])


def test_what_is_kept_are_means_and_one_covariance() -> None:
    assert OLD.labels.tolist() == [0, 1, 3]
    assert OLD.numbers == 3 * DIM + DIM**2
    np.testing.assert_allclose(OLD.root @ OLD.root, covariance(), rtol=1e-6, atol=1e-6)
    weights = 1 / (3 * np.bincount(LABELS)[LABELS])
    np.testing.assert_allclose(OLD.means.mean(0), weights @ ROWS, rtol=1e-5, atol=1e-5)
    second = (ROWS * weights[:, None]).T @ ROWS
    np.testing.assert_allclose(OLD.second, second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_drawn_rows_have_the_means_and_the_covariance_of_the_statistics(device: str) -> None:
    rows, labels = read(make_feed(device=device), *range(25, STEPS + 1, 25))
    assert rows.device.type == device
    rows, labels = rows.cpu(), labels.cpu()
    expected, drawn = covariance(), []
    for index, label in enumerate(OLD.labels.tolist()):
        own = rows[labels == label].double().numpy()
        off = own.mean(0) - OLD.means[index]
        assert (abs(off) < 5 * np.sqrt(np.diag(expected) / len(own))).all()
        drawn.append(own - OLD.means[index])
    every = np.concatenate(drawn)
    variances = np.outer(np.diag(expected), np.diag(expected)) + expected**2
    gap = abs(every.T @ every / len(every) - expected)
    assert (gap < 5 * np.sqrt(variances / len(every))).all()
    assert len(np.unique(every, axis=0)) == len(every), "each place has a draw of its own"


def test_new_rows_are_the_stored_ones_with_their_labels() -> None:
    feed = make_feed()
    rows, labels = read(feed, 25)
    wanted = feed._schedule[:25]
    new = wanted >= 3
    assert (rows[new] == 7).all()
    assert (labels[new] == (wanted[new] - 3) % 2 + 4).all()
    assert (labels[~new].numpy() == OLD.labels[wanted[~new].numpy()]).all()


def test_draws_follow_the_seed_and_not_how_many_steps_are_announced_at_a_time() -> None:
    one, other = read(make_feed(), 25, 50), read(make_feed(), 1, 2, 5, 10, 20, 45, 50)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])
    assert not torch.equal(one[0], read(make_feed(seed=6), 25, 50)[0])


def test_rows_for_a_start_have_means_and_covariance_exactly() -> None:
    rows, labels = OLD.draw(np.random.default_rng(0))
    assert rows.dtype == np.float32
    counts = np.bincount(labels)
    assert counts[2] == 0
    assert len({*counts[[0, 1, 3]]}) == 1
    found = ClassStatistics.of(rows, labels, num_classes=4)
    np.testing.assert_allclose(found.class_means[[0, 1, 3]], OLD.means, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.within_covariance, covariance(), rtol=1e-4, atol=1e-4)


def test_classes_of_single_rows_are_drawn_at_their_means() -> None:
    alone = OldClasses.of(ClassStatistics.of(ROWS[[0, 41]], np.array([0, 1]), num_classes=2))
    rows, labels = alone.draw(np.random.default_rng(0))
    np.testing.assert_array_equal(rows, ROWS[[0, 41]][labels])
