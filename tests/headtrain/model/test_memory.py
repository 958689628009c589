import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.model import memory as memory_file
from clinit.headtrain.model.memory import (
    Memory,
    first_rows,
    read_memory,
    write_memory,
)

COUNTS = (1, 4, 7, 9, 20)
BACKBONE = {"body": "b" * 64, "transform": "t", "autocast": "off"}


@pytest.fixture
def rows() -> FeatureSet:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(5), COUNTS))
    features = rng.normal(size=(len(labels), 6)) + rng.normal(size=(5, 6))[labels] + 10
    return FeatureSet(features.astype(np.float32), labels, tuple("abcde"))


def part(rows: FeatureSet, start: int, stop: int) -> FeatureSet:
    chosen = (rows.labels >= start) & (rows.labels < stop)
    labels = rows.labels[chosen] - start
    return FeatureSet(rows.features[chosen], labels, rows.class_names[start:stop])


def in_two_parts(rows: FeatureSet) -> Memory:
    old, new = part(rows, 0, 3), part(rows, 3, 5)
    first = Memory.of(old, BACKBONE, held_out=first_rows(old, 1), keep=2, with_variances=True)
    second = Memory.of(new, BACKBONE, held_out=first_rows(new, 1), keep=2, with_variances=True)
    return first.joined(second)


def test_the_shared_covariance_is_the_average_over_classes_of_their_own(rows: FeatureSet) -> None:
    found = Memory.of(rows, BACKBONE)
    own = [np.cov(rows.features[rows.labels == c].T, bias=True) for c in range(1, 5)]
    expected = sum(own) / 5  # a single image has no covariance, but counts as a class
    np.testing.assert_allclose(found.covariance, expected, atol=1e-5)


def test_statistics_that_came_in_parts_are_those_of_all_images(rows: FeatureSet) -> None:
    found, expected = in_two_parts(rows), Memory.of(rows, BACKBONE, with_variances=True)
    for name in ("counts", "means", "covariance", "variances"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one, other, atol=2e-6, err_msg=name)
    assert (found.averaged, found.freedom) == pytest.approx((expected.averaged, expected.freedom))
    other_body = Memory.of(rows, {**BACKBONE, "body": "c" * 64})
    with pytest.raises(ModelError, match="of another backbone: it differs in body"):
        expected.joined(other_body)


def test_the_population_covariance_has_no_bias_of_small_classes() -> None:
    rng = np.random.default_rng(1)
    factor = np.array([[1.0, 0.5], [0.0, 2.0]])
    found = np.zeros((2, 2))
    for _ in range(400):
        labels = np.repeat(np.arange(6), (1, 2, 2, 3, 3, 5))
        features = rng.normal(size=(len(labels), 2)) @ factor
        memory = Memory.of(FeatureSet(features, labels, tuple("abcdef")), BACKBONE)
        found += memory.population_covariance / 400
    np.testing.assert_allclose(found, factor.T @ factor, atol=0.15)


def test_classes_in_another_order_take_all_that_is_theirs_along(rows: FeatureSet) -> None:
    memory = in_two_parts(rows)
    turned = memory.of_rows([4, 0, 2])
    assert turned.class_names == ("e", "a", "c")
    assert turned.counts.tolist() == [20, 1, 7]
    np.testing.assert_array_equal(turned.means, memory.means[[4, 0, 2]])
    assert turned.variances is not None
    assert memory.variances is not None
    np.testing.assert_array_equal(turned.variances, memory.variances[[4, 0, 2]])
    for name in ("held_out", "kept"):
        before, after = getattr(memory, name), getattr(turned, name)
        for place, row in enumerate([4, 0, 2]):
            expected = before.features[before.labels == row]
            np.testing.assert_array_equal(after.features[after.labels == place], expected)
        assert len(after.labels) == sum((before.labels == row).sum() for row in (4, 0, 2))


def test_it_knows_when_the_covariance_is_of_removed_classes_too(rows: FeatureSet) -> None:
    memory = in_two_parts(rows)
    assert memory.exact
    assert memory.of_rows([4, 3, 2, 1, 0]).exact
    fewer = memory.of_rows([0, 1])
    assert not fewer.exact
    assert fewer.averaged == 2
    np.testing.assert_array_equal(fewer.covariance, memory.covariance)


def test_other_classes_stay_and_weigh_as_many_as_there_are(rows: FeatureSet) -> None:
    memory = in_two_parts(rows)
    moved = FeatureSet(rows.features + 1, rows.labels, rows.class_names)
    given = moved.labels >= 3
    two = FeatureSet(moved.features[given], moved.labels[given], moved.class_names)
    fresh = Memory.of(two, BACKBONE)
    found = memory.updated(fresh)
    np.testing.assert_array_equal(found.means[:3], memory.means[:3])
    np.testing.assert_allclose(found.means[3:], memory.means[3:] + 1, atol=1e-5)
    expected = 3 / 5 * memory.covariance + 2 / 5 * fresh.covariance
    np.testing.assert_allclose(found.covariance, expected, atol=1e-6)
    assert not found.exact


def test_variances_of_some_classes_are_kept_beside_shared_ones_of_others(rows: FeatureSet) -> None:
    old, new = part(rows, 0, 3), part(rows, 3, 5)
    one, other = Memory.of(old, BACKBONE, with_variances=True), Memory.of(new, BACKBONE)
    found = one.joined(other).variances
    assert found is not None
    np.testing.assert_array_equal(found[:3], one.variances)
    np.testing.assert_allclose(found[3:], np.tile(np.diag(other.covariance), (2, 1)))


def test_the_first_rows_of_each_class_are_kept(rows: FeatureSet) -> None:
    kept = Memory.of(rows, BACKBONE, keep=3).kept
    assert kept.counts().tolist() == [1, 3, 3, 3, 3]
    for label in range(5):
        expected = rows.features[rows.labels == label][:3]
        np.testing.assert_array_equal(kept.features[kept.labels == label], expected)


def test_a_file_gives_back_what_was_written(rows: FeatureSet, tmp_path: Path) -> None:
    memory, path = in_two_parts(rows), tmp_path / "memory.safetensors"
    write_memory(memory, path)
    found = read_memory(path)
    assert found.tensors().keys() == memory.tensors().keys()
    for name, tensor in memory.tensors().items():
        np.testing.assert_array_equal(found.tensors()[name], tensor)
    assert (found.class_names, found.averaged, found.freedom, found.backbone) == (
        memory.class_names,
        memory.averaged,
        memory.freedom,
        memory.backbone,
    )
    assert memory.num_bytes < path.stat().st_size < memory.num_bytes + 2000
    write_memory(memory, tmp_path / "again.safetensors")
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": np.array([1, 2, 3, 4, -5])}, "counts holds negative numbers"),
        ({"counts": np.ones(5)}, "counts is of type float64 with 1 axes"),
        ({"counts": np.ones(4, int)}, r"counts has shape \(4,\), expected \(5,\)"),
        ({"covariance": np.eye(6, dtype=np.int64)}, "covariance is of type int64 with 2 axes"),
        ({"held_out": np.ones((5, 6, 2), np.float32)}, "held_out is of type float32 with 3 axes"),
        ({"means": np.full((5, 6), np.nan, np.float32)}, "means holds values that are not finite"),
        ({"kept_labels": np.full(9, 7)}, "labels must lie in"),
        ({"freedom": 1e-320}, "freedom is 1e-320"),
        ({"seal": None}, "does not say what it remembers"),
        ({"bytes": b""}, "is not the memory of a model"),
        ({"bytes": b"\x00" * 64}, "is not the memory of a model"),
        ({"bit": -3}, "has changed since it was written"),
    ],
)
def test_a_file_of_what_no_memory_holds_is_refused(
    rows: FeatureSet, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path, memory = tmp_path / "memory.safetensors", in_two_parts(rows)
    write_memory(memory, path)
    with safe_open(path, framework="numpy") as file:
        document = json.loads(file.metadata()[memory_file._KEY])
    content = {k: v for k, v in document.items() if k not in ("format", "sha256")}
    tensors = {n: np.ascontiguousarray(t) for n, t in memory.tensors().items()}
    for name, value in change.items():
        (tensors if name in tensors else content)[name] = value
    content["tensors"] = memory_file._digest(tensors)
    text = memory_file._DOCUMENT.text(content, indent=None) if "bytes" not in change else ""
    save_file(tensors, path, metadata=None if "seal" in change else {memory_file._KEY: text})
    if "bytes" in change:
        path.write_bytes(change["bytes"])
    if "bit" in change:
        written = bytearray(path.read_bytes())
        written[change["bit"]] ^= 1
        path.write_bytes(written)
    with pytest.raises(ModelError, match=message) as refused:
        read_memory(path)
    assert "`clinit remember MODEL IMAGES" in refused.value.remedy
