import re
from dataclasses import replace
from pathlib import Path

import pytest

from clinit.analysis.report import ReportView
from clinit.analysis.report.settings import by_data
from clinit.analysis.report.tables import collapse_table, ranking, run_table, task_table
from clinit.analysis.runs import Runs, load_runs, runs_of
from clinit.errors import RecordError
from clinit.headtrain.protocol.record.info import held_out_manifest, held_out_share
from tests.analysis.conftest import MakeRun, seeded
from tests.analysis.printed import printed, unbroken

INITS = ("random", "class-mean", "least-square")
FURTHER = ("backward_transfer", "acc_in_task", "acc_pre_alone", "loss_new", "forgetting")


def line_of(init: str, text: str) -> list[str]:
    """The words of the line of an initialisation, its place in the ranking left out."""
    (line,) = (line for line in text.splitlines() if re.match(rf"(\d )? *{init}\b", line))
    return re.sub(r"^\d ", "", line).split()


def test_the_table_of_runs_keeps_all_columns_whole_at_80_characters(three_inits: Path) -> None:
    report = load_runs(three_inits)
    text = printed(run_table(report.runs))
    assert max(map(len, text.splitlines())) <= 80
    title = unbroken(run_table(report.runs))
    assert title.startswith(
        "imagenet_mini → places50, on test images, loss ce, head width grow, 3 tasks"
    )
    assert "scale calibrated" in title, "what is the same in all lines has no column"
    row = report.rows()[-1]
    names = ("last_accuracy", "average_incremental_accuracy", "forgetting")
    standard = [f"{row[name]:.2f}" for name in names]
    assert line_of("least-square", text) == [
        *("least-square", "86.99", *standard, "77.22", "83.22", "89.05", "89.17", "0.733"),
        *("≥4.00", "4.5s"),
    ]
    bold = printed(run_table(report.runs), bold=True)
    for best in ("83.22", "0.733", "4.0s"):
        assert f"\x1b[1;32m{best}" in bold
    assert "\x1b[1;32m72.22" not in bold


def test_chosen_columns_that_do_not_fit_are_left_out_from_the_right_and_named(
    make_run: MakeRun,
) -> None:
    report, headings = seeded(make_run, 1), ["BWT", "A_task", "A_base", "L_new", "forg."]
    for width in (40, 60, 120):
        text = printed(run_table(report.runs, FURTHER), width)
        head = next(line for line in text.splitlines() if "BWT" in line)
        shown = [heading for heading in headings if heading in head]
        assert shown == headings[: len(shown)]
        missing = ", ".join(headings[len(shown) :])
        told = f"Not shown in this width: {missing} (a wider terminal, or COLUMNS=120)."
        assert (told in " ".join(text.split())) == bool(missing)
    with pytest.raises(RecordError, match="no column 'acc_olt'") as caught:
        run_table(report.runs, ["acc_olt"])
    assert "acc_old" in caught.value.remedy


def test_settings_mean_something_to_some_runs_only(make_run: MakeRun) -> None:
    inits = [make_run(init, lam=lam) for init in ("least-square", "random") for lam in (0.05, 5.0)]
    lines = [line.split()[:2] for line in printed(run_table(runs_of(inits[:3]).runs)).splitlines()]
    assert [line for line in lines if line[:1] in (["random"], ["least-square"])] == [
        ["random", "-"],
        ["least-square", "0.05"],
        ["least-square", "5"],
    ]
    top = [make_run(init, top_blocks=2, rank=48) for init in ("random", "least-square")]
    whole = make_run("random", top_blocks=2, full_rank=True, method="ewc")
    assert "2 top blocks, rank 48, " in unbroken(run_table(runs_of(top).runs))
    shown = unbroken(run_table(runs_of([*top, whole]).runs))
    assert "2 top blocks, " in shown
    assert "(rank 48, " in shown
    text = printed(run_table(runs_of([*top, make_run("random"), make_run("least-square")]).runs))
    assert sorted(line.split()[1] for line in text.splitlines() if line.startswith("random")) == [
        *("0", "2")
    ]


def test_copies_of_a_run_are_left_out_with_a_note(make_run: MakeRun) -> None:
    """Random rows have no lambda, so two values of it are one run."""
    records = [
        make_run(seed=0),
        make_run(seed=0, lam=9.0),
        make_run(seed=1),
        make_run("class-mean"),
    ]
    records = [replace(each, path=Path(f"/runs [b]/{n}")) for n, each in enumerate(records)]
    report = runs_of(records)
    assert [str(run.path)[-1] for run in report] == ["0", "3", "2"]
    assert "1 record with the settings, data and seed of another: /runs [b]/1." in report.notes[0]
    assert not runs_of(records[2:]).notes[0].startswith("Left out")


def test_the_ranking_has_deviations_beside_or_below_the_means(make_run: MakeRun) -> None:
    report = seeded(make_run)
    lines = printed(ranking(report.runs)).splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("least-square ")]
    assert lines[place].split()[:2] == ["least-square", "3"]
    assert lines[place + 1].split()[0].startswith("±"), "below, as there is no room beside it"
    wide = printed(ranking(report.runs), 160)
    (line,) = [line for line in wide.splitlines() if line.startswith("least-square ")]
    assert line.count("±") == 9
    assert line.endswith("<50"), "the grid of evaluations decides"
    unequal = runs_of([make_run(seed=0), make_run(seed=1), make_run("class-mean")])
    assert "over seeds (1 to 2)" in unbroken(ranking(unequal.runs))


def test_means_over_some_tasks_only_are_starred(make_run: MakeRun) -> None:
    slow = [
        make_run("least-square", seed=s, accuracy=lambda task, i, s=s: 0.9 * (task == 2 or s == 1))
        for s in (0, 1)
    ]
    report = runs_of([*slow, *(make_run("random", seed=s) for s in (0, 1))])
    ranked = printed(ranking(report.runs), 160)
    assert line_of("least-square", ranked)[-1].endswith("*")
    assert not line_of("random", ranked)[-1].endswith("*")
    assert "*: not in every task of every run." in " ".join(ranked.split())


def test_the_task_table_shows_every_task_and_the_probe_of_its_classes(make_run: MakeRun) -> None:
    runs = [make_run(init) for init in ("random", "least-square")]
    for run in runs:
        for task in run.info["tasks"][:2]:
            probed = task["task"] + 1
            task["forward_transfer"] = {"top1": 0.9 + probed / 1000, "task": probed}
    report = runs_of(runs)
    text = printed(task_table(report.runs), 120)
    first, second, third = text.split("Task ")[1:]
    assert first.startswith("1: 3 classes, 90 training images, 60 test images")
    assert [part.count("90.20") for part in (first, second, third)] == [0, 2, 0]
    assert third.count("90.30") == 2
    assert all(heading in text for heading in ("A_0", "end", "A_new", "L_new", "gain", "factor"))
    assert "FWT" in unbroken(task_table(report.runs), 60).split("Not shown in this width: ")[1]
    assert "FWT" not in printed(task_table(runs_of([make_run()]).runs), 120)
    assert "90.25" in printed(run_table(report.runs), 120)
    assert "FWT" not in printed(run_table(runs_of([make_run()]).runs), 120)


def test_neural_collapse_has_the_images_that_it_was_measured_on(make_run: MakeRun) -> None:
    values = {"nc1": 0.00867, "nc2": 1.361, "nc3": 1.301, "nc2_floor": 1.0691, "nc4": 2047.0}
    records = [make_run(init) for init in INITS]
    for task in (task for record in records for task in record.info["tasks"]):
        task["diagnosis"] = {**values, "d_ls": 4_010_000.0, "d_ls_relative": None}
    report = runs_of(records)
    text = printed(collapse_table(report.runs))
    assert line_of("least-square", text) == [
        *("least-square", "1", "0.00867", "1.36", "1.3", "1.07", "2.05e3", "4.01e6")
    ]
    assert "On buffer and new images (training), classes weigh the same" in text
    assert "".join(map(printed, report.parts(ReportView(per_task=True)))).count("4.01e6") == 3 + 9
    assert "full collapse" not in "".join(map(printed, runs_of([make_run()]).parts(ReportView())))


TRIAL = "on held-out training images (10 %)"


@pytest.mark.parametrize("share", [0.001, 0.1, 0.25, 0.9, 1e-5])
def test_the_share_that_was_held_out_is_read_back(share: float) -> None:
    assert held_out_share({"base": {"val_manifest_digest": held_out_manifest(share, 3)}}) == share


@pytest.fixture
def searched(make_run: MakeRun) -> Runs:
    """Trials that look better than the tested run, as they do on images like those trained on."""
    records = [make_run("least-square", lr=lr, accuracy=lambda t, i: 0.9) for lr in (0.1, 0.2)]
    for record in records:
        for info in (record.info["base"], record.info["new"]):
            info["val_manifest_digest"] = held_out_manifest(0.1, 0)
    return runs_of([*records, make_run("least-square", lr=0.1, accuracy=lambda t, i: 0.6)])


def test_trials_are_not_ranked_with_the_tested_run(searched: Runs) -> None:
    asked = ReportView(by_seed=True, per_task=True)
    tables = [part for part in searched.parts(asked) if "Data 2 of 2: " in printed(part)]
    assert "Ranked by A_all" in printed(tables[0])
    assert len(tables) == 3
    for table in tables:
        tested, trials = printed(table).split("Data 2 of 2: ")
        assert tested.startswith("Data 1 of 2: imagenet_mini → places50, on test images")
        assert TRIAL in trials.splitlines()[0]
        assert TRIAL not in tested
    first, second = (
        searched.as_text(ReportView(format="markdown")).replace("\\", "").split("\n\n**")
    )
    assert (TRIAL in first, TRIAL in second) == (False, True)
    measured = [row["measured_on"] for row in searched.rows()]
    assert sorted(measured) == [*2 * [TRIAL.removeprefix("on ")], "test images"]
    forms = [
        ReportView(format="csv"),
        ReportView(format="csv", means=True),
        ReportView(format="json", means=True),
    ]
    for text in map(searched.as_text, forms):
        assert text.count(TRIAL.removeprefix("on ")) == 2


def test_a_copy_of_a_cache_holds_the_same_data(make_run: MakeRun) -> None:
    copied = make_run("least-square")
    copied.info["new"]["path"] = "copies/places50"
    runs = runs_of([make_run("random"), copied]).runs
    assert by_data(runs) == {"": runs}
