"""Heads, features and what is shown of them, from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clinit
from clinit.extract.cache.head import Head
from clinit.extract.cache.read import open_cache
from clinit.headtrain.model.export import Export, TrainedRun, export_run
from clinit.headtrain.model.model import open_model
from clinit.headtrain.model.predict import Rejection

STUDY = {"tasks": 2, "iterations": 2, "batch_size": 4, "buffer": 9, "device": "cpu"}


@pytest.fixture(scope="module")
def model(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    return export_run(tiny_run, tmp_path_factory.mktemp("model") / "scenes")


def caches(run: Path) -> tuple[Path, Path]:
    return run.parent / "caches" / "base", run.parent / "caches" / "new"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_saved_head_starts_a_run(tiny_run: Path, tmp_path: Path, suffix: str) -> None:
    base, new = caches(tiny_run)
    stored = clinit.load_cache(base).head
    assert stored is not None
    path = str(tmp_path / f"head{suffix}")  # a path as text
    saved = clinit.save_head(path, torch.from_numpy(stored.weight), stored.bias, list("abc"))
    assert saved.class_names == ("a", "b", "c")
    found = clinit.load_head(path)
    np.testing.assert_array_equal(found.weight, stored.weight)
    runs = clinit.train_heads(base, new, STUDY, head=path)
    assert runs.evaluations.equals(clinit.train_heads(base, new, STUDY).evaluations)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "head.bin"}, "a head is written as .safetensors or .npz, got 'head.bin'"),
        ({"weight": np.ones(3)}, r"weight is float64 \(3,\), expected floats \(classes, dim\)"),
        ({"weight": np.ones((2, 3), int)}, "weight is int64"),
        ({"bias": np.ones(3)}, r"bias is float64 \(3,\), expected floats \(2,\)"),
        ({"bias": np.array([1, np.inf])}, "holds values that are not finite in float32"),
        ({"weight": np.full((2, 3), 1e300)}, "holds values that are not finite in float32"),
        ({"class_names": ["cat"]}, "1 class names, 1 of them different, for 2 rows"),
        ({"class_names": ["cat", "cat"]}, "2 class names, 1 of them different, for 2 rows"),
        ({"class_names": ["", "dog"]}, "class_names must be texts, one per row"),
        ({"class_names": "cat"}, "1 class names"),
    ],
)
def test_what_is_no_head_is_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    given = {"path": "head.npz", "weight": np.ones((2, 3)), "bias": np.zeros(2),
             "class_names": ["cat", "dog"]} | arguments  # fmt: skip
    with pytest.raises(ValueError, match=message):
        clinit.save_head(**{**given, "path": tmp_path / given["path"]})
    assert list(tmp_path.iterdir()) == []


def test_rows_of_features_are_named(tmp_path: Path) -> None:
    weight = np.eye(3, dtype=np.float32)
    head = clinit.save_head(tmp_path / "head.npz", weight, None, ["ant", "bee", "cat"])
    rows = np.array([[0, 2, 1], [3, 0, 0]], dtype=np.float16)
    found = clinit.predict_features(head, rows, top=2)
    assert [[guess.name for guess in each.guesses] for each in found] == [
        ["bee", "cat"],
        ["ant", "bee"],
    ]
    expected = np.exp(rows[0]) / np.exp(rows[0].astype(float)).sum()
    assert found[0].guesses[0].probability == pytest.approx(expected[1], rel=1e-3)
    assert [each.row for each in found] == [0, 1]
    np.save(tmp_path / "rows.npy", rows)
    from_files = clinit.predict_features(
        str(tmp_path / "head.npz"), str(tmp_path / "rows.npy"), top=2
    )
    assert [each.guesses for each in from_files] == [each.guesses for each in found]
    assert clinit.predict_features(head, torch.from_numpy(rows), top=2) == found
    with pytest.raises(ValueError, match=r"features have shape \(2, 2\), expected \(rows, 3\)"):
        clinit.predict_features(head, rows[:, :2])
    with pytest.raises(ValueError, match="top must be positive, got 0"):
        clinit.predict_features(head, rows, top=0)


def test_rows_whose_logits_overflow_are_named_and_do_not_affect_others(tmp_path: Path) -> None:
    head = clinit.save_head(tmp_path / "head.npz", 10 * np.eye(2, 3), None, ["ant", "bee"])
    rows = np.array([[1, 0, 0], [1e38, 0, 0], [0, 1e38, 1e38], [0, np.inf, 0], [0, 1, 1e300]])
    found = clinit.predict_features(head, rows)
    overflow = (
        "its logits overflow: features of this size are not those that the head was trained on"
    )
    assert [each.reason for each in found] == [
        None, overflow, overflow, "its features are not finite", None,
    ]  # fmt: skip
    assert [each.guesses[0].name for each in (found[0], found[4])] == ["ant", "bee"]
    half = clinit.predict_features(head, rows[:1].astype(np.float16))
    assert half[0].guesses == found[0].guesses


def test_rows_of_later_blocks_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.model.head_alone.BLOCK_ROWS", 3)
    head = clinit.save_head(tmp_path / "head.npz", np.eye(2), None, ["ant", "bee"])
    rows = np.random.default_rng(0).standard_normal((8, 2))
    np.save(tmp_path / "rows.npy", rows)
    for given in (rows, tmp_path / "rows.npy"):
        found = clinit.predict_features(head, given)
        assert [each.row for each in found] == list(range(8))
        answers = [each.guesses[0].name == "bee" for each in found]
        assert answers == (rows[:, 1] > rows[:, 0]).tolist()


def test_scores_are_of_the_logits_as_they_were_trained(tmp_path: Path) -> None:
    rows = np.array([[1.0, 0.0], [0.0, 3.0]])
    divided = Head(
        np.eye(2, dtype=np.float32) / 4, np.zeros(2, np.float32), ("ant", "bee"),
        origin={"temperature": {"value": 4.0}},
    )  # fmt: skip
    found = clinit.predict_features(divided, rows, reject=Rejection("max-logit", 2.0))
    assert [each.score for each in found] == [1.0, 3.0]
    assert [each.unknown for each in found] == [True, False]


def test_classes_beyond_the_least_probability_are_in_their_order(tmp_path: Path) -> None:
    head = clinit.save_head(tmp_path / "head.npz", np.eye(4), None, list("abcd"))
    (found,) = clinit.predict_features(head, np.array([[-500.0, 900.0, -200.0, -300.0]]))
    assert [guess.name for guess in found.guesses] == ["b", "c", "d", "a"]


def test_one_path_as_text_is_one_image(tiny_run: Path, model: Export) -> None:
    classifier = clinit.load_model(str(model.path), device="cpu")
    folder = tiny_run.parent / "new" / "val" / "d"
    images = sorted(folder.iterdir())
    for one in (str(images[0]), images[0]):
        assert [each.path for each in classifier.predict(one)] == images[:1]
    for several in (images, [str(each) for each in images], folder, str(folder)):
        assert [each.path for each in classifier.predict(several)] == images
    assert all(each.guesses for each in classifier.predict(folder))
    (gone,) = classifier.predict("gone.jpg")
    assert gone.reason is not None


def test_what_is_shown_of_a_value_fits_a_line_or_two(tiny_run: Path, model: Export) -> None:
    base, _ = caches(tiny_run)
    record = TrainedRun.read(tiny_run).record
    opened = open_model(model.path, device="cpu")
    cache, runs = open_cache(base), clinit.load_runs(tiny_run)
    shown = [
        cache, cache.splits["train"], cache.splits["train"].manifest, clinit.load_cache(base),
        record, opened, opened.memory, model.facts, clinit.load_model(model.path, device="cpu"),
        next(iter(runs)), runs.report, clinit.probe(base, by="lbfgs", c=[0.1]),
    ]  # fmt: skip
    paths = len(str(base)) + len(str(model.path))
    for each in shown:
        assert repr(each).startswith(f"<{type(each).__name__}"), repr(each)
        assert len(repr(each)) < 240 + paths, repr(each)
    assert repr(model.facts) == "<ModelFacts: convnextv2_atto, 5 classes, 2 of them added later>"
    assert repr(cache).startswith(f"<Cache {base}: train ")
