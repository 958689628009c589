"""What a model remembers: statistics in parts, other orders, and the file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.model import memory as remembered
from clinit.headtrain.model.memory import Memory, digest, memory_bytes, owing_nothing, read_memory

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
    first, second = (
        Memory.of(each, BACKBONE, held_out=each.first(1), left_out=owing_nothing(each), added=True)
        for each in (part(rows, 0, 3), part(rows, 3, 5))
    )
    return first.joined(second)


def test_the_shared_covariance_is_the_average_over_classes_of_their_own(rows: FeatureSet) -> None:
    found = Memory.of(rows, BACKBONE)
    own = [np.cov(rows.features[rows.labels == c].T, bias=True) for c in range(1, 5)]
    np.testing.assert_allclose(found.covariance, sum(own) / 5, atol=1e-5)


def test_statistics_that_came_in_parts_are_those_of_all_images(rows: FeatureSet) -> None:
    found, expected = in_two_parts(rows), Memory.of(rows, BACKBONE)
    for name in ("counts", "means", "covariance"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one, other, atol=2e-6, err_msg=name)
    assert (found.averaged, found.freedom) == pytest.approx((expected.averaged, expected.freedom))
    with pytest.raises(ModelError, match="differs in body"):
        expected.joined(Memory.of(rows, {**BACKBONE, "body": "c" * 64}))


def test_the_population_covariance_has_no_bias_of_small_classes() -> None:
    rng, factor = np.random.default_rng(1), np.array([[1.0, 0.5], [0.0, 2.0]])
    found = np.zeros((2, 2))
    for _ in range(400):
        labels = np.repeat(np.arange(6), (1, 2, 2, 3, 3, 5))
        features = rng.normal(size=(len(labels), 2)) @ factor
        memory = Memory.of(FeatureSet(features, labels, tuple("abcdef")), BACKBONE)
        found += memory.population_covariance / 400
    np.testing.assert_allclose(found, factor.T @ factor, atol=0.15)


def test_classes_in_another_order_take_all_that_is_theirs_along(rows: FeatureSet) -> None:
    memory, places = in_two_parts(rows), [4, 0, 2]
    turned = memory.of_rows(places)
    assert turned.class_names == ("e", "a", "c")
    for name in ("counts", "means"):
        np.testing.assert_array_equal(getattr(turned, name), getattr(memory, name)[places])
    for name in ("held_out", "learnt"):
        before, after = getattr(memory, name), getattr(turned, name)
        for place, row in enumerate(places):
            expected = before.features[before.labels == row]
            np.testing.assert_array_equal(after.features[after.labels == place], expected)
    assert (turned.exact, turned.averaged) == (False, 5)  # the covariance is of b and d too
    np.testing.assert_array_equal(turned.covariance, memory.covariance)
    assert memory.of_rows([4, 3, 2, 1, 0]).exact


def test_other_classes_stay_and_stored_rows_count_once(rows: FeatureSet) -> None:
    memory, moved = in_two_parts(rows), replace(rows, features=rows.features + 1)
    fresh = Memory.of(part(moved, 3, 5).named(rows.class_names), BACKBONE)
    found = memory.updated(fresh)
    np.testing.assert_array_equal(found.means[:3], memory.means[:3])
    np.testing.assert_allclose(found.means[3:], memory.means[3:] + 1, atol=1e-5)
    np.testing.assert_allclose(found.covariance, memory.covariance, atol=1e-6)
    assert (found.exact, found.averaged) == (True, 5)
    found = replace(memory, learnt=rows.nothing()).updated(fresh)
    expected = 5 / 7 * memory.covariance + 2 / 7 * fresh.covariance
    np.testing.assert_allclose(found.covariance, expected, atol=1e-6)
    assert not found.exact


def test_a_file_gives_back_what_was_written(rows: FeatureSet, tmp_path: Path) -> None:
    memory, path = in_two_parts(rows), tmp_path / "memory.safetensors"
    memory = replace(memory, learnt=replace(memory.learnt, groups=memory.learnt.labels))
    path.write_bytes(memory_bytes(memory))
    found = read_memory(path)
    assert found.tensors().keys() == memory.tensors().keys()
    for name, tensor in memory.tensors().items():
        np.testing.assert_array_equal(found.tensors()[name], tensor)
    for name in ("class_names", "averaged", "freedom", "exact", "backbone"):
        assert getattr(found, name) == getattr(memory, name)
    assert memory.num_bytes < path.stat().st_size < memory.num_bytes + 2000
    (tmp_path / "again.safetensors").write_bytes(memory_bytes(memory))
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def forged() -> list[Any]:
    """Return changes of a file that keep its seal, with the message of each."""
    rows = FeatureSet(np.ones((5, 6), np.float32), np.arange(5), tuple("abcde"))
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "labels outside": ({"held_out_labels": np.arange(5, 10)}, "contains 5 to 9, expected"),
        "unknown": ({"more": np.zeros(1)}, "array more is unknown"),
        "narrow": ({"left_out": rows.features}, "array left_out is "),
        "names": ({"class_names": ["a"]}, r"array counts is int64 \(5,\), expected"),
    }
    for name, value in (("freedom", "1"), ("averaged", -1), ("backbone", None), ("exact", 0)):
        cases[name] = {name: value}, f"is damaged: .*{name}"
    for name, array in in_two_parts(rows).tensors().items():
        bad = np.nan if array.dtype.kind == "f" else -1
        cases |= {
            f"{name} of another type": ({name: array.astype("u1")}, f"array {name} is uint8"),
            f"{name} in a list": ({name: array[None]}, f"array {name} is .*, expected"),
            f"{name} of too few": ({name: array[:4]}, f"array {name}.* is .*, expected"),
            f"{name} out of range": ({name: np.full_like(array, bad)}, f"array {name} contains"),
        }
        cases[f"no {name}"] = {name: None}, f"array {name} is missing"
    return [pytest.param(*case, id=name) for name, case in cases.items()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seal": None}, "contains no description"),
        ({"bytes": b"\x00" * 64}, "is not a safetensors file"),
        ({"bit": -3}, "has changed since it was written"),
        *forged(),
    ],
)
def test_a_file_of_what_no_memory_holds_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    rows = FeatureSet(np.ones((5, 6), np.float32), np.arange(5), tuple("abcde"))
    path, memory = tmp_path / "memory.safetensors", in_two_parts(rows)
    path.write_bytes(memory_bytes(memory))
    with safe_open(path, framework="numpy") as file:
        content = json.loads(file.metadata()[remembered.METADATA])
    del content["format"], content["sha256"]
    tensors = {n: np.ascontiguousarray(t) for n, t in memory.tensors().items()}
    for name, value in change.items():
        (tensors if name in tensors or name == "more" else content)[name] = value
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    content["tensors"] = digest(tensors)
    text = "" if "bytes" in change else remembered.DOCUMENT.text(content, indent=None)
    save_file(tensors, path, metadata=None if "seal" in change else {remembered.METADATA: text})
    written = bytearray(change.get("bytes") or path.read_bytes())
    if "bit" in change:
        written[change["bit"]] ^= 1
    path.write_bytes(written)
    with pytest.raises(ModelError, match=message) as refused:
        read_memory(path)
    assert "`clinit remember MODEL IMAGES" in refused.value.remedy
