"""What the data lacks is said before training starts, if the user can do something about it."""

from dataclasses import replace
from typing import Any

import pytest

from clinit.extract.cache.head import Head
from clinit.headtrain.protocol.stream.scenario import build_scenario, data_notes
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.study import Study
from tests.headtrain.protocol.stream.made_sides import BASE, HEAD, NEW, head_of, source

CONFIG = {"init": "random", "tasks": 2, "buffer": 7, "batch_size": 2}


def notes(base: Source = BASE, new: Source = NEW, head: Head = HEAD, **changes: Any) -> list[str]:
    facts, study = changes.pop("facts", {}), Study.of({**CONFIG, **changes}).resolved()
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
