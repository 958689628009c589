"""Arrays in memory, where a feature cache is expected."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import clinit
from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.protocol.stream.source import Source

STUDY: dict[str, Any] = {"tasks": 2, "iterations": 5, "batch_size": 8, "device": "cpu"}
DIM = 6


def drawn(classes: list[str], rows: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(classes, rows)
    centres = {name: np.random.default_rng(ord(name)).normal(size=DIM) for name in "abcdefg"}
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIM))
    return (np.stack([centres[name] for name in labels]) * 3 + noise), labels


def made(classes: list[str], **rest: Any) -> Source:
    return clinit.Features(*drawn(classes), *drawn(classes, 5, seed=1), **rest)


def test_arrays_train_as_caches_do(tmp_path: Path) -> None:
    base, new = made(["a", "b", "c"]), made(["d", "e", "f", "g"])
    fitted = clinit.LeastSquaresClassifier().fit(base.train.features, base.train.labels)
    head = fitted.coef_, fitted.intercept_
    runs = clinit.train(base, new, head=head, init="class-mean", **STUDY)
    assert runs.table()["acc_all"].item() > 60
    for side, name in ((base, "base"), (new, "new")):
        for part, rows in (("train", side.train), ("val", side.val)):
            np.savez(tmp_path / f"{name}-{part}.npz", features=rows.features, labels=rows.labels)
    whole = clinit.train(base, new, head=head, out=tmp_path / "runs", init="class-mean", **STUDY)
    assert whole.evaluations.equals(runs.evaluations)
    other = made(["d", "e", "f", "g"], groups=np.arange(48) // 2)
    with pytest.raises(clinit.ClinitError, match="was made with other data"):
        clinit.train(base, other, head=head, out=tmp_path / "runs", init="class-mean", **STUDY)


def rows_of(source: Source) -> list[Any]:
    sets: list[FeatureSet] = [source.train, source.val]
    return [(each.features.tolist(), each.labels.tolist(), each.class_names) for each in sets]


def test_every_library_gives_the_same_features() -> None:
    (rows, names), numbers = drawn(["a", "b"]), np.repeat([0, 1], 12)
    expected = rows_of(clinit.Features(rows, names, rows[:3], names[:3]))
    frame = pl.DataFrame(rows, schema=list("uvwxyz"))
    for X, y in (  # noqa: N806
        (torch.from_numpy(rows), names.tolist()),
        (frame, pl.Series(names)),
        (rows.tolist(), names.astype(object)),
    ):
        assert rows_of(clinit.Features(X, y, X[:3], y[:3])) == expected
    named = clinit.Features(rows, numbers, rows[:3], numbers[:3], class_names=["a", "b"])
    assert rows_of(named) == expected
    assert clinit.Features(rows, numbers).class_names == ("0", "1")
    assert clinit.Features(rows, names, class_names=["b", "a", "c"]).train.labels[0] == 1


def test_groups_of_arrays_are_groups_of_rows() -> None:
    (rows, names), groups = drawn(["a", "b"]), np.repeat(["x", "y", "z", "w"], 6)
    found = clinit.Features(rows, names, groups=groups).train.groups
    np.testing.assert_array_equal(found, np.unique(groups, return_inverse=True)[1])


ROWS, NAMES = drawn(["a", "b"])
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((ROWS[0], NAMES), {}, r"X is float64 \(6,\), expected numbers \(rows, dim\)"),
    ((ROWS, NAMES[1:]), {}, r"y is <U1 \(23,\), expected integers from 0 or texts \(24,\)"),
    ((ROWS, NAMES, ROWS[:, 1:], NAMES), {}, r"X_val is float64 \(24, 5\), expected numbers"),
    ((ROWS * np.nan, NAMES), {}, "X contains values that are not finite in float32, in rows 0, 1"),
    ((ROWS, NAMES), {"class_names": ["a"]}, "labels without a name in class_names: b"),
    ((ROWS, NAMES), {"class_names": ["a", "a"]}, "names more than once: a"),
    ((ROWS, NAMES, ROWS, np.zeros(24, int)), {}, "one has texts, the other integers"),
    ((ROWS, ROWS[:, 0]), {}, r"y is float64 \(24,\), expected integers from 0 or texts"),
]


@pytest.mark.parametrize(("given", "rest", "message"), REFUSED)
def test_wrong_arrays_are_refused(
    given: tuple[Any, ...], rest: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        clinit.Features(*given, **rest)


def test_a_head_of_arrays_needs_classes_and_features_one_backbone() -> None:
    base, new = made(["a", "b"]), made(["c", "d"], backbone="other")
    head = np.ones((2, DIM)), np.zeros(2)
    with pytest.raises(ValueError, match="no base classes"):
        clinit.train(None, new, head=head, **STUDY)
    with pytest.raises(ValueError, match="the head has 3 rows, and the base has 2 classes"):
        clinit.train(base, new, head=(np.ones((3, DIM)), np.zeros(3)), **STUDY)
    with pytest.raises(clinit.ClinitError, match="backbone"):
        clinit.train(base, new, head=head, **STUDY)
    same = made(["c", "d"], backbone=base)
    assert len(clinit.train(base, same, head=head, init="random", **STUDY)) == 1
