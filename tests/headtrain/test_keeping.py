"""Runs that keep what the start knew: anchors, batches of all classes, rows from statistics."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest

from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.protocol.experiment import RunData, run_experiment
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.headtrain.protocol.stream.source import Source, no_base
from clinit.headtrain.protocol.study.study import Study
from tests.headtrain.protocol.test_experiment import (
    BASE,
    CONFIG,
    DIM,
    blobs,
    make_base,
    make_head,
    make_new,
)

HELD: list[dict[str, Any]] = [
    {"init": "least-square"},
    {"init": "random", "anchor": "moments", "anchor_strength": 0.02},
    {"init": "least-square", "anchor": "moments", "anchor_strength": 0.5},
    {"init": "class-mean", "anchor": "moments"},
    {"init": "random", "anchor": "moments", "loss": "mse"},
]
SMALL = {**CONFIG, "tasks": 2, "iterations": 12, "eval_every": 6}
DRAWN = {name: value for name, value in SMALL.items() if name != "buffer"} | {
    "old_rows": "statistics"
}


def train(
    *heads: Mapping[str, Any], base: Source | None = None, small: Any = SMALL, **config: Any
) -> list[RunRecord]:
    studies = [Study.of({**small, **config, **head}) for head in heads]
    return run_experiment(RunData(base or make_base(), make_new(), make_head()), studies)


train_drawn = partial(train, small=DRAWN)


@pytest.mark.parametrize(
    ("mix", "old_rows"),
    [
        *(("text", "stored"), ("uniform", "statistics")),
        pytest.param("text", "statistics", marks=pytest.mark.slow),
        pytest.param("uniform", "stored", marks=pytest.mark.slow),
    ],
)
def test_a_held_head_gives_in_a_bank_the_bits_that_it_gives_alone(mix: str, old_rows: str) -> None:
    call = train if old_rows == "stored" else train_drawn
    bank = call(*HELD, mix=mix)
    for record, settings in zip(bank, HELD, strict=True):
        (alone,) = call(settings, mix=mix)
        # Recorded means of losses are rounded by the number of heads, the heads are not.
        np.testing.assert_array_equal(record.head.weight, alone.head.weight)
        np.testing.assert_array_equal(record.head.bias, alone.head.bias)
        kept = [
            [(task.get("anchor"), task.get("statistics_numbers")) for task in each.info["tasks"]]
            for each in (record, alone)
        ]
        assert kept[0] == kept[1]


def test_a_record_names_what_held_the_head_and_what_is_kept() -> None:
    plain, strong = train(HELD[0], HELD[2], mix="text")
    assert not plain.info["config"].keys() & {"anchor", "anchor_strength", "old_rows"}
    assert all("anchor" not in task for task in plain.info["tasks"])
    numbers = [(classes + DIM) * DIM for classes in (BASE, BASE + 4)]
    assert [task["anchor"] for task in strong.info["tasks"]] == [
        {"strength": 0.5, "numbers": each} for each in numbers
    ]
    (drawn,) = train_drawn(HELD[0])
    assert drawn.info["config"]["old_rows"] == "statistics"
    assert "buffer" not in drawn.info["config"] or drawn.info["config"]["buffer"] is None
    told = [(task["buffer_rows"], task["statistics_numbers"]) for task in drawn.info["tasks"]]
    assert told == [(0, each) for each in numbers]
    assert any(f"{numbers[-1]:,} numbers" in note for note in drawn.info["notes"])


def test_random_rows_are_held_as_computed_rows_are_and_by_default_none_is() -> None:
    starts = [{"init": "least-square"}, {"init": "random"}]
    for each in train(*starts):
        assert each.info["config"]["mix"] == "text"
        assert not any(task.get("anchor") for task in each.info["tasks"])
    for each in train(*starts, protocol="keep"):
        applied = [each.info["config"][name] for name in ("mix", "anchor", "schedule")]
        assert applied == ["uniform", "moments", "linear"]
        assert all(len(task["anchor"]["tried"]) == 5 for task in each.info["tasks"])


@pytest.mark.parametrize("settings", HELD[3:], ids=["ce", "mse"])
def test_a_strength_is_chosen_by_the_least_loss_and_by_no_test_row(
    settings: Mapping[str, Any],
) -> None:
    (record,) = train(settings)
    base = replace(make_base(), val=blobs("base", (6,) * BASE, 9, place=7))
    new = replace(make_new(), val=blobs("new", (6,) * 7, 9, place=7))
    (other,) = run_experiment(RunData(base, new, make_head()), [Study.of({**SMALL, **settings})])
    for task, again in zip(record.info["tasks"], other.info["tasks"], strict=True):
        chosen = task["anchor"]
        assert len(chosen["tried"]) == len(chosen["losses"]) == 5
        assert chosen["strength"] == chosen["tried"][int(np.argmin(chosen["losses"]))]
        assert chosen == again["anchor"]


def test_a_run_with_the_chosen_strengths_is_the_run_that_chose_them() -> None:
    (chosen,) = train(HELD[3], tasks=1)
    strength = chosen.info["tasks"][0]["anchor"]["strength"] or 1e-30
    (given,) = train({**HELD[3], "anchor_strength": strength}, tasks=1)
    columns = ["loss", "loss_new", "loss_old"]
    np.testing.assert_allclose(chosen.steps[columns], given.steps[columns], rtol=1e-5, atol=1e-6)


def accuracy_of_old(record: RunRecord) -> float:
    last = record.evaluations.filter(pl.col("task") == 2)
    old = last.filter((pl.col("iteration") == pl.col("iteration").max()) & (pl.col("row") < BASE))
    return float(old["correct"].sum() / old["total"].sum())


def test_an_anchor_keeps_old_classes_of_which_no_row_is_trained_on() -> None:
    naive = {"method": "naive", "lr": 0.3, "init": "least-square", "iterations": 60}
    config = {name: value for name, value in DRAWN.items() if name != "old_rows"}
    free, held = run_experiment(
        RunData(make_base(), make_new(), make_head()),
        [Study.of({**config, **naive}), Study.of({**config, **naive, "anchor": "moments",
                                                  "anchor_strength": 10.0})],
    )  # fmt: skip
    assert accuracy_of_old(held) > accuracy_of_old(free) + 0.2


def test_rows_drawn_from_statistics_keep_old_classes_as_stored_rows_do() -> None:
    settings = {"init": "least-square", "lr": 0.1}
    (stored,) = train(settings, buffer=10**4)
    (drawn,) = train_drawn(settings)
    (none,) = train(settings, buffer=0)
    assert accuracy_of_old(drawn) > accuracy_of_old(none) + 0.2
    assert abs(accuracy_of_old(drawn) - accuracy_of_old(stored)) < 0.1
    new = [[task["initialisation"] for task in each.info["tasks"]] for each in (drawn, stored)]
    for one, other in zip(*new, strict=True):
        assert one["loss_after"] == pytest.approx(other["loss_after"], abs=0.1)


def test_a_diagnosis_of_drawn_rows_is_over_all_rows_seen() -> None:
    seen: list[Any] = []

    def diagnose(statistics: Any, head: Any) -> dict[str, Any]:
        seen.append(statistics)
        return {}

    studies = [Study.of({**DRAWN, "init": "least-square"})]
    run_experiment(RunData(make_base(), make_new(), make_head()), studies, diagnose=diagnose)
    assert [each.totals.tolist() for each in seen] == [
        [20] * BASE + [25] * 4, [20] * BASE + [25] * 7,
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["rehearsal", "statistics"])
def test_a_stream_from_nothing_has_nothing_to_keep_before_its_second_task(method: str) -> None:
    new = make_new()
    source = no_base(new)
    assert source.head is not None
    config = {**(DRAWN if method == "statistics" else SMALL), "tasks": 3, "mix": "uniform"}
    studies = [Study.of({**config, "init": "least-square", "anchor": "moments"})]
    (record,) = run_experiment(RunData(source, new, source.head), studies)
    assert ["anchor" in task for task in record.info["tasks"]] == [False, True, True]


def test_base_classes_without_a_row_are_neither_drawn_nor_held() -> None:
    base = make_base(train=(20, 0, 20, 0, 0, 0, 0, 1))
    studies = [Study.of({**DRAWN, "init": "random", "anchor": "moments", "anchor_strength": 1.0})]
    (record,) = run_experiment(RunData(base, make_new(), make_head()), studies)
    assert record.info["tasks"][0]["statistics_numbers"] == (3 + DIM) * DIM
    nothing = FeatureSet(base.train.features[:0], base.train.labels[:0], base.class_names)
    (none,) = run_experiment(
        RunData(replace(base, train=nothing), make_new(), make_head()), studies
    )
    assert ["anchor" in task for task in none.info["tasks"]] == [False, True]


@pytest.mark.gpu
def test_a_cuda_device_trains_held_heads_and_drawn_rows_as_the_cpu_does() -> None:
    cpu, cuda = (train(*HELD[:3], device=device) for device in ("cpu", "cuda"))
    for one, other in zip(cpu, cuda, strict=True):
        np.testing.assert_allclose(one.steps["loss"], other.steps["loss"], rtol=1e-3, atol=1e-3)
    cpu, cuda = (train_drawn(*HELD, device=device) for device in ("cpu", "cuda"))
    for one, other in zip(cpu, cuda, strict=True):  # other draws of the same rows
        np.testing.assert_allclose(one.steps["loss_new"], other.steps["loss_new"], rtol=0.2, atol=2)
