"""Each gap in the data is said before training starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from clinit.extract.cache.head import Head
from clinit.headtrain.stream import notes as gaps_module
from clinit.headtrain.stream.notes import data_notes
from clinit.headtrain.stream.scenario import Scenario, build_scenario
from clinit.headtrain.stream.source import NONE_EVALUATED, Source
from clinit.headtrain.study import Study
from tests.headtrain.stream.made_sides import BASE, HEAD, NEW, head_of, source

CONFIG = {"tasks": 2, "buffer": 7, "batch_size": 2}


def studies(config: Mapping[str, Any], *heads: Mapping[str, Any]) -> list[Study]:
    return [Study.of({**config, **head}).resolved() for head in heads or [{"init": "random"}]]


def build(
    base: Source = BASE, new: Source = NEW, head: Head = HEAD, config: Mapping[str, Any] = CONFIG
) -> Scenario:
    return build_scenario(base, new, head, Study.of(config).stream)


def notes(
    base: Source = BASE, new: Source = NEW, head: Head = HEAD, config: Mapping[str, Any] = CONFIG
) -> list[str]:
    return data_notes(build(base, new, head, config), base, new, studies(config))


def test_complete_data_need_no_note() -> None:
    assert notes() == []


@pytest.mark.parametrize("size", [25, None])
def test_a_buffer_that_fills_later_or_that_nobody_asked_for_needs_no_note(size: int | None) -> None:
    """The default is larger than most data: the note would be said of every small experiment."""
    assert notes(config={**CONFIG, "buffer": size}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"head": head_of("abcdefgh")},
            [
                "4 of 8 base classes have no training image: they keep their head rows and are"
                " not rehearsed (e, f, g, ...)",
                "4 of 8 base classes have no validation image: they are not evaluated (e, f, g,"
                " ...)",
            ],
        ),
        (
            {"new": source("vwxyz", [0, 5, 5, 5, 5], [2] * 5)},
            ["1 of 5 new classes have no training image: they are left out of the stream (v)"],
        ),
        (
            {"new": source("wxyz", [5] * 4, [2, 0, 2, 2]), "config": {**CONFIG, "tasks": 1}},
            ["1 of 4 new classes have no validation image: they are trained but not evaluated (x)"],
        ),
        (
            {"new": source("wxyz", [5] * 4, [0] * 4), "config": {**CONFIG, "tasks": 1}},
            [
                "4 of 4 new classes have no validation image: they are trained but not evaluated"
                " ({names})",
            ],
        ),
        (
            {"new": source("wxyz", [5, 5, 1, 5], [2] * 4)},
            ["1 of 8 classes have a single training image (y)"],
        ),
        (
            {"new": source("axyz", [5] * 4, [2] * 4)},
            ["1 of 4 new classes have the name of a base class: they are classes of their own (a)"],
        ),
        (
            {"config": {**CONFIG, "tasks": 3}},
            ["4 new classes do not divide into 3 equal tasks: they have 2, 1, 1 classes"],
        ),
        (
            {"config": {**CONFIG, "buffer": 31}},
            [
                "the buffer of 31 rows never fills: the classes before the last task have 30, and"
                " all are kept"
            ],
        ),
        (
            {"config": {**CONFIG, "buffer": 0}},
            ["the buffer is empty (--buffer 0): batches hold new rows only"],
        ),
        (
            {"config": {**CONFIG, "buffer": 3}},
            [
                "the buffer of 3 rows is smaller than the number of classes (6 before the last"
                " task): some classes are not rehearsed"
            ],
        ),
        (
            {"config": {**CONFIG, "batch_size": 32}},
            [
                "a batch takes 16 rows of the new task, but the smallest task has 10: rows come"
                " more than once in a batch"
            ],
        ),
        (
            {"base": replace(BASE, notes=("2 bad images",))},
            ["2 bad images"],
        ),
    ],
)
def test_each_gap_is_said_once(changes: dict[str, Any], expected: list[str]) -> None:
    names = ", ".join(build(**changes).class_names[4:7]) + ", ..."
    assert notes(**changes) == [line.replace("{names}", names) for line in expected]


@pytest.mark.parametrize(
    ("blind", "told"),
    [
        (1, "has no validation image at all: its accuracy on new classes is unknown"),
        (3, "have no validation image at all: their accuracy on new classes is unknown"),
    ],
)
def test_tasks_that_cannot_be_evaluated_share_one_note(blind: int, told: str) -> None:
    new = source("wxyz", [5] * 4, [0] * blind + [2] * (4 - blind))
    config = {**CONFIG, "tasks": 4}
    names = build(new=new, config=config).class_names[4:]
    tasks = sorted(names.index(name) + 1 for name in "wxyz"[:blind])
    which = f"task {tasks[0]}" if blind == 1 else "tasks {}, {} and {}".format(*tasks)
    assert notes(new=new, config=config)[1:] == [f"{which} {told}"]


def test_a_cache_without_a_val_split_needs_one_note() -> None:
    side = replace(source("wxyz", [5] * 4, [0] * 4), notes=(f"x {NONE_EVALUATED}",))
    assert notes(new=side) == [f"x {NONE_EVALUATED}"]


def test_a_base_without_training_images_has_nothing_to_rehearse_in_the_first_task() -> None:
    found = notes(base=source("abcd", [0] * 4, [2] * 4))
    assert "no base class has a training image: the batches of task 1 hold new rows only" in found


def test_images_that_repeat_others_are_counted() -> None:
    twins = source("wxyz", [5] * 4, [2] * 4)  # all rows of a class are the same
    scenario = build(new=twins)
    (told,) = (
        note for note in data_notes(scenario, BASE, twins, studies(CONFIG, {})) if "repeat" in note
    )
    assert "of 20 training images of new classes, 16 repeat others (4 groups" in told
    random = data_notes(scenario, BASE, twins, studies(CONFIG, {"init": "random"}))
    assert not any("repeat" in note for note in random)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ({}, True),
        ({"scale": "norm"}, True),  # its lambda cannot be judged
        ({"scale": "norm", "lam": 0.05}, False),
        ({"init": "class-mean"}, True),
        ({"calibration": "in-sample", "lam": 0.05}, False),
        ({"init": "random"}, False),
        ({"init": "zero"}, False),
    ],
)
def test_single_images_leave_nothing_to_judge_by(start: dict[str, Any], said: bool) -> None:
    alone = source("wxyz", [1] * 4, [2] * 4)
    scenario = build(new=alone)
    found = data_notes(scenario, BASE, alone, studies(CONFIG, start))
    assert any("there is none to leave out" in note for note in found) == said
    several = source("wxyz", [1, 1, 2, 1], [2] * 4)
    several.train.features[2, 1] = 1  # of two rows that are the same, neither can be left out
    found = data_notes(build(new=several), BASE, several, studies(CONFIG, start))
    assert not any("there is none to leave out" in note for note in found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "naive", "buffer": None, "init_rows": None}, True),
        ({"method": "naive", "buffer": 20, "init_rows": "buffer"}, False),
        ({"init_rows": "new"}, True),
        ({"buffer": 0}, True),
        ({"buffer": None, "buffer_per_class": 0}, True),
        ({}, False),
        ({"method": "joint", "buffer": None}, False),
    ],
)
def test_a_calibration_against_nothing_is_said(changes: dict[str, Any], said: bool) -> None:
    config = {**CONFIG, **changes}
    scenario = build(config=config)
    note = (
        "initialisation sees no rows of earlier classes to calibrate new head rows against: they"
        " take the norm of the old ones, as with scale norm"
    )
    calibrated = [{}, {"init": "random"}]
    assert (note in data_notes(scenario, BASE, NEW, studies(config, *calibrated))) == said
    for scale in ("norm", "none"):
        assert note not in data_notes(scenario, BASE, NEW, studies(config, {"scale": scale}))


def test_solves_that_leave_the_gpu_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(gaps_module, "cupy_problem", lambda: "CuPy is not installed")
    assert gaps_module._library_gaps(torch.device("cpu")) == []
    assert gaps_module._library_gaps(cuda) == [
        "CuPy is not installed: statistics and solves are computed on the CPU, with NumPy, and the"
        ' features are copied there (`pip install "clinit[cuda12]"` or `"clinit[cuda13]"`, as the'
        " driver is)"
    ]
    monkeypatch.setattr(gaps_module, "cupy_problem", lambda: None)
    assert gaps_module._library_gaps(cuda) == []


def test_a_buffer_for_initialisation_alone_is_described_as_such() -> None:
    config = {**CONFIG, "method": "naive", "init_rows": "buffer", "buffer": 3}
    notes = "\n".join(data_notes(build(config=config), BASE, NEW, studies(config)))
    assert "some classes are not among its rows" in notes
    assert "rehearsed" not in notes.replace("keep their head rows and are not rehearsed", "")


def test_a_method_with_a_buffer_of_its_own_rehearses() -> None:
    study = Study.of({**CONFIG, "method": "derpp", "buffer": 3}, top=True).resolved()
    scenario = build_scenario(BASE, NEW, HEAD, study.stream)
    notes = "\n".join(data_notes(scenario, BASE, NEW, [study]))
    assert "some classes are not rehearsed" in notes
