import numpy as np
import pytest

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.old_rows import old_rows

NAMES = ("a", "b", "c", "d")


def features(counts: tuple[int, ...], names: tuple[str, ...], seed: int = 0) -> FeatureSet:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    rows = rng.normal(size=(len(labels), 3)) + 4 * rng.normal(size=(len(counts), 3))[labels]
    return FeatureSet(rows.astype(np.float32), labels, names)


HEAD = Head(
    np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32), np.zeros(4, np.float32), NAMES
)
NEW = features((6, 6), ("x", "y"), seed=1)


def test_the_best_rows_of_each_class_are_taken() -> None:
    """Class a is in the cache, b is kept, of c there are statistics, of d the head alone."""
    memory = Memory.of(features((0, 14, 5, 0), NAMES), {}, keep=12)
    assert memory.kept.counts().tolist() == [0, 12, 5, 0]  # five are fewer than would be drawn
    kept_b = memory.kept.features[memory.kept.labels == 1]
    given = features((3, 4), ("other", "a"), seed=2)
    found = old_rows("auto", HEAD, memory, NEW, given=given)
    a, b, c, d = (found.rows.features[found.rows.labels == row] for row in range(4))
    np.testing.assert_array_equal(a, given.features[given.labels == 1])
    np.testing.assert_array_equal(b, kept_b)
    np.testing.assert_allclose(c.mean(axis=0), memory.means[2], atol=1e-5)
    assert len(d) >= 2
    assert found.kind == (
        f"4 real rows of the cache, 12 real rows that the model keeps, {len(c)} rows drawn from the"
        f" statistics of old classes, {len(d)} rows drawn from what the head says of old classes"
    )


def test_nothing_is_guessed_where_all_classes_are_remembered() -> None:
    found = old_rows("auto", HEAD, Memory.of(features((5, 5, 5, 5), NAMES), {}), NEW)
    assert "head" not in found.kind


def test_no_rows_can_be_asked_for() -> None:
    found = old_rows("none", HEAD, None, NEW)
    assert (found.kind, len(found.rows.labels)) == ("none", 0)
    assert found.rows.class_names == NAMES


@pytest.mark.parametrize(
    ("choice", "message"),
    [("kept", "keeps no training rows"), ("pseudo", "remembers no images of its classes")],
)
def test_what_the_model_does_not_have_is_refused(choice: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as refused:
        old_rows(choice, HEAD, None, NEW)  # type: ignore[arg-type]
    assert "clinit remember MODEL IMAGES" in refused.value.remedy
    assert f"leave out `--old-rows {choice}`" in refused.value.remedy
