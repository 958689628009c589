import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from timm.optim import param_groups_layer_decay
from torch.nn import functional

from clinit.errors import CacheError, CheckpointError, ExperimentError, ImageError
from clinit.headtrain.events import Evaluated, Event, Noted, Stepped
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.record.format import (
    RunRecord,
    changed_parameters,
    final_head,
    read_record,
    write_record,
)
from clinit.headtrain.start.new_rows import random_task_rows
from clinit.headtrain.stream.buffer import Pool
from clinit.headtrain.study.study import Study
from clinit.headtrain.top.checkpoint import Checkpoint, read_checkpoint
from clinit.headtrain.top.experiment import run_top, top_notes
from clinit.headtrain.top.images import Storage
from clinit.headtrain.top.inputs import TopInputs, open_side, prepare_inputs, reload_backbone
from clinit.headtrain.top.network import cut_network

STREAM = {
    "tasks": 2,
    "iterations": 6,
    "eval_every": 3,
    "batch_size": 8,
    "buffer": 9,
    "device": "cpu",
    "seed": 4,
}
HEAD: Mapping[str, Any] = {"init": "least-square", "lr": 1e-2}
METHODS: dict[str, dict[str, Any]] = {
    "low rank": {"top_blocks": 2, "rank": 3, "probe": False},
    "full rank": {"top_blocks": 1, "full_rank": True, "probe": False},
    "ewc": {
        "method": "ewc",
        "top_blocks": 1,
        "full_rank": True,
        "probe": False,
        "ewc_lam": 10.0,
        "ewc_samples": 5,
    },
    "derpp": {"method": "derpp", "rank": 3, "probe": False},
    "derpp stored": {"method": "derpp", "rank": 3, "probe": False, "derpp_teacher": "stored"},
    "joint": {"method": "joint", "rank": 3, "probe": True},
}


@pytest.fixture(scope="module")
def study_of(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TopInputs]:
    """Prepare inputs; those that were prepared before are shared, as no run changes them."""
    folder = tmp_path_factory.mktemp("trunk")
    built: dict[str, TopInputs] = {}

    def make(
        top: Mapping[str, Any], stream: Mapping[str, Any] = STREAM, **storage: Any
    ) -> TopInputs:
        key = repr((top, stream, storage))
        if key not in built:
            built[key] = build(top, stream, **storage)
        return built[key]

    def build(top: Mapping[str, Any], stream: Mapping[str, Any], **storage: Any) -> TopInputs:
        caches = tiny_run.parent / "caches"
        base = open_side(caches / "base", None, option="--base-root")
        new = open_side(caches / "new", None, option="--new-root")
        backbone, transform = reload_backbone(base, None, "cpu")
        assert base.source.head is not None
        return prepare_inputs(
            base,
            new,
            base.source.head,
            backbone,
            transform,
            Study.of({**stream, **top}, top=True),
            Storage(**{"folder": folder, "budget": 10**9, **storage}),
        )

    return make


def trained(inputs: TopInputs, head: Mapping[str, Any] = HEAD, **options: Any) -> RunRecord:
    return run_top(inputs, inputs.study.changed(head), **options)


def assert_same_run(one: RunRecord, other: RunRecord) -> None:
    for table in ("classes", "steps", "evaluations"):
        assert getattr(one, table).equals(getattr(other, table)), table
    assert one.points.drop("elapsed_s").equals(other.points.drop("elapsed_s"))
    assert one.head is not None
    assert other.head is not None
    np.testing.assert_array_equal(one.head.weight, other.head.weight)
    np.testing.assert_array_equal(one.head.bias, other.head.bias)
    assert one.top is not None
    assert other.top is not None
    assert one.top.keys() == other.top.keys()
    for name, values in one.top.items():
        np.testing.assert_array_equal(values, other.top[name])
    told = [
        [{k: v for k, v in task.items() if k != "initialisation"} for task in run.info["tasks"]]
        for run in (one, other)
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize("init", ["random", "class-mean", "least-square"])
def test_a_run_starts_where_a_head_on_cached_features_starts(
    study_of: Callable[..., TopInputs], init: str
) -> None:
    inputs = study_of(METHODS["low rank"])
    head = {**HEAD, "init": init}
    record = trained(inputs, head)
    (frozen,) = run_experiment(
        inputs.base, inputs.new, inputs.initial_head, [Study.of({**STREAM, **head})]
    )
    assert record.classes.equals(frozen.classes)
    first = (pl.col("task") == 1) & (pl.col("iteration") == 0)
    assert record.evaluations.filter(first).equals(frozen.evaluations.filter(first))
    ours, theirs = record.points.filter(first), frozen.points.filter(first)
    np.testing.assert_allclose(ours["loss_new"], theirs["loss_new"], rtol=2e-3)
    np.testing.assert_allclose(record.steps["loss"][0], frozen.steps["loss"][0], rtol=2e-3)
    start, frozen_start = (each.info["tasks"][0]["initialisation"] for each in (record, frozen))
    assert start["factor"] == pytest.approx(frozen_start["factor"], rel=2e-2)
    same = ("classes", "train_rows", "val_rows", "buffer_rows", "buffer_classes")
    for ours_told, told in zip(record.info["tasks"], frozen.info["tasks"], strict=True):
        assert {k: ours_told[k] for k in same} == {k: told[k] for k in same}


@pytest.fixture(scope="module")
def whole_run(study_of: Callable[..., TopInputs]) -> Callable[[str], RunRecord]:
    return cache(lambda name: trained(study_of(METHODS[name]), HEAD))


class KilledError(Exception):
    pass


def kill_after(steps: int) -> Callable[[Event], None]:
    done = [0]

    def observe(event: Event) -> None:
        if isinstance(event, Stepped):
            done[0] += event.steps
            if done[0] >= steps:
                raise KilledError

    return observe


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps"),
    [*((name, 11) for name in METHODS), *(("derpp stored", steps) for steps in (1, 5, 6, 7))],
)
def test_a_run_that_is_killed_goes_on_to_the_same_bits(
    study_of: Callable[..., TopInputs],
    whole_run: Callable[[str], RunRecord],
    tmp_path: Path,
    name: str,
    steps: int,
) -> None:
    inputs = study_of(METHODS[name])
    path = tmp_path / "run.checkpoint"
    with pytest.raises(KilledError):
        trained(inputs, HEAD, checkpoint=path, checkpoint_every=2, observer=kill_after(steps))
    assert path.exists() == (steps > 2)
    told: list[str] = []
    resumed = trained(
        inputs,
        HEAD,
        checkpoint=path,
        checkpoint_every=2,
        observer=lambda event: told.append(event.note) if isinstance(event, Noted) else None,
    )
    assert any("goes on from its checkpoint" in text for text in told) == (steps > 2)
    assert_same_run(resumed, whole_run(name))


def test_a_finished_checkpoint_needs_no_more_training(
    study_of: Callable[..., TopInputs], tmp_path: Path
) -> None:
    inputs, path = study_of(METHODS["low rank"]), tmp_path / "run.checkpoint"
    record = trained(inputs, HEAD, checkpoint=path)
    evaluated: list[Event] = []
    again = trained(
        inputs,
        HEAD,
        checkpoint=path,
        observer=lambda event: evaluated.append(event) if isinstance(event, Evaluated) else None,
    )
    assert not evaluated
    assert_same_run(record, again)


def test_a_checkpoint_of_another_run_is_refused(
    study_of: Callable[..., TopInputs], tmp_path: Path
) -> None:
    inputs, path = study_of(METHODS["low rank"]), tmp_path / "run.checkpoint"
    trained(inputs, HEAD, checkpoint=path)
    with pytest.raises(CheckpointError, match="of a run with other settings, data or weights"):
        trained(inputs, {**HEAD, "lr": 2e-2}, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=f"^{path} is damaged: ") as caught:
        trained(inputs, HEAD, checkpoint=path)
    assert caught.value.remedy == f"Remove {path} to start the run anew, or choose another --out."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: {"task": 3, "entries": found.entries * 3}, "it goes further than the run"),
        (lambda found: {"iteration": 99}, "it goes further than the run"),
        (
            lambda found: {
                "entries": tuple(
                    replace(each, new_share=each.new_share[:-1], losses=each.losses[:-1])
                    for each in found.entries
                )
            },
            "its entry of task 1 belongs to another run",
        ),
        (lambda found: {"model": {}}, "its tensors are not those of this run"),
        (lambda found: {"model": {**found.model, "x": torch.ones(1)}}, "its tensors are not those"),
        (
            lambda found: {"model": {name: t[:1] for name, t in found.model.items()}},
            "its tensors are not those of this run",
        ),
        (lambda found: {"optimizer": {"x": torch.ones(1)}}, "its tensors are not those of this"),
        (lambda found: {"facts": {**found.facts, "groups": []}}, "its tensors are not those of"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_run_is_refused(
    study_of: Callable[..., TopInputs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Checkpoint], dict[str, Any]],
    message: str,
) -> None:
    inputs, path = study_of(METHODS["low rank"]), tmp_path / "run.checkpoint"
    with pytest.raises(KilledError):
        trained(inputs, HEAD, checkpoint=path, checkpoint_every=2, observer=kill_after(3))

    def changed(*arguments: Any) -> Any:
        found = read_checkpoint(*arguments)
        assert found is not None
        return replace(found, **change(found))

    monkeypatch.setattr("clinit.headtrain.top.blocks.read_checkpoint", changed)
    with pytest.raises(CheckpointError) as caught:
        trained(inputs, HEAD, checkpoint=path)
    assert str(caught.value).startswith(f"{path} is damaged: {message}")


@pytest.mark.parametrize("name", ["low rank", "full rank", "derpp stored"])
def test_with_and_without_stored_activations_the_training_is_the_same(
    study_of: Callable[..., TopInputs], whole_run: Callable[[str], RunRecord], name: str
) -> None:
    stored = whole_run(name)
    images = trained(study_of(METHODS[name], budget=0), HEAD)
    assert all(part["stored"] for part in stored.info["activations"])
    for part in images.info["activations"]:
        assert (part["stored"], part["seconds"], part["computed_here"]) == (False, None, False)
    for column in ("loss", "loss_new", "loss_old"):
        one, other = stored.steps[column].to_numpy(), images.steps[column].to_numpy()
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert stored.top is not None
    assert images.top is not None
    for key, values in stored.top.items():
        np.testing.assert_allclose(values, images.top[key], rtol=5e-3, atol=5e-4)


def test_a_run_that_was_killed_still_pays_for_the_activations_it_began_with(
    study_of: Callable[..., TopInputs], tmp_path: Path
) -> None:
    top, folder = METHODS["low rank"], tmp_path / "trunk"
    path = tmp_path / "run.checkpoint"
    with pytest.raises(KilledError):
        trained(
            study_of(top, folder=folder),
            HEAD,
            checkpoint=path,
            checkpoint_every=2,
            observer=kill_after(3),
        )
    again = study_of(top, folder=folder, workers=1)
    assert not any(part.computed_here for part in again.parts)
    resumed = trained(again, HEAD, checkpoint=path)
    assert all(part["computed_here"] for part in resumed.info["activations"])
    assert resumed.info["timings_s"]["trunk"] > 0


def test_what_fits_the_budget_is_stored_the_most_read_first(
    study_of: Callable[..., TopInputs], whole_run: Callable[[str], RunRecord], tmp_path: Path
) -> None:
    parts = study_of(METHODS["low rank"]).parts
    assert [part.name for part in parts] == ["base val", "new val", "base train", "new train"]
    budget = parts[0].bytes + parts[1].bytes
    some = study_of(METHODS["low rank"], folder=tmp_path, budget=budget)
    assert [part.stored for part in some.parts] == [True, True, False, False]
    mixed = trained(some, HEAD)
    whole = whole_run("low rank")
    np.testing.assert_allclose(mixed.steps["loss"], whole.steps["loss"], rtol=1e-3)


def test_activations_that_do_not_fit_the_disk_are_refused(
    study_of: Callable[..., TopInputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(
        CacheError, match=r"cannot store activations of .* GB in .*: 0\.00 GB are free there"
    ):
        study_of(METHODS["low rank"], folder=tmp_path)


FCS = ("fc1", "fc2")


@pytest.mark.parametrize("name", ["low rank", "ewc"])
def test_the_stored_parameters_and_head_make_the_network_that_was_measured(
    study_of: Callable[..., TopInputs],
    whole_run: Callable[[str], RunRecord],
    tmp_path: Path,
    name: str,
) -> None:
    inputs, record = study_of(METHODS[name]), whole_run(name)
    write_record(record, tmp_path / "run")
    network = copy.deepcopy(inputs.network)
    changed = {
        k: torch.from_numpy(v) for k, v in changed_parameters(read_record(tmp_path / "run")).items()
    }
    assert not network.load_state_dict(changed, strict=False).unexpected_keys
    head, top = (
        final_head(read_record(tmp_path / "run")),
        cut_network(network, inputs.top.top_blocks).top,
    )
    val = inputs.scenario.val
    rows = val.rows_between(0, inputs.scenario.num_classes)
    with torch.no_grad():
        features = torch.cat([top(values) for _, values in inputs.val.blocks(rows, 4)])
    logits = features @ torch.from_numpy(head.weight).T + torch.from_numpy(head.bias)
    right = logits.argmax(1).numpy() == val.labels[rows]
    last = record.evaluations.filter(
        (pl.col("task") == 2) & (pl.col("iteration") == STREAM["iterations"])
    )
    counted = np.bincount(val.labels[rows][right], minlength=inputs.scenario.num_classes)
    assert last.sort("row")["correct"].to_list() == counted.tolist()


def naive_losses(inputs: TopInputs) -> Iterator[float]:
    """Fine-tune the top block and the head by the book: autograd, AdamW, one cycle."""
    network = copy.deepcopy(inputs.network)
    halves = cut_network(network, 1)
    weight = torch.from_numpy(inputs.initial_head.weight.copy())
    bias = torch.from_numpy(inputs.initial_head.bias.copy())
    for task in inputs.scenario.tasks:
        rows = inputs.task_plan.rows(task)
        schedule = inputs.task_plan.schedule(rows)
        random = random_task_rows(inputs.study.stream.seed, task, weight.shape[1])
        classifier = torch.nn.Linear(weight.shape[1], task.stop)
        with torch.no_grad():
            classifier.weight.copy_(torch.cat([weight, torch.from_numpy(random.weight).float()]))
            classifier.bias.copy_(torch.cat([bias, torch.from_numpy(random.bias).float()]))
        network.head.fc = classifier  # type: ignore[union-attr]
        network.requires_grad_(False)
        for part in (classifier, *map(network.get_submodule, halves.blocks)):
            part.requires_grad_(True)
        groups = param_groups_layer_decay(network, weight_decay=0.05, layer_decay=0.9)
        rates = [HEAD["lr"] * group["lr_scale"] for group in groups]
        groups = [{k: v for k, v in group.items() if k != "lr_scale"} for group in groups]
        for group in groups:
            if group["params"][0] is classifier.bias:
                group["weight_decay"] = 0.05
        optimizer = torch.optim.AdamW(groups, lr=1.0)
        steps = inputs.study.stream.iterations
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps)
        for batch in schedule.batches:
            chosen = rows.rows[batch]
            (values,) = inputs.train.stream([chosen])
            labels = torch.from_numpy(inputs.scenario.train.labels[chosen])
            loss = functional.cross_entropy(classifier(halves.top(values)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cycle.step()
            yield loss.item()
        weight, bias = classifier.weight.detach(), classifier.bias.detach()


@pytest.mark.parametrize("method", ["rehearsal", "naive", "ewc"])
def test_full_rank_training_is_plain_fine_tuning(
    study_of: Callable[..., TopInputs], method: str
) -> None:
    top = {"method": method, "top_blocks": 1, "full_rank": True, "ewc_lam": 0.0, "probe": False}
    inputs = study_of(top)
    record = trained(inputs, {**HEAD, "init": "random"})
    naive = list(naive_losses(inputs))
    np.testing.assert_allclose(record.steps["loss"].to_numpy(), naive, rtol=2e-4, atol=2e-5)


def test_forward_transfer_is_measured_after_every_task_but_the_last(
    study_of: Callable[..., TopInputs], whole_run: Callable[[str], RunRecord]
) -> None:
    record = whole_run("joint")
    first, last = record.info["tasks"]
    assert first["forward_transfer"]["task"] == 2
    assert 0 <= first["forward_transfer"]["top1"] <= 1
    assert "forward_transfer" not in last
    quiet = trained(study_of({**METHODS["joint"], "probe": False}), HEAD)
    assert "forward_transfer" not in quiet.info["tasks"][0]
    assert quiet.steps.equals(record.steps)


@pytest.mark.parametrize("name", ["low rank", "ewc", "derpp"])
def test_bfloat16_stays_near_float32(study_of: Callable[..., TopInputs], name: str) -> None:
    head = {**HEAD, "init": "random"}
    exact = trained(study_of(METHODS[name]), head)
    rough = trained(study_of({**METHODS[name], "precision": "bf16"}), head)
    assert not rough.steps.equals(exact.steps)
    np.testing.assert_allclose(rough.steps["loss"][:6], exact.steps["loss"][:6], rtol=0.1)


def test_images_that_are_gone_are_reported(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "made")
    caches = run.parent / "caches"
    with pytest.raises(ExperimentError, match=r"the images of .* are not in .*nowhere"):
        open_side(caches / "base", tmp_path / "nowhere", option="--base-root")
    base = open_side(caches / "base", None, option="--base-root")
    new = open_side(caches / "new", None, option="--new-root")
    backbone, transform = reload_backbone(base, None, "cpu")
    assert base.source.head is not None
    (run.parent / "new" / "val" / "d" / "0.png").unlink()
    with pytest.raises(ImageError, match=r"new/val/d/0\.png") as caught:
        prepare_inputs(
            base,
            new,
            base.source.head,
            backbone,
            transform,
            Study.of({**STREAM, **METHODS["low rank"]}, top=True),
            Storage(folder=tmp_path / "trunk", budget=10**9),
        )
    assert caught.value.remedy.endswith("where the images are with --base-root and --new-root.")


def test_a_run_of_another_stream_than_its_inputs_is_refused(
    study_of: Callable[..., TopInputs],
) -> None:
    inputs = study_of(METHODS["low rank"])
    for changes in ({"seed": 9}, {"rank": 5}, {"iterations": 1}):
        with pytest.raises(ValueError, match="a run differs from its inputs at most in"):
            trained(inputs, {**HEAD, **changes})


def notes(inputs: TopInputs) -> list[str]:
    return top_notes(inputs, [inputs.study.changed({"init": "random"})])


def test_ewc_and_derpp_say_what_they_lack(study_of: Callable[..., TopInputs]) -> None:
    empty = {**STREAM, "buffer": 0}
    assert notes(study_of(METHODS["derpp"], empty))[-1] == (
        "no old row before task 1: there, DER++ is the mean loss of the new rows alone"
    )
    assert not [note for note in notes(study_of(METHODS["derpp"])) if "DER++" in note]
    inputs = study_of(METHODS["ewc"])
    assert not [note for note in notes(inputs) if "EWC" in note]
    train = inputs.scenario.train
    kept = np.where(train.labels < inputs.scenario.num_base, -1, train.labels)
    blind = Pool((np.zeros((len(kept), 1), np.float32), kept))
    bare = replace(inputs, scenario=replace(inputs.scenario, train=blind))
    assert notes(bare)[-1] == (
        "no base class has a training image: EWC anchors nothing of the base"
    )
