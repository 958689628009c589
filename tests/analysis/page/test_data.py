import base64
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from clinit.analysis.page.data import curves, page_data, thin
from clinit.analysis.report.run import RunSummary
from clinit.analysis.runs import Runs, load_runs, runs_of
from clinit.headtrain.protocol.record.format import RunRecord
from clinit.words import visible
from tests.analysis.conftest import MakeRun

INITS = ("random", "class-mean", "least-square")


def data_of(report: Runs) -> dict[str, Any]:
    return page_data(report.runs, report.notes)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts(list(value.items()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts(each)


def cells(table: dict[str, Any], heading: str) -> list[Any]:
    place = [column["heading"] for column in table["columns"]].index(heading)
    return [line["cells"][place] for line in table["lines"]]


@pytest.fixture
def seeds(make_run: MakeRun) -> dict[str, Any]:
    return data_of(runs_of([make_run(init, seed=seed) for init in INITS for seed in (0, 1, 2)]))


def test_the_tables_are_those_of_the_report(seeds: dict[str, Any], make_run: MakeRun) -> None:
    means, runs = seeds["tables"]
    assert ("means" in means["of"], runs["of"]) == (True, "runs"), "by which the page finds one"
    assert [each["title"] for each in (means, runs)] == ["Means over seeds", "Runs"]
    assert [cell[0] for cell in cells(means, "seeds")] == ["3", "3", "3"]
    assert "±" in cells(means, "A_all")[0][0]
    found = runs_of([make_run(init) for init in INITS])
    rows = found.rows()
    (table,) = data_of(found)["tables"]
    for heading, name in (("A_all", "acc_all"), ("gain", "gain_equal_level")):
        assert [cell[1] for cell in cells(table, heading)] == [row[name] for row in rows]
    assert [cell[2] for cell in cells(table, "A_new")] == [False, False, True]
    for column in (column for table in seeds["tables"] for column in table["columns"]):
        if column["number"] or column["heading"] == "init":
            assert column["meaning"].endswith(".")


def test_settings_are_sorted_as_numbers_and_neural_collapse_has_a_table(make_run: MakeRun) -> None:
    records = [make_run("least-square", lr=lr) for lr in (0.05, 0.1)]
    for task in records[0].info["tasks"]:
        task["diagnosis"] = {"nc1": task["task"], "nc2": 0.5, "d_ls": 2.0}
    runs, collapse = data_of(runs_of(records))["tables"]
    assert [cell[1] for cell in cells(runs, "lr")] == [0.05, 0.1]
    assert cells(collapse, "NC1") == [["3", 3, False]]
    assert collapse["caption"].startswith("On buffer and new images (training), classes weigh the")


def test_runs_that_differ_in_their_seed_alone_look_alike(
    seeds: dict[str, Any], three_inits: Path
) -> None:
    (means,) = seeds["means"]
    assert base64.b64decode(means.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert data_of(load_runs(three_inits))["means"] == [], "of a single seed"
    looks = [run["look"] for run in seeds["runs"]]
    assert len(set(looks)) == 3
    for place, run in enumerate(seeds["runs"]):
        assert seeds["looks"][looks[place]]["label"] == run["label"].split(" (")[0]


def test_runs_are_switched_by_what_tells_them_apart(seeds: dict[str, Any]) -> None:
    assert seeds["fields"] == [
        {"name": "init", "values": [*INITS]},
        {"name": "seed", "values": ["0", "1", "2"]},
    ]
    assert sorted(tuple(run["choices"]) for run in seeds["runs"]) == [
        (init, seed) for init in range(3) for seed in range(3)
    ]


def test_what_was_asked_names_data_and_what_varies(seeds: dict[str, Any]) -> None:
    asked = seeds["asked"]
    facts = dict(asked["data"])
    assert facts["base classes"] == "4 classes, 80 test images (caches/imagenet_mini)"
    assert facts["new classes"] == (
        "9 classes in 3 tasks, 270 training images, 180 test images (caches/places50)"
    )
    assert "3 tasks, 200 iterations per task" in facts["in common"]
    assert asked["varying"] == [["init", ", ".join(INITS)], ["seed", "0, 1, 2"]]
    assert ["scale", "calibrated"] in asked["settings"]
    assert ["loss", "ce"] in asked["settings"]
    assert seeds["title"] == "imagenet_mini → places50, 9 runs"


def test_a_setting_that_the_first_run_lacks_is_asked_for_too(make_run: MakeRun) -> None:
    solved = make_run("random", method="ncm")
    for name in ("init", "lr", "buffer"):
        del solved.info["config"][name]
    asked = data_of(runs_of([solved, make_run("least-square")]))["asked"]
    assert ["buffer", "24,000"] in asked["settings"]


def test_the_matrix_is_that_of_the_report(three_inits: Path) -> None:
    report = load_runs(three_inits)
    for run, row in zip(data_of(report)["runs"], report.rows(), strict=True):
        assert run["matrix"]["tasks"] == [1, 2, 3]
        for line, wanted in zip(run["matrix"]["cells"], row["accuracy_matrix"], strict=True):
            assert line == [None if v is None else pytest.approx(v, abs=0.005) for v in wanted]
        assert run["matrix"]["forgetting"] == f"{row['forgetting']:.2f} %"


def test_a_run_says_how_to_repeat_it(make_run: MakeRun) -> None:
    record = make_run("random")
    record.info["command"] = ["clinit", "train-head", "--out", "my runs"]
    record.info["versions"] = {"torch": "2.11.0", "odd": [1, {"a": None}]}
    record = replace(record, path=Path("/data/my runs/random"))
    found = data_of(runs_of([record]))["runs"][0]["record"]
    assert found["command"] == "clinit train-head --out 'my runs'"
    assert found["versions"] == [["torch", "2.11.0"], ["odd", '[1, {"a": null}]']]
    assert ["buffer", "24000"] in found["settings"]


def test_no_text_holds_a_character_that_is_obeyed(hostile_runs: list[RunRecord]) -> None:
    found = list(texts(data_of(runs_of(hostile_runs))))
    assert all(text == visible(text) for text in found)
    assert any("\\u202e" in text for text in found)
    for record in hostile_runs:
        assert any(visible(record.info["id"]) == text for text in found)


numbers = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=300)


def decoded(found: dict[str, Any], name: str, run: int) -> list[tuple[int, int, float | None]]:
    """Return task, iteration and value of each point of a curve."""
    points = []
    for task, (grid, values) in enumerate(found["of"][name][run], 1):
        iterations = np.cumsum(found["grids"][grid]).tolist()
        points += [(task, i, v) for i, v in zip(iterations, values, strict=True)]
    return points


@given(numbers, st.integers(4, 40))
def test_thinning_keeps_the_extremes_and_both_ends(values: list[float], most: int) -> None:
    array = np.array(values)
    kept = thin(array, most)
    assert (np.diff(kept) > 0).all()
    assert {0, len(values) - 1} <= set(kept.tolist())
    assert len(kept) <= most + 1
    finite = array[np.isfinite(array)]
    if len(finite):
        assert finite.min() in array[kept]
        assert finite.max() in array[kept]


def test_spikes_at_task_switches_survive_the_thinning(
    make_run: MakeRun, noisy: Callable[..., RunRecord]
) -> None:
    record = noisy(make_run(tasks=5, iterations=2_000, every=500))
    found = curves([RunSummary.of(record)] * 20)
    drawn = decoded(found, "loss", 0)
    assert found["thinned"]
    assert len(drawn) < 600
    for task in range(1, 6):
        steps = record.steps.filter(pl.col("task") == task)["loss"]
        values = [value for of, _, value in drawn if of == task and value is not None]
        assert max(values) == pytest.approx(steps.max(), rel=1e-3)
        assert min(values) == pytest.approx(steps.min(), rel=1e-3)
        _, iteration, value = drawn[[of for of, _, _ in drawn].index(task)]
        assert iteration == 0
        assert value == pytest.approx(steps[0], rel=1e-3)


def test_losses_that_are_no_numbers_are_gaps(make_run: MakeRun) -> None:
    record, losses = make_run(iterations=4, every=2), [1.0, math.nan, math.inf, None] * 3
    steps = record.steps.with_columns(loss=pl.Series(losses, dtype=pl.Float32))
    found = curves([RunSummary.of(replace(record, steps=steps))])
    assert [value for _, _, value in decoded(found, "loss", 0)] == [1, None, None, None] * 3


@pytest.mark.parametrize(("peak", "log"), [(90.0, True), (0.5, False)])
def test_the_loss_of_steps_is_logarithmic_where_it_spans_decades(
    make_run: MakeRun, noisy: Callable[..., RunRecord], peak: float, log: bool
) -> None:
    assert curves([RunSummary.of(noisy(make_run(), peak=peak))])["log"]["loss"] == log
