"""What the data lacks is said before training starts, if the user can do something about it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from clinit.extract.cache.head import Head
from clinit.headtrain.protocol.stream.scenario import build_scenario, data_notes
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.study import Study
from tests.headtrain.protocol.stream.made_sides import BASE, HEAD, NEW, head_of, source

CONFIG = {"tasks": 2, "buffer": 7, "batch_size": 2}


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
    return data_notes(scenario, base, new, asked, dict(facts or {}))


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
        ({"base": replace(BASE, notes=("2 bad images",))}, ["2 bad images"]),
        ({"loss": "mse"}, ["squared error aims at logits of 30"]),
        ({"loss": "mse", "facts": {"alignment": {"loss": "mse"}}}, []),
        ({"facts": {"alignment": {"loss": "mse"}}}, ["aligned with mse, not with ce"]),
        ({"shots": 5}, []),
        ({"shots": 6}, ["--shots 6: 4 of 4 new classes have fewer training images, 5 or more"]),
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
