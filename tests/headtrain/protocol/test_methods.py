"""What closed forms share: evaluation, arrays that live on a device (as those of CuPy), records."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import array_api_strict as strict
import numpy as np
import polars as pl
import pytest
import torch
from safetensors.numpy import load_file

from clinit.errors import ExperimentError, HeadError, MachineError
from clinit.extract.cache.head import read_head
from clinit.headtrain.heads.array import StreamedRows, to_numpy
from clinit.headtrain.heads.closed.methods import ClosedForm, SimpleCil
from clinit.headtrain.heads.closed.ranpac import FeatureMap
from clinit.headtrain.protocol import methods as module
from clinit.headtrain.protocol.experiment import RunData, run_experiment
from clinit.headtrain.protocol.methods import FormBank, check_memory, closed_form
from clinit.headtrain.protocol.record.format import (
    HEAD,
    RunRecord,
    final_head,
    read_record,
    write_record,
)
from clinit.headtrain.protocol.stream.scenario import build_scenario
from clinit.headtrain.protocol.study.parts import CLOSED_METHODS, Training
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train.evaluate import evaluate
from clinit.headtrain.protocol.train.heads import LabelledRows
from clinit.observer import Event, Progressed
from tests.headtrain.heads.closed.made import COUNTS, DIM, queries, rows_of, stream
from tests.headtrain.protocol.test_experiment import make_base, make_head, make_new

CLASSES = 6
LABELS = np.sort(np.random.default_rng(1).integers(0, CLASSES, size=500))
ROWS = np.arange(500, dtype=np.float32)[:, None]


class Given(ClosedForm):
    """Scores that were drawn, with equal ones among them: the feature of a row is its number."""

    block_values = 3
    table = np.random.default_rng(0).integers(0, 9, size=(500, CLASSES)).astype(np.float32)

    def __init__(self) -> None:
        self.most = 0

    def scores(self, features: Any) -> Any:
        self.most = max(self.most, len(features))
        return self.table[features[:, 0].astype(int)]


@pytest.mark.parametrize("values", [1, 2**23])
def test_counts_and_mistakes_are_those_of_every_row_looked_at_alone(
    values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.protocol.train.evaluate.BLOCK_VALUES", values)
    form, device = Given(), torch.device("cpu")
    bank = FormBank(form, CLASSES, [Training()], device)
    rows = LabelledRows.on(device, ROWS, LABELS)
    found = evaluate(bank, rows, (4, 6, 9), list_mistakes=True)  # the last task is still to come
    assert form.most == (256 if values == 1 else 500)
    best, first = form.table.argmax(1), np.where(LABELS < 4, 0, 4)
    in_task = np.where(LABELS < 4, form.table[:, :4].argmax(1), form.table[:, 4:].argmax(1)) + first
    for answers, counted in ((best, found.correct), (in_task, found.correct_in_task)):
        right = LABELS[answers == LABELS]
        assert counted.tolist() == [np.bincount(right, minlength=CLASSES).tolist()]
    numbers = np.arange(500) - np.searchsorted(LABELS, LABELS)
    wrong = np.stack([LABELS, numbers, best])[:, best != LABELS]
    assert found.mistakes[0].tolist() == wrong.tolist()
    assert found.mistakes[0].dtype == np.int32


DEVICE = strict.Device("device1")
SETTINGS: list[dict[str, Any]] = [
    *({"method": method} for method in ("slda", "simplecil")),
    {"method": "ranpac", "ranpac_width": 5},
    {"method": "ranpac", "ranpac_width": 40, "ranpac_lam": 1.0},
    {"method": "ranpac", "ranpac_width": 40},
]


def on_device(values: np.ndarray) -> Any:
    return strict.asarray(values, device=DEVICE)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
def test_scores_are_those_of_numpy(settings: dict[str, Any], streamed: bool) -> None:
    study = Study.of({**settings, "device": "cpu"}).resolved()
    near, far = (closed_form(study, zeros) for zeros in (np.zeros(DIM), on_device(np.zeros(DIM))))
    expected = stream(near)
    place = (lambda rows: StreamedRows(rows, on_device)) if streamed else on_device
    assert [each.lam for each in stream(far, place=place)] == [each.lam for each in expected]
    scores = far.scores(on_device(queries()))
    assert scores.device == DEVICE
    np.testing.assert_allclose(to_numpy(scores), near.scores(queries()), rtol=5e-3, atol=5e-3)


def test_statistics_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.of({"method": "ranpac", "tasks": 2, "device": "cpu"}).resolved()
    scenario = build_scenario(make_base(), make_new(), make_head(), study.stream)
    monkeypatch.setattr(module, "free_memory", lambda device: 10**8)
    with pytest.raises(MachineError, match="statistics of ranpac take") as error:
        check_memory(scenario, study)
    assert "--ranpac-width" in error.value.remedy
    monkeypatch.setattr(module, "free_memory", lambda device: 10**12)
    check_memory(scenario, study)


def test_the_class_of_the_largest_cosine_with_its_mean_wins() -> None:
    form = SimpleCil(np.zeros(DIM))
    stream(form)
    features, labels = rows_of(0, len(COUNTS))
    asked = queries().astype(float)
    cosines = np.full((len(asked), len(COUNTS)), -2.0)
    for label in np.unique(labels):
        mean = features[labels == label].astype(float).mean(0)
        lengths = np.linalg.norm(asked, axis=1) * np.linalg.norm(mean)
        cosines[:, label] = asked @ mean / lengths
    found = form.scores(queries())
    assert found.argmax(1).tolist() == cosines.argmax(1).tolist()
    seen = np.array(COUNTS) > 0
    scaled = found[:, seen] / np.linalg.norm(asked, axis=1)[:, None]
    np.testing.assert_allclose(scaled, cosines[:, seen], atol=1e-5)

    head = form.rows
    np.testing.assert_allclose(np.linalg.norm(head.weight[seen], axis=1), 1)
    assert (head.bias[seen] == 0).all()


SMALL: Mapping[str, Mapping[str, Any]] = {"ranpac": {"ranpac_width": 60}}


def run(method: str, **asked: Any) -> RunRecord:
    base, head = asked.pop("base", make_base()), asked.pop("head", make_head())
    extra = {name: asked.pop(name) for name in ("observer", "diagnose") if name in asked}
    settings = {"method": method, "tasks": 3, "device": "cpu", **SMALL.get(method, {}), **asked}
    (record,) = run_experiment(RunData(base, make_new(), head), [Study.of(settings)], **extra)
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
