from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file

from clinit.errors import ExperimentError, HeadError
from clinit.extract.cache.head import read_head
from clinit.headtrain.heads.closed.ranpac import FeatureMap
from clinit.headtrain.protocol.experiment import RunData, run_experiment
from clinit.headtrain.protocol.record.format import (
    HEAD,
    RunRecord,
    final_head,
    read_record,
    write_record,
)
from clinit.headtrain.protocol.study.parts import CLOSED_METHODS
from clinit.headtrain.protocol.study.study import Study
from clinit.observer import Event, Progressed
from tests.headtrain.protocol.test_experiment import make_base, make_head, make_new

SMALL: Mapping[str, Mapping[str, Any]] = {"ranpac": {"ranpac_width": 60}}


def study(method: str, **settings: Any) -> Study:
    small = SMALL.get(method, {})
    return Study.of({"method": method, "tasks": 3, "device": "cpu", **small, **settings})


def run(method: str, **asked: Any) -> RunRecord:
    base, head = asked.pop("base", make_base()), asked.pop("head", make_head())
    extra = {name: asked.pop(name) for name in ("observer", "diagnose") if name in asked}
    (record,) = run_experiment(RunData(base, make_new(), head), [study(method, **asked)], **extra)
    return record


@pytest.mark.parametrize("method", CLOSED_METHODS)
def test_a_closed_form_is_evaluated_once_a_task_and_takes_names_alone_of_the_head(
    method: str,
) -> None:
    record = run(method)
    assert record.info["id"] == method
    assert record.points["iteration"].to_list() == [0, 0, 0]
    assert len(record.steps) == 0
    for task in record.info["tasks"]:
        end = record.evaluations.filter(pl.col("task") == task["task"])
        assert int(end["correct"].sum()) > 0.9 * int(end["total"].sum())
        start: Any = task["initialisation"]
        assert (task["buffer_rows"], start["library"]) == (0, "numpy")
        assert start["seconds"] > 0
    weight = np.random.default_rng(0).normal(size=make_head().weight.shape).astype(np.float32)
    other = run(method, head=replace(make_head(), weight=weight))
    assert other.evaluations.equals(record.evaluations)


def test_a_head_on_random_features_counts_as_the_record_and_is_none_to_start_from(
    tmp_path: Path,
) -> None:
    record = run("ranpac")
    write_record(record, tmp_path / "run")
    head, told = load_file(tmp_path / "run" / HEAD), record.info["feature_map"]
    dim, width, seed = told["input_dim"], told["width"], told["seed"]
    made: Any = FeatureMap.drawn(np.zeros(dim), width, seed=seed)
    assert made.description == told
    names, right = record.classes["name"].to_list(), np.zeros(len(record.classes), dtype=int)
    for side in (make_base().val, make_new().val):
        features: Any = made(side.features.astype(np.float32))
        predicted = (features @ head["weight"].T + head["bias"]).argmax(1)
        rows = np.array([names.index(side.class_names[label]) for label in side.labels])
        np.add.at(right, rows[rows == predicted], 1)
    assert right.tolist() == record.evaluations.filter(pl.col("task") == 3)["correct"].to_list()
    stored = read_record(tmp_path / "run")
    for read in (partial(final_head, stored), partial(read_head, tmp_path / "run" / HEAD)):
        with pytest.raises(HeadError, match="random ReLU features as input, not the"):
            read()


def test_lambda_of_ranpac_is_recorded_with_the_whole_curve() -> None:
    seen: list[Event] = []
    record = run("ranpac", observer=seen.append)
    assert any(isinstance(event, Progressed) for event in seen)
    for task in record.info["tasks"]:
        curve: Any = task["lambda_curve"]
        assert len(curve["lam"]) == len(curve["held_out_error"]) == 17
        assert task["initialisation"]["lam"] in curve["lam"]


def test_classes_without_images_are_never_predicted_and_single_images_are_told_of() -> None:
    base = make_base(train=(20, 0, 1, 20, 20, 20, 20, 20))
    for method in CLOSED_METHODS:
        record = run(method, base=base)
        if method != "ranpac":
            assert 1 not in record.mistakes["predicted"].to_list()
        assert "left out of a solved head" in "\n".join(record.info["notes"])


def test_linear_heads_are_diagnosed_and_others_are_refused() -> None:
    record = run("slda", diagnose=lambda statistics, head: {"nc1": float(len(head.bias))})
    assert [task["diagnosis"]["nc1"] for task in record.info["tasks"]] == [11, 13, 15]
    with pytest.raises(ExperimentError, match="measures linear heads on the features, and ranpac"):
        run("ranpac", diagnose=lambda statistics, head: {})
