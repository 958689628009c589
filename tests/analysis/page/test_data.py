import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clinit.analysis.page.data import page_data
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
