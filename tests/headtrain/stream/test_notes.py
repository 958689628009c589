"""What the data lacks is said before training starts, if the user can do something about it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from clinit.extract.cache.head import Head
from clinit.headtrain.stream.notes import data_notes
from clinit.headtrain.stream.scenario import build_scenario
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study.study import Study
from tests.headtrain.stream.made_sides import BASE, HEAD, NEW, head_of, source

CONFIG = {"tasks": 2, "buffer": 7, "batch_size": 2}
SINGLE = source("wxyz", [1] * 4, [2] * 4)
PAIR = source("wxyz", [1, 1, 2, 1], [2] * 4)
PAIR.train.features[2, 1] = 1  # of two rows that are the same, neither can be left out


def notes(
    *starts: Mapping[str, Any],
    base: Source = BASE,
    new: Source = NEW,
    head: Head = HEAD,
    facts: Mapping[str, Any] | None = None,
    **changes: Any,
) -> list[str]:
    config = {**CONFIG, **changes}
    asked = [Study.of({**config, **each}).resolved() for each in starts or [{"init": "random"}]]
    scenario = build_scenario(base, new, head, asked[0].stream)
    return data_notes(scenario, base, new, asked, facts)


LACKING = "classes have no validation image: not evaluated"


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, []),
        ({"method": "naive", "buffer": None}, []),
        (
            {"head": head_of("abcdefgh")},
            [
                "4 of 8 base classes have no training image: not",
                f"4 of 12 {LACKING} (e, f, g, ...)",
            ],
        ),
        (
            {"new": source("vwxyz", [0, 5, 5, 5, 5], [2] * 5)},
            ["1 of 5 new classes have no training image: left out (v)"],
        ),
        ({"new": source("wxyz", [5] * 4, [2, 0, 2, 2])}, [f"1 of 8 {LACKING} (x)"]),
        ({"new": source("axyz", [5] * 4, [2] * 4)}, ["new classes have the name of a base class"]),
        ({"buffer": 3}, ["the buffer of 3 rows is smaller than the number of classes (6 before"]),
        ({"method": "naive", "init_rows": "buffer", "buffer": 3}, ["the buffer of 3 rows is"]),
        ({"base": replace(BASE, notes=("2 bad images",))}, ["2 bad images"]),
        ({"loss": "mse"}, ["squared error aims at logits of 30"]),
        ({"loss": "mse", "facts": {"alignment": {"loss": "mse"}}}, []),
        ({"facts": {"alignment": {"loss": "mse"}}}, ["aligned with mse, not with ce"]),
    ],
)
def test_each_gap_is_noted_once(changes: dict[str, Any], facts: list[str]) -> None:
    found = notes(**changes)
    assert len(found) == len(facts)
    assert all(fact in note for fact, note in zip(facts, found, strict=True))


@pytest.mark.parametrize(
    ("start", "new", "noted"),
    [
        ({}, SINGLE, True),
        ({"scale": "norm"}, SINGLE, True),  # its lambda cannot be judged
        ({"scale": "norm", "lam": 0.05}, SINGLE, False),
        ({"calibration": "in-sample", "lam": 0.05}, SINGLE, False),
        ({"init": "random"}, SINGLE, False),
        ({}, PAIR, False),
    ],
)
def test_single_images_leave_nothing_to_judge_by(
    start: dict[str, Any], new: Source, noted: bool
) -> None:
    assert any("none to leave out" in note for note in notes(start, new=new)) == noted


def test_images_that_repeat_others_are_counted() -> None:
    twins = source("wxyz", [5] * 4, [2] * 4)  # all rows of a class are the same
    assert "of 20 training images of new classes, 16 repeat others" in notes({}, new=twins)[0]


@pytest.mark.parametrize(
    ("changes", "noted"),
    [
        ({"method": "naive", "buffer": None, "init_rows": None}, True),
        ({"method": "naive", "buffer": 20, "init_rows": "buffer"}, False),
        ({"buffer": 0}, True),
        ({"buffer": None, "buffer_per_class": 0}, True),
        ({}, False),
    ],
)
def test_a_calibration_against_nothing_is_noted(changes: dict[str, Any], noted: bool) -> None:
    fact = "no rows of earlier classes to calibrate"
    assert any(fact in note for note in notes({}, {"init": "random"}, **changes)) == noted
    assert not any(fact in note for note in notes({"scale": "norm"}, **changes))
