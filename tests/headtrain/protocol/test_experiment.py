import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

from clinit.analysis.metrics.accuracy import predictions
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.start.initialise import initialising
from clinit.headtrain.protocol.experiment import RunData, run_experiment
from clinit.headtrain.protocol.record.format import TABLES, RunRecord
from clinit.headtrain.protocol.stream import buffer as residency
from clinit.headtrain.protocol.stream.buffer import Pool
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.train import heads as precision, task_start

DIM, BASE, NEW = 24, 8, 7
STEPS = {"iterations": 30, "batch_size": 16, "eval_every": 20}
CONFIG = {"tasks": 3, "buffer": 60, "device": "cpu", **STEPS}
HEADS = [{"init": init} for init in ("random", "class-mean", "least-square")]


def centres(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM))


def blobs(prefix: str, counts: Sequence[int], seed: int, place: int) -> FeatureSet:
    """Gaussian classes around `centres(len(counts), place)`."""
    labels = np.repeat(np.arange(len(counts)), counts)
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIM))
    features = (centres(len(counts), place)[labels] + 0.5 * noise).astype(np.float16)
    return FeatureSet(features, labels, tuple(f"{prefix}{i}" for i in range(len(counts))))


def make_base(train: Sequence[int] = (20,) * BASE, val: Sequence[int] = (6,) * BASE) -> Source:
    return Source(blobs("base", train, 1, place=1), blobs("base", val, 2, place=1), path="base")


def make_new(train: Sequence[int] = (25,) * NEW, val: Sequence[int] = (6,) * NEW) -> Source:
    return Source(blobs("new", train, 3, place=2), blobs("new", val, 4, place=2), path="new")


def make_head() -> Head:
    mean = 4 * centres(BASE, 1)
    bias, names = -(mean**2).sum(1) / 8, tuple(f"base{i}" for i in range(BASE))
    return Head(mean.astype(np.float32), bias.astype(np.float32), names)


def run(
    config: Mapping[str, Any] = CONFIG, heads: Sequence[Mapping[str, Any]] = HEADS, **sides: Any
) -> list[RunRecord]:
    sides = {"base": make_base(), "new": make_new(), "head": make_head(), **sides}
    return run_experiment(RunData(**sides), [Study.of({**config, **head}) for head in heads])


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return run()


def tables(record: RunRecord) -> list[pl.DataFrame]:
    """The tables of a record, wall times left out."""
    return [getattr(record, name).drop("elapsed_s", strict=False) for name in TABLES]


def test_banks_of_one_stream_start_its_first_task_once_and_go_on_as_they_would_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = RunData(make_base(), make_new(), make_head())
    firsts: list[int] = []

    def counted(start: Any, rows: Any, *given: Any, **settings: Any) -> Any:
        firsts.append(rows.start)
        return initialising(start, rows, *given, **settings)

    monkeypatch.setattr(task_start, "initialising", counted)
    changes: list[dict[str, Any]] = [{}, {"batch_size": 8}, {"seed": 1}, {"shots": 5}]
    studies = [Study.of({**CONFIG, "init": "least-square", **change}) for change in changes]
    together = [run_experiment(data, [study])[0] for study in studies]
    assert firsts.count(BASE) == 3  # seed and shots change the rows
    for record, change in zip(together, changes, strict=True):
        (alone,) = run({**CONFIG, **change}, HEADS[2:])
        for table, expected in zip(tables(record), tables(alone), strict=True):
            assert table.equals(expected)
    assert not data.held_out(0.2).starts


def test_mistakes_are_those_of_the_head_on_test_images_at_the_end(records: list[RunRecord]) -> None:
    record = records[1]
    row_of = {name: row for row, name in enumerate(record.classes["name"])}
    found, end = [], CONFIG["iterations"]
    for side in (make_base().val, make_new().val):
        for name in side.class_names:
            features = side.features[side.labels == side.class_names.index(name)].astype(np.float64)
            chosen = (features @ record.head.weight.T + record.head.bias).argmax(axis=1)
            row = row_of[name]
            found += [(3, end, row, n, int(c)) for n, c in enumerate(chosen) if c != row]
    assert record.mistakes.filter(pl.col("task") == 3).rows() == sorted(found)
    assert found


def test_all_mistakes_are_those_that_every_evaluation_counts(records: list[RunRecord]) -> None:
    (record,) = run({**CONFIG, "mistakes": "all"}, HEADS[1:2])
    keys = ["task", "iteration", "row"]
    counts = record.mistakes.group_by(keys).agg(wrong=pl.len())
    told = record.evaluations.join(counts, on=keys, how="left").fill_null(0)
    assert (told["correct"] + told["wrong"] == told["total"]).all()
    assert predictions(record).select(keys).unique().height == told.height
    at_end = records[1].mistakes
    assert at_end is not None
    last = at_end.select(keys[:2]).unique()
    assert record.mistakes.join(last, on=keys[:2], how="semi").equals(at_end)


@pytest.mark.parametrize("width", ["grow", "full"])
def test_a_stream_that_stops_early_gives_the_first_tasks_of_the_whole(width: str) -> None:
    config = {**CONFIG, "iterations": 4, "eval_every": 2, "head_width": width}
    (whole,) = run(config, HEADS[2:])
    (part,) = run({**config, "stop_after": 2}, HEADS[2:])
    for name in ("steps", "evaluations", "mistakes"):
        assert getattr(part, name).equals(getattr(whole, name).filter(pl.col("task") <= 2))
    assert part.classes.equals(whole.classes)
    assert [task["task"] for task in part.info["tasks"]] == [1, 2]
    assert part.head.num_classes == BASE + (5 if width == "grow" else 7)


def test_run_json_contains_what_was_done(records: list[RunRecord]) -> None:
    assert [record.info["id"] for record in records] == [
        "random", "class-mean-calibrated", "least-square-calibrated"
    ]  # fmt: skip
    assert all(record.classes.equals(records[0].classes) for record in records)
    info = records[2].info
    assert (info["bank_size"], info["device"], info["config"]["tasks"]) == (3, "cpu", 3)
    phases = {"prepare", "initialise", "train", "evaluate", "diagnose"}
    assert set(info["timings_s"]) == {"load", "total"} | phases
    first = info["tasks"][0]
    told = ("task", "classes", "train_rows", "val_rows", "buffer_rows", "buffer_classes")
    assert [first[key] for key in told] == [1, 3, 75, 18, 60, BASE]  # type: ignore[literal-required]
    assert [task["buffer_classes"] for task in info["tasks"]] == [BASE, BASE + 3, BASE + 5]
    start: Any = first["initialisation"]
    assert start["loss_after"] < start["loss_before"]
    assert start["seconds"] > 0


def test_a_head_that_diverges_is_noted_and_the_others_go_on() -> None:
    diverging = {"init": "random", "lr": 1e38}
    wild, calm = run(heads=[diverging, {**diverging, "lr": 1e-3}])
    assert any("has diverged: its loss is" in note for note in wild.info["notes"])
    assert not any("diverged" in note for note in calm.info["notes"])
    assert np.isfinite(calm.points["loss_new"].to_numpy()).all()


def test_a_run_in_bf16_is_recorded_and_as_accurate_as_one_in_float32(
    records: list[RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)
    for full, low in zip(records, run({**CONFIG, "precision": "bf16"}), strict=True):
        assert full.info["config"]["precision"] == "float32"
        assert low.info["config"]["precision"] == "bf16"
        assert not full.steps.equals(low.steps)
        np.testing.assert_allclose(full.steps["loss"], low.steps["loss"], rtol=0.05, atol=0.05)
        right, low_right = (int(each.evaluations["correct"].sum()) for each in (full, low))
        assert abs(right - low_right) <= 0.001 * int(full.evaluations["total"].sum())


TOLERANCES = {"float32": 1e-3, "tf32": 0.02, "bf16": 0.05}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("share", [0.25, 0.0], ids=["resident", "streamed"])
def test_a_cuda_device_gives_the_losses_of_the_cpu(
    precision: str, share: float, records: list[RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "DEVICE_SHARE", share)
    found, near = run({**CONFIG, "device": "cuda", "precision": precision}), TOLERANCES[precision]
    for cpu, cuda in zip(records, found, strict=True):
        np.testing.assert_allclose(cpu.steps["loss"], cuda.steps["loss"], rtol=near, atol=near)


STREAM = {"tasks": 2, "device": "cpu"}
TRAINED = {**STREAM, "iterations": 2, "eval_every": 2, "batch_size": 8}
RUNS = {
    "joint": {**TRAINED, "method": "joint"},
    "new rows": {**TRAINED, "method": "joint", "init": "least-square", "init_rows": "new"},
    "buffer": {**TRAINED, "method": "naive", "buffer": 1000, "init_rows": "buffer"},
    "lambda": {**STREAM, "method": "ridge", "lam": "auto"},
    "ranpac": {**STREAM, "method": "ranpac", "ranpac_width": 64},
}


SIDES = make_base([75] * BASE, [20] * BASE), make_new([60] * NEW, [20] * NEW)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_the_copies_that_a_run_holds_are_no_more_than_the_features(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [part for side in SIDES for part in (side.train, side.val)]
    copies, sizes, taken = list[weakref.ref[np.ndarray]](), [0], Pool.take

    def counted(pool: Pool, rows: np.ndarray) -> np.ndarray:
        copy = taken(pool, rows)
        copies.append(weakref.ref(copy))
        there = [reference() for reference in copies]
        sizes.append(sum(each.nbytes for each in there if each is not None))
        return copy

    monkeypatch.setattr(Pool, "take", counted)
    gc.collect()
    gc.disable()  # nothing may wait for the collector of cycles
    try:
        run_experiment(RunData(*SIDES, make_head()), [Study.of(RUNS[run])])
    finally:
        gc.enable()
    assert 0.3 < max(sizes) / sum(part.features.nbytes for part in parts) <= 1
