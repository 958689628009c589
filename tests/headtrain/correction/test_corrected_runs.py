"""Runs whose heads are corrected after each task."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.record.format import RunRecord, read_record, write_record
from clinit.headtrain.record.tables import TABLES
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study import Study

DIM, BASE, NEW = 12, 6, 4
CONFIG = {"tasks": 2, "iterations": 20, "buffer": 60, "batch_size": 16, "eval_every": 10}


def side(prefix: str, classes: int, place: int) -> Source:
    centres = np.random.default_rng(place).normal(size=(classes, DIM))

    def rows(each: int, seed: int) -> FeatureSet:
        labels = np.repeat(np.arange(classes), each)
        noise = np.random.default_rng([place, seed]).normal(size=(len(labels), DIM))
        names = tuple(f"{prefix}{number}" for number in range(classes))
        return FeatureSet((centres[labels] + noise).astype(np.float16), labels, names)

    return Source(rows(20, 1), rows(8, 2), path=prefix)


def head() -> Head:
    centres = np.random.default_rng(1).normal(size=(BASE, DIM)).astype(np.float32)
    bias = -(centres**2).sum(1) / 2
    return Head(centres, bias, tuple(f"base{number}" for number in range(BASE)))


def run(inits: tuple[str, ...] = ("random",), **settings: Any) -> list[RunRecord]:
    studies = [Study.of({**CONFIG, "device": "cpu", **settings, "init": init}) for init in inits]
    return run_experiment(side("base", BASE, 1), side("new", NEW, 2), head(), studies)


def tables(record: RunRecord) -> list[pl.DataFrame]:
    return [getattr(record, name).drop("elapsed_s", strict=False) for name in TABLES]


def right(record: RunRecord, task: int, iteration: int) -> list[int]:
    """Test images labelled right at an evaluation, of the base and of each task."""
    here = record.evaluations.filter(pl.col("task") == task, pl.col("iteration") == iteration)
    origins = here.join(record.classes.select("row", origin="task"), on="row")
    return (
        origins.group_by("origin").agg(pl.col("correct").sum()).sort("origin")["correct"].to_list()
    )


@pytest.fixture(scope="module")
def plain() -> list[RunRecord]:
    return run(("random", "least-square"))


def test_weight_aligning_changes_nothing_before_the_end_of_the_first_task(
    plain: list[RunRecord],
) -> None:
    for one, other in zip(plain, run(("random", "least-square"), correct="wa"), strict=True):
        first = pl.col("task") == 1
        assert one.steps.filter(first).equals(other.steps.filter(first))
        before = other.info["tasks"][0]["correction"]["correct_before"]
        assert before == right(one, 1, 20)
        assert not one.steps.equals(other.steps)


def test_a_run_without_correction_says_nothing_of_one(plain: list[RunRecord]) -> None:
    assert all("correction" not in task for record in plain for task in record.info["tasks"])
    assert all(record.info["config"]["correct"] == "none" for record in plain)
    (alone,) = run(correct="none")
    np.testing.assert_allclose(alone.steps["loss"], plain[0].steps["loss"], rtol=1e-4)


def test_aligned_rows_have_the_mean_norm_of_those_before_them() -> None:
    (record,) = run(correct="wa")
    assert record.head is not None
    norms = np.linalg.norm(record.head.weight, axis=1)
    ends = (BASE, BASE + NEW // 2, BASE + NEW)
    last = norms[ends[1] : ends[2]].mean()
    assert last == pytest.approx(norms[: ends[1]].mean(), rel=1e-5)
    for task in record.info["tasks"]:
        assert task["correction"]["factor"] > 0
        assert task["correction"]["shift"] == 0


@pytest.mark.parametrize("correct", ["wa", "bic"])
def test_the_last_evaluation_is_that_of_the_corrected_head(correct: str) -> None:
    (record,) = run(correct=correct)
    assert record.head is not None
    order = [int(name[3:]) for name in record.classes["name"][BASE:]]
    base, new = side("base", BASE, 1).val, side("new", NEW, 2).val
    row_of_new = np.empty(NEW, np.int64)
    row_of_new[order] = np.arange(BASE, BASE + NEW)
    features = np.concatenate([base.features, new.features]).astype(np.float64)
    labels = np.concatenate([base.labels, row_of_new[new.labels]])
    logits = features @ record.head.weight.T.astype(np.float64) + record.head.bias
    hits = (logits.argmax(1) == labels).astype(int)
    ends = pairwise((0, BASE, BASE + NEW // 2, BASE + NEW))
    expected = [int(hits[(labels >= a) & (labels < b)].sum()) for a, b in ends]
    assert right(record, 2, 20) == expected
    assert len(record.info["tasks"][1]["correction"]["correct_before"]) == 3


def test_bias_correction_trains_on_fewer_rows_and_says_what_it_found() -> None:
    (record,) = run(correct="bic", lr=0.02)
    for task in record.info["tasks"]:
        found = task["correction"]
        assert task["train_rows"] == 40 - 4
        assert found["rows_aside"] == 60 - task["buffer_rows"] + 4
        assert found["loss_after"] <= found["loss_before"]
        assert found["factor"] > 0


def test_the_correction_survives_writing_and_reading(tmp_path: Any) -> None:
    (record,) = run(correct="bic")
    write_record(record, tmp_path / "run")
    again = read_record(tmp_path / "run")
    assert again.info["tasks"] == record.info["tasks"]
    assert again.info["config"]["correct"] == "bic"


@pytest.mark.parametrize("correct", ["wa", "bic"])
def test_a_head_that_has_diverged_is_recorded_all_the_same(correct: str) -> None:
    (record,) = run(correct=correct, lr=1e38)
    assert any("has diverged" in note for note in record.info["notes"])


def test_the_same_corrected_run_twice_is_the_same_bit_for_bit() -> None:
    one, other = (run(correct="bic")[0] for _ in range(2))
    assert all(a.equals(b) for a, b in zip(tables(one), tables(other), strict=True))
