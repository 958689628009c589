import numpy as np
import pytest

from clinit.extract.features import FeatureSet
from clinit.extract.head import Head
from clinit.headtrain.deployed.head_memory import memory_of_head

DIM, CLASSES = 8, 40


def made(scale: float, seed: int = 0) -> tuple[Head, FeatureSet, np.ndarray, np.ndarray]:
    """Return the softmax classifier of normal classes, new images of them, means, covariance."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(DIM, DIM)) / 8 + np.eye(DIM)
    covariance = mixing @ mixing.T
    means = 3 * rng.normal(size=(CLASSES, DIM))
    means -= means.mean(axis=0)
    inverse = np.linalg.inv(covariance)
    weight = scale * means @ inverse
    bias = -0.5 * scale * np.einsum("cd,cd->c", means @ inverse, means) + 7.0
    common = rng.normal(size=DIM)
    labels = np.repeat(np.arange(300), 40)
    centres = 3 * rng.normal(size=(300, DIM))
    features = centres[labels] + rng.normal(size=(len(labels), DIM)) @ mixing.T
    names = tuple(f"c{row}" for row in range(CLASSES))
    head = Head((weight + common).astype(np.float32), bias.astype(np.float32), names)
    new = FeatureSet(features.astype(np.float32), labels, tuple(map(str, range(300))))
    return head, new, means, covariance


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_means_behind_the_classifier_of_normal_classes_are_found(scale: float) -> None:
    head, new, means, covariance = made(scale)
    found = memory_of_head(head, new)
    assert np.corrcoef(found.means.ravel(), means.ravel())[0, 1] > 0.99
    slope = np.polyfit(means.ravel(), found.means.ravel(), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.2)
    np.testing.assert_allclose(found.covariance, covariance, atol=0.15 * covariance.max())


def test_what_all_rows_have_in_common_does_not_count() -> None:
    head, new, _, _ = made(1.0)
    moved = Head(head.weight + 5.0, head.bias + 3.0, head.class_names)
    one, other = memory_of_head(head, new), memory_of_head(moved, new)
    np.testing.assert_allclose(one.means, other.means, atol=2e-2)


def test_one_image_per_class_is_enough_for_a_covariance() -> None:
    head, new, _, _ = made(1.0)
    single = FeatureSet(new.features[::40], new.labels[::40], new.class_names)
    found = memory_of_head(head, single)
    assert np.linalg.eigvalsh(found.covariance.astype(np.float64)).min() > 0
    assert np.isfinite(found.means).all()


def test_a_single_image_leaves_the_means_of_all_classes_where_it_is() -> None:
    head, new, _, _ = made(1.0)
    single = FeatureSet(new.features[:1], new.labels[:1], new.class_names[:1])
    found = memory_of_head(head, single)
    assert np.isfinite(found.means).all()
    assert np.isfinite(found.covariance).all()
