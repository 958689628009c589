from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from clinit.errors import ExperimentError, HeadError
from clinit.extract.cache.head import read_head
from clinit.headtrain import events
from clinit.headtrain.closed.moments import FeatureMap
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.record.format import (
    HEAD,
    RunRecord,
    final_head,
    read_record,
    write_record,
)
from clinit.headtrain.study.parts import CLOSED_METHODS
from clinit.headtrain.study.study import Study
from tests.headtrain.test_experiment import make_base, make_head, make_new

SMALL: Mapping[str, Mapping[str, Any]] = {
    "ranpac": {"ranpac_width": 60},
    "klda": {"klda_width": 50},
}


def study(method: str, **settings: Any) -> Study:
    small = SMALL.get(method, {})
    return Study.of({"method": method, "tasks": 3, "device": "cpu", **small, **settings})


def run(method: str, **asked: Any) -> RunRecord:
    base, head = asked.pop("base", make_base()), asked.pop("head", make_head())
    extra = {name: asked.pop(name) for name in ("observer", "diagnose") if name in asked}
    (record,) = run_experiment(base, make_new(), head, [study(method, **asked)], **extra)
    return record


def accuracy(record: RunRecord, task: int) -> float:
    end = record.evaluations.filter(pl.col("task") == task)
    return int(end["correct"].sum()) / int(end["total"].sum())


@pytest.mark.parametrize("method", CLOSED_METHODS)
def test_a_closed_form_is_evaluated_once_a_task_over_all_classes_seen(method: str) -> None:
    record = run(method)
    assert record.info["id"] == method
    assert record.points["iteration"].to_list() == [0, 0, 0]
    assert len(record.steps) == 0
    assert min(accuracy(record, task) for task in (1, 2, 3)) > 0.9
    assert record.mistakes is not None
    assert [task["buffer_rows"] for task in record.info["tasks"]] == [0, 0, 0]
    for task in record.info["tasks"]:
        start = task["initialisation"]
        assert start["seconds"] > 0
        assert start["library"] == "numpy"


@pytest.mark.parametrize("method", CLOSED_METHODS)
def test_the_pretrained_head_gives_names_and_nothing_else(method: str) -> None:
    weight = np.random.default_rng(0).normal(size=make_head().weight.shape).astype(np.float32)
    other = run(method, head=replace(make_head(), weight=weight))
    assert other.evaluations.equals(run(method).evaluations)


@pytest.mark.parametrize("method", ["klda", "ranpac"])
def test_the_head_on_its_features_drawn_again_gives_the_counts_of_the_record(
    method: str, tmp_path: Path
) -> None:
    record = run(method)
    write_record(record, tmp_path / "run")
    told = read_head(tmp_path / "run" / HEAD, linear=False).feature_map
    assert told is not None
    assert record.info["feature_map"] == told
    dim, width, seed = told["input_dim"], told["width"], told["seed"]
    made = (
        FeatureMap.relu(dim, width, seed=seed)
        if told["kind"] == "relu"
        else FeatureMap.rff(dim, width, gamma=told["gamma"], seed=seed)
    )
    assert made.description == told
    assert counts_of(record, made) == last_counts(record)


def counts_of(record: RunRecord, mapped: Any) -> list[int]:
    """What the stored head has right, computed from the validation rows."""
    assert record.head is not None
    names = record.classes["name"].to_list()
    found = [0] * len(names)
    for side in (make_base().val, make_new().val):
        features = mapped(side.features.astype(np.float32))
        predicted = (features @ record.head.weight.T + record.head.bias).argmax(1)
        for label, guess in zip(side.labels, predicted, strict=True):
            row = names.index(side.class_names[label])
            found[row] += int(guess == row)
    return found


def last_counts(record: RunRecord) -> list[int]:
    return record.evaluations.filter(pl.col("task") == 3)["correct"].to_list()


@pytest.mark.parametrize(("method", "kind"), [("ranpac", "ReLU"), ("klda", "Fourier")])
def test_a_head_on_random_features_is_no_head_to_start_from(
    method: str, kind: str, tmp_path: Path
) -> None:
    write_record(run(method), tmp_path / "run")
    record = read_record(tmp_path / "run")
    for read in (partial(final_head, record), partial(read_head, tmp_path / "run" / HEAD)):
        with pytest.raises(HeadError) as error:
            read()
        assert "is no linear layer on the features of the backbone: its rows read" in str(
            error.value
        )
        assert f"random {kind} features" in str(error.value)


def test_lambda_of_ranpac_is_recorded_with_the_whole_curve() -> None:
    seen: list[events.Event] = []
    record = run("ranpac", observer=seen.append)
    assert sum(isinstance(event, events.LambdaChosen) for event in seen) == 3
    assert any(isinstance(event, events.Progressed) for event in seen)
    for task in record.info["tasks"]:
        curve: Any = task["lambda_curve"]
        assert len(curve["lam"]) == len(curve["held_out_error"]) == 17
        assert curve["lam_by_accuracy"] in curve["lam"]
        best = np.flatnonzero(
            np.array(curve["held_out_accuracy"]) == max(curve["held_out_accuracy"])
        )
        assert curve["lam_by_accuracy"] in np.array(curve["lam"])[best]
        assert task["initialisation"]["lam"] in curve["lam"]


def test_classes_without_images_are_never_predicted_and_single_images_are_told_of() -> None:
    base = make_base(train=(20, 0, 1, 20, 20, 20, 20, 20))
    for method in CLOSED_METHODS:
        record = run(method, base=base)
        assert record.mistakes is not None
        if method != "ranpac":
            assert 1 not in record.mistakes["predicted"].to_list()
        notes = "\n".join(record.info["notes"])
        assert ("take the one pooled over all classes" in notes) == (method == "fecam")
        assert "left out of a solved head" in notes


def test_runs_that_differ_in_their_loss_share_what_is_learnt() -> None:
    studies = [study("slda", loss=loss) for loss in ("ce", "mse")]
    one, other = run_experiment(make_base(), make_new(), make_head(), studies)
    assert one.evaluations.equals(other.evaluations)
    assert not one.points["loss_new"].equals(other.points["loss_new"])
    alone = run("slda", loss="mse")
    assert alone.points["loss_new"].equals(other.points["loss_new"])


def test_linear_heads_are_diagnosed_and_others_are_refused() -> None:
    record = run("slda", diagnose=lambda statistics, head: {"nc1": float(len(head.bias))})
    assert [task["diagnosis"]["nc1"] for task in record.info["tasks"]] == [11, 13, 15]
    with pytest.raises(ExperimentError, match="measures linear heads on the features, and ranpac"):
        run("ranpac", diagnose=lambda statistics, head: {})


def test_stopping_early_gives_the_numbers_of_the_whole_stream() -> None:
    whole, part = run("ranpac"), run("ranpac", stop_after=1)
    first = whole.evaluations.filter(pl.col("task") == 1)
    assert part.evaluations.equals(first)
    assert part.head is not None
    assert part.head.num_classes == 11
