import numpy as np
import pytest

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.model.old_rows import WIDENING, memory_of_head

DIM, CLASSES = 8, 40


def made(centre: float = 2.0) -> tuple[Head, FeatureSet, np.ndarray]:
    """Return a collapsed head of classes around a centre, new images around another, the means."""
    rng = np.random.default_rng(0)
    means = 3 * rng.normal(size=(CLASSES, DIM))
    means -= means.mean(axis=0)
    weight = 0.5 * means
    common, middle = rng.normal(size=DIM), centre * rng.normal(size=DIM)
    bias = 7.0 - weight @ middle  # all logits are equal at the middle
    labels = np.repeat(np.arange(60), 40)
    features = 3 * rng.normal(size=(60, DIM))[labels] + rng.normal(size=(len(labels), DIM))
    names = tuple(f"c{row}" for row in range(CLASSES))
    head = Head((weight + common).astype(np.float32), bias.astype(np.float32), names)
    new = FeatureSet(features.astype(np.float32), labels, tuple(map(str, range(60))))
    return head, new, means + middle


def test_the_class_means_behind_a_collapsed_head_are_found() -> None:
    head, new, means = made()
    found = memory_of_head(head, new)
    assert np.corrcoef(found.means.ravel(), means.ravel())[0, 1] > 0.98
    centre = means.mean(axis=0)
    assert np.linalg.norm(found.means.mean(axis=0) - centre) < 0.2 * np.linalg.norm(centre)
    distances = [
        np.square(each - each.mean(axis=0)).sum(axis=1).mean() for each in (found.means, means)
    ]
    assert distances[0] == pytest.approx(distances[1], rel=0.2)
    np.testing.assert_allclose(found.covariance, WIDENING * np.eye(DIM), atol=0.25)


def test_what_all_rows_have_in_common_does_not_count() -> None:
    head, new, _ = made()
    moved = Head(head.weight + 5.0, head.bias + 3.0, head.class_names)
    one, other = memory_of_head(head, new), memory_of_head(moved, new)
    np.testing.assert_allclose(one.means, other.means, atol=1e-3)


@pytest.mark.parametrize("rows", [slice(None, None, 40), slice(1), slice(2)])
def test_the_fewest_images_give_a_covariance(rows: slice) -> None:
    head, new, _ = made()
    labels = new.labels[rows]
    few = FeatureSet(new.features[rows], labels, new.class_names[: labels.max() + 1])
    found = memory_of_head(head, few)
    covariance = found.covariance.astype(np.float64)
    assert np.trace(covariance) > 0
    assert np.linalg.eigvalsh(covariance).min() > -1e-6 * np.trace(covariance)
    assert np.isfinite(found.means).all()
