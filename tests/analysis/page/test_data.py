from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clinit.analysis.figures.style import COLOURS
from clinit.analysis.metrics.efficiency import READINGS, Reading, value_name
from clinit.analysis.page.data import page_data
from clinit.analysis.report.report import Report, load_report, report_of
from clinit.headtrain.record.format import RunRecord
from clinit.words import visible

MakeRun = Callable[..., RunRecord]
INITS = ("random", "class-mean", "least-square")


def data_of(report: Report, reading: Reading = "equal-level") -> dict[str, Any]:
    return page_data(report.runs, report.notes, reading)


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


def test_what_the_start_is_worth_stands_at_the_top(seeds: dict[str, Any]) -> None:
    (words,) = (text for name, text in seeds["asked"]["data"] if name == "result")
    assert words.startswith("Before the first step of a task, random rows recognise")
    assert words.endswith("(mean over 3 tasks and 3 seeds).")


@pytest.fixture
def seeds(make_run: MakeRun) -> dict[str, Any]:
    records = [make_run(init, seed=seed) for init in INITS for seed in (0, 1, 2)]
    return data_of(report_of(records))


def test_the_data_are_json_and_the_same_for_the_same_records(three_inits: Path) -> None:
    first, second = (data_of(load_report([three_inits])) for _ in range(2))
    assert json.dumps(first, allow_nan=False) == json.dumps(second, allow_nan=False)
    assert json.loads(json.dumps(first)).keys() == first.keys()


def test_the_table_of_runs_has_the_values_of_the_report(three_inits: Path) -> None:
    report = load_report([three_inits])
    (table,) = data_of(report)["tables"]
    for heading, name in (("A_all", "acc_all"), ("L_new", "loss_new"), ("time", "seconds")):
        assert [cell[1] for cell in cells(table, heading)] == [row[name] for row in report.rows()]
    starts = [row["acc_new_start"] for row in report.rows()]
    assert [cell[1] for cell in cells(table, "A_0")] == starts
    assert cells(table, "gain")[2][0].startswith("≥")
    assert "≥: at least" in table["caption"]
    assert [cell[0] for cell in cells(table, "init")] == list(INITS)
    assert [cell[2] for cell in cells(table, "A_new")] == [False, False, True]  # the best


def test_the_reading_of_the_gain_is_that_asked_for(three_inits: Path) -> None:
    report = load_report([three_inits])
    for reading in READINGS:
        (table,) = data_of(report, reading)["tables"]
        expected = [row[value_name(reading)] for row in report.rows()]
        assert [cell[1] for cell in cells(table, "gain")] == expected


def test_every_column_of_numbers_has_a_meaning_of_one_line(seeds: dict[str, Any]) -> None:
    for table in seeds["tables"]:
        for column in table["columns"]:
            if column["number"] or column["heading"] in ("init", "scale"):
                assert column["meaning"].endswith(".")
                assert len(column["meaning"]) < 140


def test_means_over_seeds_come_before_the_runs(seeds: dict[str, Any]) -> None:
    means, runs = seeds["tables"]
    assert ("of" in means, runs["of"]) == (False, "runs"), "by which the page finds the second"
    assert (means["title"], runs["title"]) == (
        "Means over seeds, measured on test images",
        "Runs, measured on test images",
    )
    assert [cell[0] for cell in cells(means, "seeds")] == ["3", "3", "3"]
    names = [cell[0] for cell in cells(runs, "init")]
    pairs = zip(names, cells(runs, "A_all"), strict=True)
    best = [cell[1] for name, cell in pairs if name == cells(means, "init")[0][0]]
    assert cells(means, "A_all")[0][1] == pytest.approx(sum(best) / 3)
    assert "±" in cells(means, "A_all")[0][0]


def test_forward_transfer_has_a_column_where_it_was_measured(make_run: MakeRun) -> None:
    record = make_run("random")
    record.info["tasks"][0]["forward_transfer"] = {"top1": 0.5}
    (table,) = data_of(report_of([record]))["tables"]
    assert cells(table, "FWT") == [["50.00", 50.0, False]]


def test_measured_neural_collapse_has_a_table(make_run: MakeRun) -> None:
    record = make_run("random")
    for task in record.info["tasks"]:
        task["diagnosis"] = {"nc1": task["task"], "nc2": 0.5, "d_ls": None}
    table = data_of(report_of([record]))["tables"][-1]
    assert cells(table, "NC1") == [["3", 3]]
    assert cells(table, "D_LS") == [["-", None]]


def test_runs_that_differ_in_their_seed_alone_look_alike(seeds: dict[str, Any]) -> None:
    looks = [run["look"] for run in seeds["runs"]]
    assert len(set(looks)) == 3
    for place, run in enumerate(seeds["runs"]):
        assert seeds["looks"][looks[place]]["label"] == run["label"].split(" (")[0]


def test_starts_have_colours_and_variants_of_an_init_have_dashes(
    make_run: MakeRun,
) -> None:
    records = [make_run(init, loss=loss) for init in INITS for loss in ("ce", "mse")]
    looks = data_of(report_of(records))["looks"]
    assert len({look["colour"] for look in looks}) == 6
    assert len({tuple(look["dash"]) for look in looks}) == 2


def test_one_initialisation_of_many_settings_has_a_look_for_each(make_run: MakeRun) -> None:
    records = [make_run("random", lr=0.001 * number) for number in range(1, 10)]
    looks = data_of(report_of(records))["looks"]
    assert len({(look["colour"], *look["dash"]) for look in looks}) == 9
    assert {look["colour"] for look in looks} == set(range(len(COLOURS)))


def test_runs_are_switched_by_what_tells_them_apart(seeds: dict[str, Any]) -> None:
    assert seeds["fields"] == [
        {"name": "init", "values": [*INITS]},
        {"name": "seed", "values": ["0", "1", "2"]},
    ]
    assert sorted(tuple(run["choices"]) for run in seeds["runs"]) == [
        (init, seed) for init in range(3) for seed in range(3)
    ]


def test_a_setting_without_a_meaning_to_a_run_does_not_switch_it(make_run: MakeRun) -> None:
    records = [make_run("random"), make_run("least-square", "norm"), make_run("least-square")]
    data = data_of(report_of(records))
    assert [field["name"] for field in data["fields"]] == ["init", "scale"]
    assert data["runs"][0]["choices"] == [0, None]


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


def test_data_sets_that_differ_are_not_in_common(make_run: MakeRun) -> None:
    records = [make_run("random"), make_run("least-square")]
    records[1].info["new"]["path"] = "caches/other"
    data = data_of(report_of(records))
    assert data["title"] == "2 runs"
    assert ["new", "places50, other"] in data["asked"]["varying"]
    assert "new classes" not in dict(data["asked"]["data"])


def test_the_matrix_is_that_of_the_report(three_inits: Path) -> None:
    report = load_report([three_inits])
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
    found = data_of(report_of([record]))["runs"][0]["record"]
    assert found["command"] == "clinit train-head --out 'my runs'"
    assert found["rerun"] == "clinit rerun '/data/my runs/random'"
    assert found["versions"] == [["torch", "2.11.0"], ["odd", '[1, {"a": null}]']]
    assert ["buffer", "24000"] in found["settings"]


def test_a_run_that_was_not_recorded_has_no_path(make_run: MakeRun) -> None:
    found = data_of(report_of([make_run("random")]))["runs"][0]["record"]
    assert (found["path"], found["rerun"], found["command"]) == (None, None, None)


def test_a_run_without_a_test_image_has_no_accuracy(make_run: MakeRun) -> None:
    record = make_run("random")
    classes = record.classes.with_columns(val_rows=0 * record.classes["val_rows"])
    empty = replace(record, evaluations=record.evaluations.clear(), classes=classes)
    data = data_of(report_of([empty]))
    assert data["runs"][0]["matrix"]["cells"] == [[None] * 4] * 3
    assert cells(data["tables"][0], "A_all") == [["-", None, False]]


def test_no_text_holds_a_character_that_is_obeyed(hostile_runs: list[RunRecord]) -> None:
    found = list(texts(data_of(report_of(hostile_runs))))
    assert all(text == visible(text) for text in found)
    assert any("\\u202e" in text for text in found)
    for record in hostile_runs:
        assert any(visible(record.info["id"]) == text for text in found)
