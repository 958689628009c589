import copy
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from clinit.errors import CheckpointError
from clinit.headtrain.protocol.events import Evaluated, Stepped
from clinit.headtrain.protocol.experiment import run_experiment
from clinit.headtrain.protocol.record.format import (
    RunRecord,
    changed_parameters,
    final_head,
    read_record,
    write_record,
)
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.top.activations import cut
from clinit.headtrain.top.experiment import run_top
from clinit.headtrain.top.images import Storage, TopImages
from clinit.headtrain.top.inputs import ImageData, TopInputs, prepare_runs
from clinit.headtrain.top.network import cut_network
from clinit.observer import Event, Noted, ignore

STREAM = {
    **{"tasks": 2, "iterations": 6, "eval_every": 3, "batch_size": 8, "buffer": 9},
    **{"device": "cpu", "seed": 4},
}
HEAD: Mapping[str, Any] = {"init": "least-square", "lr": 1e-2}
FULL = {"top_blocks": 1, "full_rank": True, "probe": False}
METHODS: dict[str, dict[str, Any]] = {
    "low rank": {"top_blocks": 2, "rank": 3, "probe": False},
    "full rank": FULL,
    "ewc": {**FULL, "method": "ewc", "ewc_lam": 10.0, "ewc_samples": 5},
    "derpp": {"method": "derpp", "rank": 3, "probe": False},
    "joint": {"method": "joint", "rank": 3, "probe": True},
    "uniform": {"rank": 3, "probe": False, "mix": "uniform"},
}
Inputs = Callable[..., TopInputs]


def prepared(caches: Path, settings: Mapping[str, Any], storage: Storage) -> TopInputs:
    images = TopImages(base=caches / "base", new=caches / "new", storage=storage)
    return prepare_runs(ImageData.open(images), [Study.of(settings, top=True)])


@pytest.fixture(scope="module")
def inputs_of(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Prepare inputs; those that were prepared before are shared, as no run changes them."""
    folder = tmp_path_factory.mktemp("trunk")
    built: dict[str, TopInputs] = {}

    def make(
        top: Mapping[str, Any] | str, stream: Mapping[str, Any] = STREAM, **storage: Any
    ) -> TopInputs:
        top = METHODS[top] if isinstance(top, str) else top
        key = repr((top, stream, storage))
        if key not in built:
            places = Storage(**{"folder": folder, "budget": 10**9, **storage})
            built[key] = prepared(tiny_run.parent / "caches", {**stream, **top}, places)
        return built[key]

    return make


@pytest.fixture(scope="module")
def whole_run(inputs_of: Inputs) -> Callable[[str], RunRecord]:
    return cache(lambda name: trained(inputs_of(name)))


def trained(inputs: TopInputs, head: Mapping[str, Any] = HEAD, **options: Any) -> RunRecord:
    given: dict[str, Any] = {"checkpoint": None, "every": 100, "observer": ignore, **options}
    return run_top(inputs, inputs.experiment.study.changed(head), **given)


def assert_same_run(one: RunRecord, other: RunRecord) -> None:
    for table in ("classes", "steps", "evaluations"):
        assert getattr(one, table).equals(getattr(other, table)), table
    assert one.points.drop("elapsed_s").equals(other.points.drop("elapsed_s"))
    np.testing.assert_array_equal(one.head.weight, other.head.weight)
    np.testing.assert_array_equal(one.head.bias, other.head.bias)
    assert one.top.keys() == other.top.keys()
    for name, values in one.top.items():
        np.testing.assert_array_equal(values, other.top[name])
    tasks = [
        [{k: v for k, v in task.items() if k != "initialisation"} for task in run.info["tasks"]]
        for run in (one, other)
    ]
    assert tasks[0] == tasks[1]


@pytest.mark.parametrize("init", ["random", "class-mean", "least-square"])
def test_a_run_starts_where_a_head_on_cached_features_starts(inputs_of: Inputs, init: str) -> None:
    inputs, head = inputs_of("low rank"), {**HEAD, "init": init}
    record = trained(inputs, head)
    (frozen,) = run_experiment(inputs.data, [Study.of({**STREAM, **head, "mix": "text"})])
    assert record.classes.equals(frozen.classes)
    first = (pl.col("task") == 1) & (pl.col("iteration") == 0)
    assert record.evaluations.filter(first).equals(frozen.evaluations.filter(first))
    ours, theirs = record.points.filter(first), frozen.points.filter(first)
    np.testing.assert_allclose(ours["loss_new"], theirs["loss_new"], rtol=2e-3)
    np.testing.assert_allclose(record.steps["loss"][0], frozen.steps["loss"][0], rtol=2e-3)
    start, frozen_start = (each.info["tasks"][0]["initialisation"] for each in (record, frozen))
    assert start["factor"] == pytest.approx(frozen_start["factor"], rel=2e-2)
    same = ("classes", "train_rows", "val_rows", "buffer_rows", "buffer_classes")
    for mine, their in zip(record.info["tasks"], frozen.info["tasks"], strict=True):
        assert {k: mine[k] for k in same} == {k: their[k] for k in same}


def test_rows_that_only_starts_read_are_prepared_unless_all_starts_are_random(
    inputs_of: Inputs,
) -> None:
    naive = {**FULL, "method": "naive", "init_rows": "buffer"}
    every = [inputs_of({**naive, "init": init}, budget=0) for init in ("random", "class-mean")]
    few, more = (sum(part["rows"] for part in each.parts) for each in every)
    assert few < more


class KilledError(Exception):
    pass


def killed(inputs: TopInputs, path: Path, steps: int) -> None:
    done = [0]

    def observe(event: Event) -> None:
        done[0] += event.steps if isinstance(event, Stepped) else 0
        if done[0] >= steps:
            raise KilledError

    with pytest.raises(KilledError):
        trained(inputs, checkpoint=path, every=2, observer=observe)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *(("low rank", 11), ("ewc", 11), ("derpp", 1), ("derpp", 5), ("uniform", 11)),
        *(pytest.param(name, 11, marks=pytest.mark.slow) for name in ("full rank", "derpp")),
        *(pytest.param("derpp", steps, marks=pytest.mark.slow) for steps in (6, 7, 11)),
        pytest.param("joint", 11, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_killed_resumes_to_the_same_bits(
    inputs_of: Inputs, whole_run: Callable[[str], RunRecord], tmp_path: Path, name: str, steps: int
) -> None:
    inputs, path = inputs_of(name), tmp_path / "run.checkpoint"
    killed(inputs, path, steps)
    assert path.exists() == (steps > 2)
    noted: list[str] = []
    resumed = trained(
        inputs,
        checkpoint=path,
        every=2,
        observer=lambda event: noted.append(event.note) if isinstance(event, Noted) else None,
    )
    assert any("from its checkpoint" in text for text in noted) == (steps > 2)
    assert_same_run(resumed, whole_run(name))


def test_batches_of_all_classes_may_have_no_old_row_or_no_new_one(inputs_of: Inputs) -> None:
    top = {"method": "derpp", "rank": 3, "probe": False, "mix": "uniform"}
    steps = trained(inputs_of(top, {**STREAM, "tasks": 1, "batch_size": 2, "iterations": 40})).steps
    assert steps["loss"].is_finite().all()
    assert steps["loss_old"].is_null().any()
    assert steps["loss_new"].is_null().any()


def test_a_finished_checkpoint_needs_no_more_training(inputs_of: Inputs, tmp_path: Path) -> None:
    inputs, path = inputs_of("low rank"), tmp_path / "run.checkpoint"
    record = trained(inputs, checkpoint=path)
    events: list[Event] = []
    again = trained(inputs, checkpoint=path, observer=events.append)
    assert not any(isinstance(event, Evaluated) for event in events)
    assert_same_run(record, again)
    with pytest.raises(CheckpointError, match="other settings, data or weights"):
        trained(inputs, {**HEAD, "lr": 2e-2}, checkpoint=path)


@pytest.mark.parametrize("name", ["low rank", "full rank", "derpp"])
def test_with_and_without_stored_activations_the_training_is_the_same(
    inputs_of: Inputs, whole_run: Callable[[str], RunRecord], name: str
) -> None:
    stored, images = whole_run(name), trained(inputs_of(name, budget=0))
    assert all(part["stored"] for part in stored.info["activations"])
    assert not any(part["stored"] for part in images.info["activations"])
    for column in ("loss", "loss_new", "loss_old"):
        one, other = stored.steps[column].to_numpy(), images.steps[column].to_numpy()
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_what_fits_the_budget_is_stored_the_most_read_first(
    inputs_of: Inputs, whole_run: Callable[[str], RunRecord], tmp_path: Path
) -> None:
    parts = inputs_of("low rank").parts
    assert [part["part"] for part in parts] == ["base val", "new val", "base train", "new train"]
    some = inputs_of("low rank", folder=tmp_path, budget=parts[0]["bytes"] + parts[1]["bytes"])
    assert [part["stored"] for part in some.parts] == [True, True, False, False]
    mixed, whole = trained(some).steps["loss"], whole_run("low rank").steps["loss"]
    np.testing.assert_allclose(mixed, whole, rtol=1e-3)


@pytest.mark.parametrize("name", ["low rank", "ewc"])
def test_the_stored_parameters_and_head_make_the_network_that_was_measured(
    inputs_of: Inputs, whole_run: Callable[[str], RunRecord], tmp_path: Path, name: str
) -> None:
    inputs = inputs_of(name)
    write_record(whole_run(name), tmp_path / "run")
    record, network = read_record(tmp_path / "run"), copy.deepcopy(inputs.network)
    changed = {k: torch.from_numpy(v) for k, v in changed_parameters(record).items()}
    assert not network.load_state_dict(changed, strict=False).unexpected_keys
    head, top = final_head(record), cut_network(network, inputs.top.top_blocks).top
    val, classes = inputs.experiment.scenario.val, inputs.experiment.scenario.num_classes
    rows = val.rows_between(0, classes)
    with torch.no_grad():
        features = torch.cat([top(values) for values in inputs.val.stream(cut(rows, 4))])
    logits = features @ torch.from_numpy(head.weight).T + torch.from_numpy(head.bias)
    right = logits.argmax(1).numpy() == val.labels[rows]
    last = (pl.col("task") == 2) & (pl.col("iteration") == STREAM["iterations"])
    counted = np.bincount(val.labels[rows][right], minlength=classes)
    assert record.evaluations.filter(last).sort("row")["correct"].to_list() == counted.tolist()


def test_forward_transfer_is_measured_after_every_task_but_the_last(
    inputs_of: Inputs, whole_run: Callable[[str], RunRecord]
) -> None:
    record = whole_run("joint")
    first, last = record.info["tasks"]
    assert first["forward_transfer"]["task"] == 2
    assert 0 <= first["forward_transfer"]["top1"] <= 1
    assert "forward_transfer" not in last
    quiet = trained(inputs_of({**METHODS["joint"], "probe": False}))
    assert "forward_transfer" not in quiet.info["tasks"][0]
    assert quiet.steps.equals(record.steps)


@pytest.mark.parametrize("name", ["low rank", "ewc", "derpp"])
def test_bfloat16_stays_near_float32(
    inputs_of: Inputs, whole_run: Callable[[str], RunRecord], name: str
) -> None:
    exact, rough = whole_run(name), trained(inputs_of({**METHODS[name], "precision": "bf16"}))
    assert not rough.steps.equals(exact.steps)
    np.testing.assert_allclose(rough.steps["loss"][:6], exact.steps["loss"][:6], rtol=0.1)
