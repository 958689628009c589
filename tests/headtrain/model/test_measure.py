"""Classes measured by images that are left out, next to heads that are solved without them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, accuracy
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.new_rows import NewClasses
from clinit.headtrain.heads.start.scale import Initialisation, LeftOut
from clinit.headtrain.model.add import PRICES
from clinit.headtrain.model.addition import Examined, Price, first_left_out
from clinit.headtrain.model.export import export_model
from clinit.headtrain.model.memory import owing_nothing
from clinit.headtrain.model.model import Model, load_model
from clinit.headtrain.model.old_rows import old_rows
from clinit.headtrain.model.predict import Rejection
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.probe.protocol import first_head
from clinit.headtrain.protocol.experiment import started_heads
from clinit.headtrain.protocol.stream.source import Source
from tests.headtrain.model.test_add import added as addition

NAMES = ("x", "y", "z")


def photographs(counts: tuple[int, ...] = (9, 7, 5)) -> FeatureSet:
    """Return features of new classes; the first three images of each show the same."""
    rng, labels = np.random.default_rng(1), np.repeat(np.arange(len(counts)), counts)
    features = rng.standard_normal((len(labels), 12)) + 1.5 * np.eye(12)[labels]
    place = np.concatenate([np.arange(count) for count in counts])
    groups = 100 * labels + np.maximum(place - 2, 0)
    return FeatureSet(features.astype(np.float32), labels, NAMES[: len(counts)], groups)


def solved(rows: FeatureSet, group: int | None, lam: float, classes: int) -> np.ndarray:
    """Return W_LS of all groups but one, each class and each group of a class weighing the same."""
    weights = np.zeros(len(rows.labels))
    for label in np.unique(rows.labels):
        left = {*rows.groups[rows.labels == label].tolist()} - {group}
        for each in left:
            same = rows.groups == each
            weights[same] = 1 / (classes * len(left) * same.sum())
    z = np.column_stack([rows.features.astype(np.float64), np.ones(len(rows.labels))])
    weighted, truth = z * weights[:, None], np.eye(rows.labels.max() + 1)[rows.labels]
    return np.linalg.solve(weighted.T @ z + lam * np.eye(z.shape[1]), weighted.T @ truth).T


def test_added_classes_are_answered_by_rows_that_are_computed_without_each_image(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(export_model(tiny_run, tmp_path / "model").path, device="cpu")
    new, starts, given = photographs(), list[Initialisation](), list[Source]()

    def started(*sides: Any, **settings: Any) -> list[tuple[Head, Initialisation]]:
        found = started_heads(*sides, **settings)
        given.append(sides[2])
        starts.extend(start for _, start in found)
        return found

    monkeypatch.setattr("clinit.headtrain.model.growth.started_heads", started)
    added = addition(model, Source(new, new.nothing()), AddConfig(init="least-square"))
    new = given[0].train  # in another order
    assert new.groups is not None
    (old,) = old_rows(model.head, model.memory, new, new.nothing(), None).drawn
    assert len(old.classes) == 5  # the model remembers all of its classes
    # Two rows on either side of each mean for each direction have the very covariance.
    root = np.linalg.cholesky(model.head.dim * old.covariance)
    rows = np.concatenate([mean + side for mean in old.means for side in (root.T, -root.T)])
    both = FeatureSet(
        np.concatenate([rows, new.features]),
        np.append(np.repeat(np.arange(5), len(rows) // 5), new.labels + 5),
        tuple("abcdexyz"),
        np.concatenate([-1 - np.arange(len(rows)), new.groups]),
    )
    (start,) = starts
    assert start.lam is not None
    assert start.left_out is not None
    left, logits = start.left_out(), []
    for row, group in zip(new.features.astype(np.float64), new.groups, strict=True):
        answers = solved(both, int(group), start.lam, 8)[5:] @ np.append(row, 1.0)
        fixed = model.head.weight @ row + model.head.bias
        logits.append(np.append(fixed, start.factor * answers + start.shift))
    assert left.data.base == 3  # d and e came later
    np.testing.assert_allclose(left.logits[left.labels >= 5], np.array(logits)[:, 5:], 1e-6, 1e-6)
    right = int((np.argmax(logits, axis=1) == new.labels + 5).sum())
    assert added.new == Top1(right, len(new.labels))
    assert added.left_out
    assert not addition(replace(model, memory=None), Source(new, new), AddConfig()).left_out
    assert added.prices == ()
    assert added.model.memory.counts[5:].tolist() == [9, 7, 5]  # all of them are learnt from


def test_a_larger_price_never_costs_new_classes_and_never_exceeds_itself(
    tiny_run: Path, tmp_path: Path
) -> None:
    model = load_model(export_model(tiny_run, tmp_path / "model").path, device="cpu")
    new = photographs()
    added = addition(model, Source(new, new.nothing()), AddConfig(max_old_loss=3.0))
    before, prices = added.old_before, added.prices
    assert [each.points for each in prices] == sorted({*PRICES, 3.0})
    for each, more in pairwise(prices):
        assert each.new.correct <= more.new.correct
    for each in prices:
        assert before.correct - each.old.correct <= each.points / 100 * before.total
    (used,) = (each for each in prices if each.points == 3)
    assert (used.old, used.new) == (added.old, added.new)
    assert {*added.model.facts.history[-1].data["start"]} == {"shrinkage", "quadratic", "scale"}
    alike = [Price(points, Top1(9 - (points != 0), 9), Top1(9, 9)) for points in (0, 2, 3, None)]
    for count, bounds in ((3, ["2 to 3 (3 used)"]), (4, ["2 to 3", "default (used)"])):
        ((_, lines),) = replace(added, prices=tuple(alike[:count])).tables()
        assert [bound.removeprefix("--max-old-loss ") for bound, *_ in lines[2:]] == bounds
    for missed, cost in ((0, "costs no "), (2, "costs 2 ")):
        two = (Price(1, Top1(9, 9), Top1(9 - missed, 9)), alike[3])
        notes = replace(added, prices=two, old_before=Top1(10**6, 10**6)).notes()
        assert any(cost in note for note in notes)


def test_a_first_head_is_measured_by_heads_without_each_image() -> None:
    images = photographs()
    assert images.groups is not None
    single = FeatureSet(
        np.append(images.features, np.ones((1, 12), np.float32), axis=0),
        np.append(images.labels, 3),
        (*NAMES, "alone"),
        np.append(images.groups, 999),
    )
    head, nothing = first_head(Source(single, single.nothing())), single.nothing()
    found = Examined.of(head, first_left_out(single, head), owing_nothing(nothing), nothing, NAMES)
    assert found.new.labels.tolist() == images.labels.tolist()  # no image of the class of one
    logits = []
    for row, group in zip(images.features.astype(np.float64), images.groups, strict=True):
        logits.append(solved(single, int(group), head.origin["lam"], 4) @ np.append(row, 1.0))
    scale = head.origin.get("temperature", 1.0)
    answers = found.new.features @ found.head.weight.T + found.head.bias
    np.testing.assert_allclose(answers, np.array(logits) / scale, rtol=0, atol=1e-5)
    right = int((np.argmax(logits, axis=1) == images.labels).sum())
    assert found.price(1).new == Top1(right, len(images.labels))


def test_what_old_images_owe_stands_beside_left_out_logits_of_new_classes() -> None:
    rng, names = np.random.default_rng(0), tuple("abxy")
    head = Head(rng.normal(size=(4, 3)).astype(np.float32), np.zeros(4, np.float32), names)
    rows, labels, left = rng.normal(size=(6, 3)), np.repeat([2, 3], 3), rng.normal(size=(6, 2))
    data = NewClasses(rows, labels, Rows.of_head(head), 2, 4)
    old = FeatureSet(np.column_stack([rows[:2], [0.5, 0.0]]), np.array([1, 0]), names)
    nothing = FeatureSet(rows, labels, names).nothing()
    left_out = LeftOut(data, np.arange(6), torch.from_numpy(left))
    found, plain = Examined.of(head, left_out, old, nothing, "xy"), rows @ head.weight.T
    for side, expected in (
        (found.new, np.column_stack([plain[:, :2], left])),
        (found.old, plain[:2] - [[0, 0.5, 0, 0], [0] * 4]),
    ):
        logits = side.features @ found.head.weight.T + found.head.bias
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


def test_a_head_is_measured_on_held_out_images_of_either_kind_as_it_is() -> None:
    images = photographs()
    head = first_head(Source(images, images.nothing()))
    held = images.part(np.arange(len(images.labels)) % 2 == 0)
    plain, old = Examined.of(head, None, owing_nothing(held), held), owing_nothing(held)
    mixed = Examined.of(head, first_left_out(images, head), old, images.nothing(), NAMES)
    assert mixed.price(1).old == accuracy(head, held.named(NAMES)) == plain.price(1).new
    assert len(mixed.new.labels) == len(images.labels)


def test_the_score_that_tells_added_classes_without_their_row_is_recorded() -> None:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(3), 50)
    rows = FeatureSet(rng.normal(size=(150, 4)) + 4 * np.eye(4)[labels], labels, NAMES)
    head = Head(np.eye(3, 4, dtype=np.float32), np.zeros(3, np.float32), NAMES)
    known = Examined(head, rows.part(labels < 2), rows.part(labels == 2)).known()
    assert known.images == 150
    assert known.rule in known.levels
    logits, model = rows.features @ head.weight.T, Model(head)
    model = replace(model, facts=replace(model.facts, known=known))
    found = Rejection.at_rate(model, "max-logit", 0.05)
    assert np.mean(logits.max(axis=1) < found.threshold) == pytest.approx(0.05, abs=0.01)
    assert Rejection.at_rate(model).rule == known.rule
    assert Examined(head, rows.first(20), rows.nothing()).known() is None
