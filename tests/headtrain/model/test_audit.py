"""Faults that are planted among clean clusters are found, and nothing else."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.model import audit as module
from clinit.headtrain.model.audit import PLACES, Audit, AuditedImages, audit, misfits, near_pairs
from clinit.headtrain.model.images import oddity

NEW = ("dock", "swamp", "tent")
OLD = ("n01440764", "pier", "boat")
DIM, PER_CLASS = 24, 20
CENTRES = 3 * np.random.default_rng(7).normal(size=(6, DIM))
"""Of the old classes, then of the new ones."""


def drawn(centres: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    noise = np.random.default_rng(seed).normal(size=(len(centres) * count, DIM))
    labels = np.repeat(np.arange(len(centres)), count)
    return (centres[labels] + noise).astype(np.float32), labels


def clean(centres: np.ndarray = CENTRES[3:], names: tuple[str, ...] = NEW) -> AuditedImages:
    features, labels = drawn(centres, PER_CLASS, 0)
    paths = [f"{names[label]}/{row}.png" for row, label in enumerate(labels)]
    return AuditedImages(
        rows=FeatureSet(features, labels, names),
        paths=paths,
        splits=["val" if row % 5 == 4 else "train" for row in range(len(labels))],
        digests=paths,
        odd={},
    )


def nearest_mean(centres: np.ndarray, names: tuple[str, ...]) -> Head:
    return Head(centres, -0.5 * (centres**2).sum(axis=1), names)


def old_rows() -> FeatureSet:
    return FeatureSet(*drawn(CENTRES[:3], 10, 1), OLD)


def audited(
    images: AuditedImages, centres: np.ndarray = CENTRES, earlier: FeatureSet | None = None
) -> Audit:
    before = nearest_mean(CENTRES[:3], OLD)
    after = nearest_mean(centres, (*OLD, *images.rows.class_names))
    return audit(images, before, after, old_rows(), earlier or images.rows.nothing(OLD))


def changed(images: AuditedImages, **rows: Any) -> AuditedImages:
    return replace(images, rows=replace(images.rows, **rows))


def test_nothing_is_found_where_nothing_is_odd() -> None:
    # The model answers something to images of any class: in clean clusters always the same.
    found = replace(audited(clean()), known=[])
    assert found.lines == []
    assert found.turned == {"right": 30, "wrong": 0, "answers": {}}


def test_a_known_class_is_found_by_its_answers_or_its_name() -> None:
    centres = np.stack([CENTRES[1], CENTRES[4], CENTRES[5]])
    (by_answers, *others) = audited(clean(centres)).known
    expected = {"class": "dock", "old": "pier", "images": PER_CLASS, "of": PER_CLASS}
    assert by_answers == expected
    assert "dock" not in {each["class"] for each in others}
    mixed = clean(np.stack([CENTRES[:3].mean(axis=0)] * 3), ("Boats"[:4], "Tinca_tinca", "tent"))
    known = {each["class"]: each["old"] for each in audited(mixed).known if not each["images"]}
    assert known == {"Boat": "boat", "Tinca_tinca": "n01440764"}
    before, rows = nearest_mean(centres, ("pier", "dock", "tent")), old_rows().nothing(OLD)
    for row, found in ((1, []), (0, [expected])):  # more images of `dock`, and images of `pier`
        assert audit(clean(centres[[row]], ("dock",)), before, before, rows, rows).known == found


def test_wrong_labels_and_strange_images_are_named() -> None:
    images = clean()
    labels, features = images.rows.labels.copy(), images.rows.features.copy()
    labels[[3, 25]] = [2, 0]
    features[50] = -3 * CENTRES[5]
    wrong = changed(images, labels=labels, features=features)
    found = audited(wrong).misfits
    assert [[each[key] for key in ("image", "class", "nearest", "unit")] for each in found] == [
        ["tent/50.png", "tent", found[0]["nearest"], "squared distance"],
        ["swamp/25.png", "dock", "swamp", "squared distance"],
        ["dock/3.png", "tent", "dock", "squared distance"],
    ]
    assert all(far > near + 0.3 for far, near in (each["scores"] for each in found[1:]))
    digests = [images.paths[30 if row == 3 else row] for row in range(len(images.paths))]
    assert audited(replace(wrong, digests=digests)).misfits[2]["nearest"] == "swamp", "has a copy"
    earlier = FeatureSet(features[[3]], np.array([1]), OLD)
    assert audited(wrong, earlier=earlier).misfits[2]["nearest"] == OLD[1], "learnt before as that"
    rows = changed(images, labels=labels).rows
    unit = rows.features.astype(np.float64) - rows.features.astype(np.float64).mean(axis=0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for row, nearest in enumerate(misfits(rows)[0]):
        others = [(rows.labels == c) & (np.arange(len(unit)) != row) for c in range(3)]
        distances = [np.linalg.norm(unit[row] - unit[each].mean(axis=0)) for each in others]
        assert nearest == np.argmin(distances)


def test_classes_that_look_alike_are_counted() -> None:
    (pair,) = audited(clean(np.stack([CENTRES[3], CENTRES[4], CENTRES[4] + 0.1]))).alike
    assert pair["classes"] == ["swamp", "tent"]
    assert PER_CLASS / 2 < pair["images"] < 2 * PER_CLASS
    far = CENTRES.copy()
    far[0], far[5] = CENTRES[5], 50  # the row of an old class answers the images of `tent`
    pairs = audited(clean(), far).alike
    (taken,) = (each for each in pairs if each["classes"] == ["n01440764", "tent"])
    assert taken["images"] == PER_CLASS
    for each in taken["files"]:
        assert each["image"].startswith("tent/")
        assert each["scores"][0] < each["scores"][1] <= 1


@pytest.mark.parametrize(("smaller", "found"), [(20, [3]), (40, [])])
def test_classes_look_alike_by_a_tenth_of_the_smaller_one(smaller: int, found: list[int]) -> None:
    own = np.array(["ant"] * smaller + ["bee"] * 100)
    answers = np.where(np.arange(len(own)) < 3, "bee", own)
    assert [pair["images"] for pair in module.look_alikes(own, answers)] == found


def test_images_that_repeat_are_found_wherever_they_are() -> None:
    images = clean()
    features, digests = images.rows.features.copy(), [*images.digests]
    features[1] = features[0] + 0.1  # train and train of dock
    features[9] = features[8] - 0.1  # val and train of dock
    features[30] = features[10] * 1.01  # dock and swamp
    digests[45] = digests[41]
    found = audited(replace(changed(images, features=features), digests=digests)).repeated
    assert [(each["images"], each["where"]) for each in found] == [
        (["dock/10.png", "swamp/30.png"], PLACES[0]),
        (["dock/0.png", "dock/1.png"], PLACES[1]),
        (["dock/8.png", "dock/9.png"], PLACES[2]),
        (["tent/41.png", "tent/45.png"], PLACES[1]),
    ]
    expected = []
    distances = np.linalg.norm(features[:, None] - features[None].astype(np.float64), axis=2)
    reach = np.sort(distances, axis=1)[:, 5] / 2
    for i, j in zip(*np.triu_indices(len(features), 1), strict=True):
        if distances[i, j] <= min(reach[i], reach[j]):
            expected.append((int(i), int(j)))
    assert (near_pairs(features), near_pairs(features[:2])) == (expected, [])
    # A set of equals is one row, however large it is.
    equal = np.repeat(features[2::20], 400, axis=0)
    assert len(near_pairs(equal)) == 3 * 399
    rows = FeatureSet(equal, np.repeat([0, 1, 2], 400), NEW)
    names = [f"{n}.png" for n in range(1200)]
    images = replace(clean(), rows=rows, paths=names, digests=names, splits=["train"] * 1200)
    many = audited(images)
    assert [len(each["images"]) for each in many.repeated] == [400] * 3
    assert "0.png = 1.png = 2.png = 3.png = 396 more" in " ".join(many.lines)


def test_images_that_only_count_as_one_are_told_apart_from_repeats() -> None:
    images = clean()
    groups = np.arange(len(images.rows.labels))
    groups[[3, 4]] = 2
    given = changed(images, groups=groups)
    joined = FeatureSet.joined([given.rows, given.rows.nothing()], NEW)
    (found,) = audited(replace(given, rows=joined)).repeated
    assert (found["images"], found["where"]) == ([f"dock/{n}.png" for n in "234"], PLACES[3])


def test_a_copy_in_another_class_stands_before_a_series_and_is_always_named() -> None:
    images = clean()
    groups, features = np.arange(len(images.rows.labels)), images.rows.features.copy()
    groups[:7] = 0
    features[[1, 2, 3, 4, 5, 45]] = features[0]  # six of dock and one of tent
    features[30:35] = features[10:15]
    earlier = FeatureSet(features[[0, 20, 50]], np.array([0, 1, 2]), ("pier", *NEW[1:]))
    found = audited(changed(images, groups=groups, features=features), earlier=earlier)
    first, *pairs = [each["images"] for each in found.repeated if each["where"] == PLACES[0]]
    assert first[:3] == ["a known image of pier", "dock/0.png", "tent/45.png"]
    assert (len(first), len(pairs)) == (8, 5)
    (line,) = (each for each in found.lines if PLACES[0] in each)
    assert "dock/0.png = tent/45.png = " in line
    assert all(" = ".join(each) in line for each in pairs)
    assert not any("swamp/20.png" in each["images"] for each in found.repeated), "seen, not odd"


def test_old_images_that_turn_wrong_are_counted_with_their_answers() -> None:
    centres = CENTRES.copy()
    centres[4] = CENTRES[0] * 1.01  # the row of `swamp` takes most of the first old class
    found, after = audited(clean(), centres), nearest_mean(centres, (*OLD, *NEW))
    logits = old_rows().features @ after.weight.T + after.bias
    wrong = int((logits.argmax(axis=1) != old_rows().labels).sum())
    assert wrong
    assert found.turned == {"right": 30, "wrong": wrong, "answers": {"swamp": wrong}}
    assert f"classified old images now misclassified: {wrong} as swamp" in found.lines[-1]


@pytest.mark.parametrize(
    ("kind", "size", "noise", "why"),
    [
        ("PNG", (200, 20), 60, "200 x 20 pixels"),
        ("PNG", (200, 200), 0, "nearly one colour"),
        ("JPEG", (200, 200), 1, "nearly one colour"),
        ("JPEG", (200, 200), 60, None),
    ],
)
def test_images_that_hardly_show_anything_are_odd(
    kind: str, size: tuple[int, int], noise: int, why: str | None
) -> None:
    grey = np.random.default_rng(0).integers(128 - noise, 129 + noise, (*size[::-1], 3))
    content = io.BytesIO()
    Image.fromarray(grey.astype(np.uint8)).save(content, kind)
    assert oddity(content.getvalue()) == why
    assert oddity(b"no image") is None


def test_many_findings_are_a_few_lines() -> None:
    everything = {f"{place}.png": "1 x 1 pixels" for place in range(99)}
    images = replace(clean(np.stack([CENTRES[1]] * 3)), odd=everything, digests=["same"] * 60)
    lines = audited(images).lines
    assert 3 < len(lines) <= 8
    assert lines[-1].startswith("images that hardly show anything (99): 0.png (1 x 1 pixels), ")
