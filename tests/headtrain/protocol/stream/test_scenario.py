"""The numbering of an experiment, the data that it refuses, and what it notes that data lack."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from clinit.errors import CacheError, ClinitError, ExperimentError, HeadError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.headtrain.protocol.stream.scenario import (
    Scenario,
    build_scenario,
    data_notes,
    drawn_shots,
    shuffled,
    split_into_tasks,
)
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.parts import Stream
from clinit.headtrain.protocol.study.study import Study
from tests.headtrain.protocol.stream.made_sides import BASE, HEAD, NEW, head_of, source

CONFIG = Stream(tasks=2, buffer=7, batch_size=2)


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
        letters, known = np.concatenate(features)[:, 0].astype(int), pool.labels >= 0
        named = [ord(scenario.class_names[row]) for row in pool.labels[known]]
        assert named == letters[known].tolist()
        assert {chr(letter) for letter in letters[~known]} <= {"x"}
        np.testing.assert_array_equal(pool.take(np.arange(len(letters)))[:, 0], letters)


def test_new_classes_follow_the_base_task_by_task() -> None:
    """Those without training rows do not arrive; a name that the base has is another class."""
    base, new = source("dbxx", [2, 3, 0, 0], [1, 1, 0, 0]), source("vbzy", [0, 5, 5, 5], [2] * 4)
    scenario = build(base, new, config=replace(CONFIG, class_order=tuple("zyvb"), shots=4))
    assert scenario.class_names == tuple("abcdzyb")
    assert (scenario.num_base, scenario.num_classes) == (4, 7)
    assert [(task.start, task.stop) for task in scenario.tasks] == [(4, 6), (6, 7)]
    assert scenario.task_of_row.tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert scenario.train_counts.tolist() == [0, 3, 0, 2, 4, 4, 4]
    assert scenario.val_counts.tolist() == [0, 1, 0, 1, 2, 2, 2]


WIDE = source("wxyz", [5] * 4, [2] * 4, dim=5)
OF_BACKBONE, OTHER = (
    replace(side, fingerprint=Fingerprint({"backbone": "vit", "weights": weights}))
    for side, weights in ((BASE, "1"), (NEW, "2"))
)
LIKE_BASE = replace(NEW, fingerprint=OF_BACKBONE.fingerprint)
FOREIGN = {"base": OF_BACKBONE, "new": LIKE_BASE, "head": head_of("abcd", fingerprint="x")}


@pytest.mark.parametrize(
    ("changes", "kind", "fact", "remedy"),
    [
        ({"head": head_of(None)}, ExperimentError, "the 4 rows of the base", "--head-classes"),
        ({"head": head_of("abcx")}, ExperimentError, r"not in its head \(d\)", "--head-classes"),
        ({"head": head_of("abcdaa")}, HeadError, r"the same name \(a\)", "--head-classes"),
        ({"head": head_of("abcd", dim=5)}, HeadError, "of width 5, .* of width 4", "base cache"),
        ({"new": WIDE}, CacheError, r"width \(4 / 5\)", "backbone"),
        ({"config": replace(CONFIG, tasks=5)}, ExperimentError, "5 tasks, but", "--tasks"),
        (FOREIGN, HeadError, "the head is for features of x", "clinit extract"),
        ({"base": OF_BACKBONE, "new": OTHER}, CacheError, r"weights \(1 / 2\)", "same options"),
        ({"base": NEW, "new": BASE}, ExperimentError, "--base and --new swapped", "base cache"),
        (
            {"config": replace(CONFIG, class_order=tuple("wxya"))},
            ExperimentError,
            r"1 class not in the new data \(a\)",
            "one per line",
        ),
    ],
)
def test_each_contradiction_is_refused_with_a_remedy(
    changes: dict[str, Any], kind: type[ClinitError], fact: str, remedy: str
) -> None:
    with pytest.raises(kind, match=fact) as caught:
        build(**changes)
    assert remedy in caught.value.remedy


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
    assert not np.array_equal(*drawn_shots(np.repeat([0, 1], 20), 5, seed=1).reshape(2, 20))


@given(
    num_classes=st.integers(1, 60),
    share=st.floats(0, 1),
    first_row=st.integers(0, 20),
    seed=st.integers(0, 5),
)
def test_every_class_arrives_once_and_rows_follow_the_order_of_arrival(
    num_classes: int, share: float, first_row: int, seed: int
) -> None:
    classes, num_tasks = np.arange(num_classes) * 3, 1 + int(share * (num_classes - 1))
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


SETTINGS = {"init": "random", "tasks": 2, "buffer": 7, "batch_size": 2}


def notes(base: Source = BASE, new: Source = NEW, head: Head = HEAD, **changes: Any) -> list[str]:
    facts, study = changes.pop("facts", {}), Study.of({**SETTINGS, **changes}).resolved()
    return data_notes(build_scenario(base, new, head, study.stream), base, new, [study], facts)


WIDER, FEWER = head_of("abcdefgh"), source("vwxyz", [0, 5, 5, 5, 5], [2] * 5)
UNSEEN = "classes have no training image"
LACKING = "classes have no validation image: not evaluated"


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, []),
        ({"method": "naive", "buffer": None}, []),
        ({"head": WIDER}, [f"4 of 8 base {UNSEEN}: not", f"4 of 12 {LACKING} (e, f, g, ...)"]),
        ({"new": FEWER}, [f"1 of 5 new {UNSEEN}: left out (v)"]),
        ({"new": source("wxyz", [5] * 4, [2, 0, 2, 2])}, [f"1 of 8 {LACKING} (x)"]),
        ({"new": source("axyz", [5] * 4, [2] * 4)}, ["new classes have the name of a base class"]),
        ({"base": replace(BASE, notes=("2 bad images",))}, ["2 bad images"]),
        ({"loss": "mse"}, ["squared error aims at logits of 30"]),
        ({"loss": "mse", "facts": {"alignment": {"loss": "mse"}}}, []),
        ({"facts": {"alignment": {"loss": "mse"}}}, ["aligned with mse, not with ce"]),
        ({"shots": 5}, []),
        ({"shots": 6}, ["--shots 6: 4 of 4 new classes have fewer training images, 5 or more"]),
        ({"batch_size": 9999}, ["--batch-size 9,999: an update reads each of"]),
        ({"buffer": 5}, ["--buffer 5 is less than one image for each of the 6 classes"]),
        ({"anchor": "moments"}, ["C d + d^2 = 40 numbers for the 6 classes before the last task"]),
        ({"eval_every": 7, "iterations": 7}, []),
        ({"eval_every": 8, "iterations": 7}, ["--eval-every 8 is more than the 7 updates of a"]),
    ],
)
def test_each_gap_is_noted_once(changes: dict[str, Any], facts: list[str]) -> None:
    found = notes(**changes)
    assert len(found) == len(facts)
    assert all(fact in note for fact, note in zip(facts, found, strict=True))
