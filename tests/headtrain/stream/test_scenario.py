"""The numbering of an experiment, and the data that it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.errors import CacheError, ClinitError, ExperimentError, HeadError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.headtrain.stream.scenario import (
    Scenario,
    build_scenario,
    drawn_shots,
    shuffled,
    split_into_tasks,
)
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study.parts import Stream
from tests.headtrain.stream.made_sides import BASE, HEAD, NEW, head_of, source

CONFIG = Stream(tasks=2, buffer=7, batch_size=2)


FINGERPRINT = Fingerprint({"backbone": "vit", "weights": "1", "manifest": "m"})


def build(
    base: Source = BASE, new: Source = NEW, head: Head = HEAD, config: Stream = CONFIG
) -> Scenario:
    return build_scenario(base, new, head, config)


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_every_row_has_the_head_row_of_its_class(tasks: int) -> None:
    base, new = source("cab", [1, 2, 3], [1, 0, 2]), source("zxwy", [2, 0, 4, 1], [1, 9, 0, 3])
    scenario = build(base, new, head_of("abcd"), replace(CONFIG, tasks=tasks, seed=3))
    for pool, side in ((scenario.train, "train"), (scenario.val, "val")):
        features = [getattr(each, side).features for each in (base, new)]
        letters = np.concatenate(features)[:, 0].astype(int)
        known = pool.labels >= 0
        named = [ord(scenario.class_names[row]) for row in pool.labels[known]]
        assert named == letters[known].tolist()
        assert {chr(letter) for letter in letters[~known]} <= {"x"}
        np.testing.assert_array_equal(pool.take(np.arange(len(letters)))[:, 0], letters)


def test_new_classes_follow_the_base_task_by_task() -> None:
    scenario = build(config=replace(CONFIG, class_order=tuple("zwyx")))
    assert scenario.class_names == tuple("abcdzwyx")
    assert (scenario.num_base, scenario.num_classes) == (4, 8)
    assert [(task.start, task.stop) for task in scenario.tasks] == [(4, 6), (6, 8)]
    assert scenario.task_of_row.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert scenario.train_counts.tolist() == [5] * 8
    assert scenario.val_counts.tolist() == [2] * 8


def test_a_class_without_training_rows_does_not_arrive() -> None:
    scenario = build(new=source("vwxyz", [0, 5, 5, 5, 5], [2] * 5))
    assert sorted(scenario.class_names[4:]) == list("wxyz")
    assert scenario.val_counts.sum() == 4 * 2 + 4 * 2


def test_a_new_class_with_the_name_of_a_base_class_is_a_class_of_its_own() -> None:
    scenario = build(new=source("axyz", [5] * 4, [2] * 4))
    assert scenario.class_names.count("a") == 2
    assert scenario.train_counts.tolist() == [5] * 8


def test_base_classes_are_matched_with_head_rows_by_name() -> None:
    base = source("dbxx", [2, 3, 0, 0], [1, 1, 0, 0])
    scenario = build(base=base, head=head_of("abcd"))
    assert scenario.train_counts[:4].tolist() == [0, 3, 0, 2]
    assert scenario.class_names[:4] == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("changes", "kind", "message", "remedy"),
    [
        (
            {"head": head_of(None)},
            ExperimentError,
            "the 4 rows of the base head have no class names",
            "--head-classes FILE",
        ),
        (
            {"head": head_of("abcx")},
            ExperimentError,
            r"1 classes of the base cache are not in its head \(d\)",
            "--head-classes FILE",
        ),
        (
            {"head": head_of("abcdaa")},
            HeadError,
            r"more than one row of the same name \(a\)",
            "--head-classes FILE",
        ),
        (
            {"head": head_of("abcd", dim=5)},
            HeadError,
            "reads features of width 5, those of the base cache are 4 wide",
            "head of the backbone",
        ),
        (
            {"new": source("wxyz", [5] * 4, [2] * 4, dim=5)},
            CacheError,
            "new features are 5 wide, those of the base 4",
            "same backbone",
        ),
        (
            {"config": replace(CONFIG, tasks=5)},
            ExperimentError,
            "5 tasks were asked for, but only 4 new classes",
            "--tasks",
        ),
        (
            {
                "base": replace(BASE, fingerprint=FINGERPRINT),
                "head": head_of("abcd", fingerprint="x"),
            },
            HeadError,
            "the head belongs to the backbone x",
            "clinit extract",
        ),
        (
            {
                "base": replace(BASE, fingerprint=FINGERPRINT),
                "new": replace(
                    NEW, fingerprint=Fingerprint({**FINGERPRINT.fields, "weights": "2"})
                ),
            },
            CacheError,
            r"different backbones: weights \(1 / 2\)",
            "same options",
        ),
    ],
)
def test_each_contradiction_is_refused_with_a_remedy(
    changes: dict[str, Any], kind: type[ClinitError], message: str, remedy: str
) -> None:
    if changes.get("base", BASE).fingerprint.fields:
        changes.setdefault("new", replace(NEW, fingerprint=FINGERPRINT))
    with pytest.raises(kind, match=message) as caught:
        build(**changes)
    assert remedy in caught.value.remedy


def test_the_head_that_belongs_to_the_backbone_is_accepted() -> None:
    head = head_of("abcd", fingerprint=FINGERPRINT.backbone_identifier)
    base, new = (replace(side, fingerprint=FINGERPRINT) for side in (BASE, NEW))
    assert build(base=base, new=new, head=head).num_base == 4


def test_shots_are_drawn_per_class_and_more_of_them_hold_the_fewer() -> None:
    labels = np.random.default_rng(0).integers(5, size=100)
    counts = np.bincount(labels)
    marked = [drawn_shots(labels, shots, seed=1) for shots in (1, 3, 200)]
    for rows, shots in zip(marked, (1, 3, 200), strict=True):
        np.testing.assert_array_equal(np.bincount(labels[rows]), np.minimum(counts, shots))
    assert not (marked[0] & ~marked[1]).any()
    assert marked[2].all()
    np.testing.assert_array_equal(marked[1], drawn_shots(labels, 3, seed=1))
    assert not np.array_equal(marked[1], drawn_shots(labels, 3, seed=2))


def test_shots_leave_base_and_validation_rows_alone() -> None:
    whole = build_scenario(BASE, NEW, HEAD, Stream(tasks=2))
    few = build_scenario(BASE, NEW, HEAD, Stream(tasks=2, shots=2))
    np.testing.assert_array_equal(few.train_counts[:4], whole.train_counts[:4])
    np.testing.assert_array_equal(few.train_counts[4:], [2] * 4)
    np.testing.assert_array_equal(few.val_counts, whole.val_counts)
    assert [task.classes.tolist() for task in few.tasks] == [
        task.classes.tolist() for task in whole.tasks
    ]


def test_caches_in_each_others_place_are_asked_about() -> None:
    with pytest.raises(ExperimentError) as caught:
        build_scenario(NEW, BASE, HEAD, Stream(tasks=1))
    assert str(caught.value) == (
        "none of the 4 classes of the base cache is in its head, and all 4 of the new cache are:"
        " are --base and --new swapped?"
    )


@given(
    num_classes=st.integers(1, 60),
    share=st.floats(0, 1),
    first_row=st.integers(0, 20),
    seed=st.integers(0, 5),
)
def test_every_class_arrives_once_and_rows_follow_the_order_of_arrival(
    num_classes: int, share: float, first_row: int, seed: int
) -> None:
    classes = np.arange(num_classes) * 3
    num_tasks = 1 + int(share * (num_classes - 1))
    tasks = split_into_tasks(shuffled(classes, seed), tasks=num_tasks, first_row=first_row)
    assert sorted(np.concatenate([task.classes for task in tasks])) == list(classes)
    assert [task.number for task in tasks] == list(range(1, num_tasks + 1))
    rows = np.concatenate([task.rows for task in tasks])
    np.testing.assert_array_equal(rows, first_row + np.arange(num_classes))
    sizes = [len(task.classes) for task in tasks]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_the_order_depends_on_the_seed() -> None:
    one, same, other = (shuffled(np.arange(30), seed).tolist() for seed in (0, 0, 1))
    assert one == same
    assert sorted(one) not in (one, other)
    assert one != other
