"""Rows that repeat each other, found in the features; rows drawn by class."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads import groups as groups_module, repeats
from clinit.headtrain.heads.closed.ranpac import HELD_OUT, RidgePath
from clinit.headtrain.heads.groups import draw_per_class, held_out_rows, order_by_class, water_level
from clinit.headtrain.heads.repeats import find_groups, groups_of
from clinit.headtrain.probe import protocol
from clinit.headtrain.protocol.experiment import RunData, run_experiment
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.study import Study

Rng = np.random.Generator
Images = tuple[np.ndarray, np.ndarray]
"""Features and labels."""


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng(0)


def photographs(rng: Rng, classes: int = 6, each: int = 5, dim: int = 40) -> Images:
    """Features of `each` different photographs per class, and their labels."""
    labels = np.repeat(np.arange(classes), each)
    return rng.normal(size=(len(labels), dim)) + 2 * rng.normal(size=(classes, dim))[labels], labels


def crops(rng: Rng, images: Images, times: int, noise: float) -> Images:
    """Each row `times` times, at about `noise` of the distance of different ones."""
    features, labels = images
    crop = rng.normal(size=(len(features) * times, features.shape[1])) * noise
    return np.repeat(features, times, axis=0) + crop, np.repeat(labels, times)


@pytest.mark.parametrize(("times", "noise"), [(2, 0.0), (2, 0.2), (8, 0.0), (8, 0.4)])
@pytest.mark.parametrize("each", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_copies_and_crops_are_found_in_any_order(
    rng: Rng, times: int, noise: float, each: int, dtype: type
) -> None:
    features, labels = crops(rng, photographs(rng), times, noise)
    kept = np.flatnonzero((labels > 0) | (np.arange(len(labels)) < each * times))
    kept = rng.permutation(kept)
    found = find_groups(features[kept].astype(dtype), labels[kept])
    _, expected = np.unique(kept // times, return_inverse=True)
    np.testing.assert_array_equal(found[:, None] == found, expected[:, None] == expected)
    assert (found <= np.arange(len(kept))).all()


def narrow(rng: Rng, each: int, dim: int) -> Images:
    """Rows of few dimensions, one class of which is narrow."""
    labels = np.repeat(np.arange(20), each)
    return rng.normal(size=(len(labels), dim)) * np.where(labels == 0, 0.5, 1)[:, None], labels


def distant_kinds(rng: Rng) -> Images:
    features, labels = photographs(rng, classes=10, each=20, dim=64)
    features[:20] += np.repeat(4 * rng.normal(size=(4, 64)), 5, axis=0)
    return features, labels


def outliers(rng: Rng, distance: float) -> Images:
    features, labels = photographs(rng)
    features[::5] += distance
    return features, labels


@pytest.mark.parametrize(
    "made",
    [
        *(partial(photographs, each=each) for each in (1, 2, 3, 20, 60)),
        *(partial(narrow, each=each, dim=dim) for each in (2, 3, 5, 20) for dim in (2, 3, 8)),
        *(distant_kinds, *(partial(outliers, distance=each) for each in (3, 30, 300))),
    ],
)
def test_rows_of_different_photographs_are_groups_of_one(rng: Rng, made: Any) -> None:
    features, labels = made(rng)
    np.testing.assert_array_equal(find_groups(features, labels), np.arange(len(labels)))


@pytest.mark.parametrize("dim", [3, 8, 64])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3, 0.5])
def test_one_row_more_hardly_changes_the_groups_of_other_classes(
    rng: Rng, dim: int, noise: float
) -> None:
    """The groups of at most two pairs of the 127 other rows change: pairs at the threshold."""
    features, labels = photographs(rng, classes=20, each=5, dim=dim)
    again = np.arange(0, 100, 3)
    crop = features[again] + noise * rng.normal(size=(len(again), dim))
    features, labels = np.concatenate([features, crop]), np.concatenate([labels, labels[again]])
    before = find_groups(features, labels)
    for row in rng.choice(len(labels), 10, replace=False):
        kept = np.delete(np.arange(len(labels)), row)
        after, others = find_groups(features[kept], labels[kept]), labels[kept] != labels[row]
        then, now = before[kept][others], after[others]
        assert np.count_nonzero(((then[:, None] == then) != (now[:, None] == now)).any(axis=1)) <= 4


def test_frames_of_a_video_are_a_group_however_long_it_is(rng: Rng) -> None:
    features, labels = photographs(rng, classes=3, each=3)
    steps = np.cumsum(rng.normal(size=(9, 50, 40)) * 0.01, axis=1)
    frames = (features[:, None] + steps).reshape(-1, 40)
    np.testing.assert_array_equal(
        find_groups(frames, np.repeat(labels, 50)), np.arange(450) // 50 * 50
    )


@pytest.mark.parametrize("repeated", [False, True])
def test_a_large_class_is_cut_into_parts_after_a_glance(
    rng: Rng, monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    monkeypatch.setattr(repeats, "GLANCE_ABOVE", 10)
    monkeypatch.setattr(repeats, "MOST_ROWS", 48)
    features, labels = photographs(rng, classes=1, each=24)
    expected = np.arange(24)
    if repeated:
        features, labels = crops(rng, (features, labels), 4, 0.2)
        expected = np.arange(96) // 4 * 4
    np.testing.assert_array_equal(find_groups(features, labels), expected)


def test_copies_that_alone_are_sampled_of_a_class_tell_nothing_of_its_spread(
    rng: Rng, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "SAMPLED", 12)  # the first and the last row of each class
    features, labels = photographs(rng, each=6)
    expected = np.array([0, 0, 2, 2, 2, 0, *range(6, 36)])
    features = features[expected]
    np.testing.assert_array_equal(find_groups(features, labels), expected)


def test_of_large_groups_a_start_sees_some_rows_of_each() -> None:
    labels = np.repeat([0, 1, 2], [600, 400, 5])
    groups = np.concatenate(
        [np.arange(600) // 300, 600 + np.arange(400) // 10, np.arange(1000, 1005)]
    )
    sizes = np.unique(groups[groups_module.thinned(labels, groups)], return_counts=True)[1]
    np.testing.assert_array_equal(sizes, [128] * 2 + [8] * 40 + [1] * 5)
    assert groups_module.thinned(np.zeros(8, dtype=int), np.arange(8) // 4).all()


def test_given_groups_are_those_within_a_class() -> None:
    data = FeatureSet(
        np.zeros((5, 2), dtype=np.float32), np.array([0, 0, 0, 1, 1]), ("a", "b"),
        groups=np.array([7, 3, 7, 7, 7]),
    )  # fmt: skip
    np.testing.assert_array_equal(groups_of(data), [0, 1, 0, 3, 3])


counts_of_classes = st.lists(st.integers(0, 12), min_size=1, max_size=8)


def naive_draw(labels: np.ndarray, quotas: list[int], seed: int) -> list[bool]:
    """Go through the rows in shuffled order, and take each whose class still wants one."""
    left, taken = list(quotas), [False] * len(labels)
    for row in np.random.default_rng(seed).permutation(len(labels)):
        if left[labels[row]]:
            left[labels[row]] -= 1
            taken[row] = True
    return taken


@given(counts=counts_of_classes, seed=st.integers(0, 3), data=st.data())
def test_a_draw_takes_the_first_rows_of_each_class_in_shuffled_order(
    counts: list[int], seed: int, data: st.DataObject
) -> None:
    quotas = [data.draw(st.integers(0, 14)) for _ in counts]
    labels = np.random.default_rng(7).permutation(np.repeat(np.arange(len(counts)), counts))
    drawn = draw_per_class(labels, np.array(quotas), seed)
    assert drawn.tolist() == naive_draw(labels, quotas, seed)
    wanted = np.minimum(counts, quotas)
    assert np.bincount(labels[drawn], minlength=len(counts)).tolist() == wanted.tolist()


@given(counts=counts_of_classes, size=st.integers(0, 100))
def test_the_water_level_is_the_highest_that_does_not_pass_the_size(
    counts: list[int], size: int
) -> None:
    naive = [n for n in range(max(counts) + 1) if sum(min(n, c) for c in counts) <= size]
    assert water_level(np.array(counts), size) == naive[-1]


@pytest.mark.parametrize(("rows", "held"), [(1, 0), (2, 1), (3, 1), (10, 2), (100, 20)])
def test_each_class_gives_its_share_and_keeps_a_row(rows: int, held: int) -> None:
    labels = np.repeat(np.arange(3), rows)
    chosen = held_out_rows(labels, np.arange(len(labels)), 0.2, np.random.default_rng(0))
    random = np.random.default_rng(0)  # as they were drawn before there were groups
    drawn = [random.permutation(np.flatnonzero(labels == label))[:held] for label in range(3)]
    assert np.flatnonzero(chosen).tolist() == sorted(np.concatenate(drawn).tolist())
    assert np.bincount(labels[chosen], minlength=3).tolist() == [held] * 3


CLASSES, PHOTOGRAPHS, COPIES, DIM = 4, 12, 3, 16
IMAGES = np.random.default_rng(1).permutation(np.repeat(np.arange(CLASSES * PHOTOGRAPHS), COPIES))
"""The photograph that each row is a copy of; photographs of a class follow each other."""
LABELS = IMAGES // PHOTOGRAPHS
FEATURES = np.random.default_rng(2).normal(size=(CLASSES * PHOTOGRAPHS, DIM)).astype(np.float32)
NAMES = ("ant", "bee", "cat", "dog")
ROWS = FeatureSet(FEATURES[IMAGES], LABELS, NAMES)
SOURCE = Source(ROWS, FeatureSet(FEATURES[:0], LABELS[:0], NAMES))


def share(held: np.ndarray) -> float:
    """The share of the rows that is held out; no photograph is on both sides."""
    assert not set(IMAGES[held]) & set(IMAGES[~held])
    return float(held.mean())


def rows_with(features: np.ndarray) -> np.ndarray:
    """Which rows these features are of."""
    return np.array([(row == features).all(axis=1).any() for row in ROWS.features])


@pytest.mark.parametrize("fit", [protocol.probe, protocol.first_head])
def test_a_fitted_head_holds_out_whole_groups(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[np.ndarray] = []

    def spied(*given: Any) -> np.ndarray:
        held.append(held_out_rows(*given))
        return held[-1]

    monkeypatch.setattr(protocol, "held_out_rows", spied)
    fit(SOURCE)
    assert share(held[0]) == 2 / PHOTOGRAPHS


def test_a_sweep_holds_out_whole_groups() -> None:
    head = Head(np.zeros((CLASSES, DIM), np.float32), np.zeros(CLASSES, np.float32), NAMES)
    found = RunData(SOURCE, SOURCE, head).held_out(0.25, seed=0).base
    held = rows_with(found.val.features[:])
    assert share(held) == 0.25
    assert len(found.train.labels) == (~held).sum()


def test_ranpac_chooses_lambda_on_other_photographs(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[np.ndarray] = []

    def spied(*given: Any) -> RidgePath:
        judged.append(given[-1])
        return of_rows(*given)

    of_rows = RidgePath.of_rows
    monkeypatch.setattr(RidgePath, "of_rows", spied)
    names = ("eel", "fox")
    base = FeatureSet(-FEATURES[:2], np.arange(2), names)
    head = Head(np.zeros((2, DIM), np.float32), np.zeros(2, np.float32), names)
    asked = {"method": "ranpac", "ranpac_width": 200, "tasks": 1, "device": "cpu"}
    run_experiment(RunData(Source(base, base), Source(ROWS, ROWS), head), [Study.of(asked)])
    assert share(rows_with(judged[0])) == pytest.approx(HELD_OUT, abs=0.02)


def test_rows_are_sorted_by_class_however_large_its_number() -> None:
    for largest in (3, 2**15 - 1, 2**15, 2**16, 2**40):
        assert order_by_class(np.array([largest, 0, largest, -1, 0])).tolist() == [3, 1, 4, 0, 2]
