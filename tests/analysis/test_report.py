from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from clinit.analysis.report.measures import duration
from clinit.analysis.report.report import load_report, load_runs, report_of
from clinit.analysis.report.table import NARROWEST
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord
from tests.cli.made_cache import write_cache

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]
INITS = ("random", "class-mean", "least-square")
COLUMNS = (
    *("init", "A_all", "A_last", "A_inc", "forg.", "A_0", "A_new", "A_old", "A_pre", "L_new"),
    *("gain", "time"),
)


def printed(renderable: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_is_the_mean_over_all_evaluation_points(three_inits: Path) -> None:
    for row in load_report([three_inits]).rows():
        assert row["evaluation_points"] == 3 * 5
        for name in ("loss_new", "acc_pre", "acc_new", "acc_old", "acc_all"):
            tasks = [task[name] for task in row["tasks"]]
            assert row[name] == pytest.approx(sum(tasks) / 3)


def test_loss_is_the_mean_over_evaluation_points(make_run: MakeRun, write_runs: WriteRuns) -> None:
    runs = write_runs(make_run(loss_curve=lambda task, iteration: task + iteration / 100))
    (row,) = load_report([runs]).rows()
    assert row["loss_new"] == pytest.approx(2 + 1)
    (row,) = load_report([runs], skip_start=True).rows()
    assert row["loss_new"] == pytest.approx(2 + 1.25)
    assert (row["evaluation_points"], row["start_included"]) == (12, False)


def test_a_row_has_the_documented_keys(three_inits: Path) -> None:
    for row in load_report([three_inits]).rows():
        assert {
            *("id", "path", "init", "scale", "loss", "seed", "loss_new", "acc_pre", "acc_new"),
            *("acc_old", "acc_all", "gain_equal_level", "gain_random_best", "seconds"),
            *("loss_sample_rows", "tasks", "notes"),
            *("final", "forgetting", "average_incremental_accuracy", "accuracy_matrix"),
        } <= set(row)
        for number, task in enumerate(row["tasks"], 1):
            assert task["task"] == number
            assert {
                *("loss_new", "acc_pre", "acc_new", "acc_old", "acc_all", "acc_new_start"),
                *("acc_new_end", "gain_equal_level", "gain_random_best", "initialisation"),
                *("reached_at", "random_reached_at", "random_best_at", "target", "classes"),
            } <= set(task)
            assert task["initialisation"]["factor"] == 21.5
        shape = [[value is not None for value in line] for line in row["accuracy_matrix"]]
        assert shape == [[on <= after for on in range(4)] for after in (1, 2, 3)]


def test_json_is_the_rows(three_inits: Path) -> None:
    report = load_report([three_inits])
    assert json.loads(report.json()) == report.rows()


def test_a_loss_that_is_not_a_number_is_null_in_json(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    diverged = make_run("random", loss_curve=lambda task, iteration: float("nan"))
    report = load_report([write_runs(diverged)])
    assert json.loads(report.json())[0]["loss_new"] is None


def test_the_random_run_comes_first_and_its_gain_at_equal_level_is_one(three_inits: Path) -> None:
    rows = load_report([three_inits]).rows()
    assert [row["init"] for row in rows] == ["random", "class-mean", "least-square"]
    for part in (rows[0], *rows[0]["tasks"]):
        assert part["gain_equal_level"] == 1.0
    assert [row["gain_random_best"] for row in rows] == [1.0, 2.0, 4.0]
    assert (rows[2]["gain_tasks_reached"], rows[2]["gain_tasks"]) == (3, 3)


def test_runs_of_another_seed_are_not_compared(make_run: MakeRun, write_runs: WriteRuns) -> None:
    report = load_report([write_runs(make_run("random"), make_run("least-square", seed=1))])
    assert {row["init"]: row["gain_equal_level"] for row in report.rows()} == {
        "random": 1.0,
        "least-square": None,
    }
    assert any("No gain without a random run" in note for note in report.notes)


def test_a_record_given_twice_is_one_run(three_inits: Path) -> None:
    assert len(load_report([three_inits, three_inits / "random"]).runs) == 3


def test_notes_of_the_runs_are_said_once(make_run: MakeRun, write_runs: WriteRuns) -> None:
    note = "990 of 1,000 base classes have no validation image: [left out]"
    runs = write_runs(make_run("random", notes=[note]), make_run("least-square", notes=[note]))
    notes = load_report([runs]).notes
    assert notes.count(note) == 1
    assert len(set(notes)) == len(notes)


def test_a_level_that_is_not_reached_in_every_task_is_said(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    slow = make_run("least-square", accuracy=lambda task, iteration: 0.9 * (task == 2))
    report = load_report([write_runs(make_run("random"), slow)])
    assert report.rows()[1]["gain_tasks_reached"] == 1
    assert report.notes[0].startswith(
        "least-square: 95 % of random's best new-task accuracy is not"
    )
    assert "≥4.00*" in printed(report.table())
    assert "1.00*" not in printed(report.table())


def test_runs_without_a_step_have_no_gain_for_that_reason(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    # Random rows recognise nothing before the first step: that is not the reason.
    nothing = make_run("random", iterations=0, accuracy=lambda task, i: -0.05)
    report = load_report([write_runs(nothing, make_run("least-square", iterations=0))])
    assert report.rows()[0]["acc_new"] == 0.0
    assert report.notes == (
        "No gain over random in tasks 1, 2, 3: there is no evaluation after the start.",
    )
    seeds = [make_run("random", seed=seed, iterations=0) for seed in (0, 1)]
    assert load_report([write_runs(*seeds, folder="seeds")]).notes == (
        "No gain over random (seed 0) in tasks 1, 2, 3: there is no evaluation after the start.",
        "No gain over random (seed 1) in tasks 1, 2, 3: there is no evaluation after the start.",
    )


def test_a_task_without_test_images_has_no_gain_for_that_reason(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    report = load_report([write_runs(*(make_run(init, untested_task=2) for init in INITS))])
    assert report.notes[0] == (
        "No gain over random in task 2: there is no test image of the new classes."
    )
    assert [row["gain_tasks"] for row in report.rows()] == [2, 2, 2]
    assert [task["gain_equal_level"] for task in report.rows()[0]["tasks"]] == [1.0, None, 1.0]


def test_tasks_of_which_random_learns_nothing_have_no_gain_for_that_reason(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    nothing = make_run("random", accuracy=lambda task, i: 0.8 if task == 1 else -0.05)
    report = load_report([write_runs(nothing, make_run("least-square"))])
    assert report.notes[0] == (
        "No gain over random in tasks 2, 3: random's best accuracy on the new classes is 0 %."
    )


def test_a_diverged_loss_is_null_and_said(make_run: MakeRun, write_runs: WriteRuns) -> None:
    nan = make_run("random", loss_curve=lambda task, iteration: float("nan"))
    report = load_report([write_runs(nan)])
    assert json.loads(report.json())[0]["loss_new"] is None
    assert "random: the loss on the new task is not a finite number at 15 of 15" in report.notes[0]
    assert "Test accuracy" in printed(report.curves())
    report.figure().draw_without_rendering()


def test_the_table_keeps_all_columns_whole_at_80_characters(three_inits: Path) -> None:
    lines = printed(load_report([three_inits]).table()).splitlines()
    assert max(map(len, lines)) <= 80
    title = " ".join(lines[:3])
    assert title.startswith("imagenet_mini → places50, on test images, loss ce, head grow, 3 tasks")
    assert "scale calibrated" in title, "what is the same in all lines has no column"
    headings = " ".join(lines[:6]).split()
    assert [heading for heading in COLUMNS if heading not in headings] == []
    (line,) = [line for line in lines if line.startswith("least-square")]
    row = load_report([three_inits]).rows()[-1]
    names = ("last_accuracy", "average_incremental_accuracy", "forgetting")
    standard = [f"{row[name]:.2f}" for name in names]
    assert line.split() == [
        *("least-square", "86.99", *standard, "77.22", "83.22", "89.05", "89.17", "0.733"),
        *("≥4.00", "4.5s"),
    ]


def test_the_table_says_which_reading_of_the_gain_it_prints(three_inits: Path) -> None:
    report = load_report([three_inits])
    assert "gain: " not in printed(report.table())
    assert "gain: random-best." in " ".join(printed(report.table(reading="random-best")).split())
    assert (
        "gain, equal-level: iterations of random / iterations of the run, both to 95 % of random's"
        " best new-task accuracy; 1 for random itself."
    ) in report.markdown()
    assert (
        "gain, random-best: iterations of random to its best new-task accuracy / iterations of the"
        " run to 95 % of it; above 1 for random itself where it reaches 95 % before its best."
    ) in report.markdown(reading="random-best")


def gains(table: RenderableType) -> list[str]:
    """The column before the last (time) of the table of the runs."""
    return [
        words[-2]
        for line in printed(table).splitlines()
        if (words := line.split())[:1] and words[0] in INITS
    ]


def test_random_is_printed_as_one_at_equal_level_and_as_it_is_to_its_best(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    # Random is at 95 % of its best at 100, at its best at 200.
    random = make_run("random", accuracy=lambda task, i: {0: 0.0, 50: 0.4, 200: 1.0}.get(i, 0.95))
    ahead = make_run("least-square", accuracy=lambda task, i: 1.0)
    report = load_report([write_runs(random, ahead)])
    assert gains(report.table()) == ["1.00", "≥2.00"]
    assert gains(report.table(reading="random-best")) == ["2.00", "≥4.00"]
    for row, reached in zip(report.rows(), (100, 0), strict=True):
        for task in row["tasks"]:
            found = tuple(
                task[f"{name}_at"] for name in ("reached", "random_reached", "random_best")
            )
            assert found == (reached, 100, 200)


def test_the_best_value_of_a_column_is_bold(three_inits: Path) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(load_report([three_inits]).table())
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\x1b[1;32m83.22" in text
    assert "\x1b[1;32m72.22" not in text
    assert "\x1b[1;32m0.733" in text
    assert "\x1b[1;32m4.0s" in text


def test_settings_have_a_column_only_where_runs_differ(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = [make_run(init, seed=seed) for seed in (0, 1) for init in ("random", "least-square")]
    text = printed(load_report([write_runs(*runs)]).table())
    assert "seed  " in text
    assert "loss ce" in text.splitlines()[0]
    assert "seed" not in text.splitlines()[0]


def test_no_column_is_squeezed_however_many_settings_differ(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = [
        make_run("least-square", loss=loss, seed=seed) for loss in ("ce", "mse") for seed in (0, 1)
    ]
    report = load_report([write_runs(*runs, make_run("class-mean", loss="squentropy"))])
    for width in (60, 80, 120):
        lines = printed(report.table(width=width), width).splitlines()
        assert max(map(len, lines)) <= width
        assert sum("A_all" in line for line in lines) == 1
        assert "…" not in "".join(lines)
        assert min(len(line.split()[0]) for line in lines if "86.99" in line) > 1
    words = [line[:NARROWEST].strip() for line in printed(report.table(width=60), 60).splitlines()]
    said = " ".join(words)
    assert "least-square, loss mse, seed 1" in said or "least-square, seed 1, loss mse" in said


def test_the_ridge_parameter_is_shown_only_where_it_means_something(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    inits = [make_run(init, lam=lam) for init in ("least-square", "random") for lam in (0.05, 5.0)]
    text = printed(load_report([write_runs(inits[0], inits[1], inits[2])]).table())
    lines = [line.split()[:2] for line in text.splitlines()]
    assert ["random", "-"] in lines
    assert ["least-square", "0.05"] in lines
    assert ["least-square", "5"] in lines


def test_the_task_table_shows_every_task_with_start_and_end(three_inits: Path) -> None:
    report = load_report([three_inits])
    text = printed(report.task_table())
    assert max(map(len, text.splitlines())) <= 80
    for task in (1, 2, 3):
        assert f"Task {task}: 3 classes, 90 training images, 60 test images" in text
    assert all(heading in text for heading in ("A_0", "end", "A_new", "L_new", "gain"))
    assert "factor" in printed(report.task_table(width=120), 120)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.042, "0.04s"), (4.5, "4.5s"), (99.94, "99.9s"), (99.96, "1.7m"), (7200.0, "2.0h")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_title_says_what_of_the_backbone_learnt(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = [make_run(init, top_blocks=2, rank=48) for init in ("random", "least-square")]
    shown = " ".join(printed(load_report([write_runs(*runs)]).table()).split())
    assert "2 top blocks, rank 48, " in shown
    whole = make_run("random", top_blocks=2, full_rank=True, method="ewc")
    shown = " ".join(printed(load_report([write_runs(*runs, whole)]).table()).split())
    assert "2 top blocks, " in shown
    assert "; rehearsal: rank 48, " in shown


def test_runs_of_heads_alone_are_told_apart_from_runs_with_plastic_blocks(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    top = [make_run(init, top_blocks=2, rank=48) for init in ("random", "least-square")]
    heads = [make_run(init) for init in ("random", "least-square")]
    shown = printed(load_report([write_runs(*top, *heads)]).table())
    assert "2 top blocks" not in shown
    lines = [line.split() for line in shown.splitlines()]
    assert "top" in next(line for line in lines if line and line[0] == "init")
    assert sorted(line[1] for line in lines if line and line[0] == "random") == ["0", "2"]


def test_forward_transfer_has_a_column_where_it_was_measured(
    three_inits: Path, make_run: MakeRun, write_runs: WriteRuns
) -> None:
    assert "FWT" not in printed(load_report([three_inits]).table(width=80))
    run = make_run("least-square")
    for task, top1 in zip(run.info["tasks"], (0.5, 0.75), strict=False):
        task["forward_transfer"] = {"task": task["task"] + 1, "top1": top1, "iteration": 50}
    report = load_report([write_runs(run, make_run("random"))])
    shown = printed(report.table(width=80))
    assert "FWT" in shown
    assert "62.50" in shown
    row = next(row for row in report.rows() if row["forward_transfer"] is not None)
    assert row["forward_transfer"] == pytest.approx(62.5)
    assert [task["forward_transfer"] for task in row["tasks"]] == [50, 75, None]
    assert "75.00" in printed(report.task_table(width=100), 100)
    assert "…" not in printed(report.task_table(width=80))
    assert "…" not in shown


def test_csv_has_one_line_per_run_or_per_task(three_inits: Path) -> None:
    report = load_report([three_inits])
    lines = list(csv.DictReader(io.StringIO(report.csv())))
    assert [line["init"] for line in lines] == ["random", "class-mean", "least-square"]
    assert float(lines[2]["acc_new"]) == pytest.approx(report.rows()[2]["acc_new"])
    assert [line["gain_equal_level"] for line in lines] == ["1.0", "2.0", "4.0"]
    tasks = list(csv.DictReader(io.StringIO(report.csv(per_task=True))))
    assert [line["task"] for line in tasks] == ["1", "2", "3"] * 3
    assert {line["init_factor"] for line in tasks} == {"21.5"}


def test_a_run_that_only_evaluates_its_start_is_reported(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    runs = write_runs(*(make_run(init, iterations=0) for init in ("random", "least-square")))
    report = load_report([runs])
    assert [row["gain_equal_level"] for row in report.rows()] == [None, None]
    assert "least-square" in printed(report.table())
    assert "ooo random" in printed(report.curves())
    report.figure().draw_without_rendering()


def test_a_path_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such file or folder") as caught:
        load_report([tmp_path / "none"])
    assert "clinit train-head" in caught.value.remedy


def test_a_folder_without_records_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"looked for folders that hold run\.json") as caught:
        load_report([tmp_path])
    assert "clinit train-head --base" in caught.value.remedy


@pytest.mark.parametrize("place", ["", "old", "old/train"])
def test_a_cache_in_place_of_runs_is_told_as_one(tmp_path: Path, place: str) -> None:
    write_cache(tmp_path / "old", seed=0)
    with pytest.raises(RecordError, match="old is a feature cache") as caught:
        load_report([tmp_path / place])
    assert f"clinit cache show {tmp_path / 'old'}" in caught.value.remedy
    assert f"--out {tmp_path}" not in caught.value.remedy


def test_a_folder_whose_name_is_not_utf8_is_in_every_table(
    three_inits: Path, tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"odd\xff")
    shutil.copytree(three_inits, odd)
    assert r"odd\xff/random" in load_report([odd]).csv()
    assert r"odd\xff/random" in load_runs(odd).table()["path"].to_list()[0]


def test_an_incomplete_record_is_reported(three_inits: Path) -> None:
    (three_inits / "random" / "evaluations.parquet").unlink()
    with pytest.raises(RecordError, match=r"evaluations\.parquet"):
        load_report([three_inits])


def test_forward_transfer_stands_with_the_task_that_was_probed(make_run: MakeRun) -> None:
    runs = [make_run(init) for init in ("random", "least-square")]
    for run in runs:
        for task in run.info["tasks"][:2]:
            probed = task["task"] + 1
            task["forward_transfer"] = {"top1": 0.9 + probed / 1000, "task": probed}
    report = report_of(runs)
    text = printed(report.task_table(width=120), 120)
    first, second, third = text.split("Task ")[1:]
    assert "90.20" not in first
    assert second.count("90.20") == 2
    assert third.count("90.30") == 2
    narrow = printed(report.task_table(width=60), 60)
    assert "FWT" in " ".join(narrow.split()).split("Not shown in this width: ")[1]
    assert "90.20" not in narrow
    assert "FWT" not in printed(report_of([make_run()]).task_table(width=120), 120)
