from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from clinit.analysis.report import report_of
from clinit.cli.report import report
from clinit.errors import ClinitError, RecordError
from clinit.headtrain.record.format import RunRecord

MakeRun = Callable[..., RunRecord]
Scalars = dict[str, list[tuple[int, float]]]
STARTED = "2026-03-04T05:06:07+00:00"
app = typer.Typer()
app.command()(report)


@pytest.fixture(autouse=True)
def _needs_tensorboard(request: pytest.FixtureRequest) -> None:
    if "without" not in request.node.name:
        pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")


def accumulated(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def scalars_of(folder: Path) -> Scalars:
    found = accumulated(folder)
    tags = found.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags}


def naive(record: RunRecord, iterations: int) -> Scalars:
    """Losses and new-task losses, row by row."""
    found: Scalars = {}
    for table, group in ((record.steps, "step"), (record.points, "evaluation")):
        for row in table.iter_rows(named=True):
            for name in ("loss", "loss_new", "loss_old"):
                if row.get(name) is not None:
                    at = (row["task"] - 1) * iterations + row["iteration"]
                    found.setdefault(f"{group}/{name}", []).append((at, row[name]))
    return found


def test_events_hold_the_losses_and_accuracies_over_all_iterations(
    make_run: MakeRun, tmp_path: Path
) -> None:
    record = make_run("least-square", tasks=3, iterations=20, every=10)
    loss = 1 + pl.col("iteration").cast(pl.Float32) / 8
    old = pl.when(pl.col("iteration") > 2).then(pl.lit(0.25, pl.Float32))
    none = pl.lit(None, pl.Int32).alias("correct_in_task")
    record = replace(
        record,
        steps=record.steps.with_columns(loss=loss, loss_old=old),
        evaluations=record.evaluations.with_columns(none),
    )
    made = report_of([record])
    (folder,) = made.save_events(tmp_path)
    found = scalars_of(folder)
    for tag, expected in naive(record, 20).items():
        steps, values = zip(*expected, strict=True)
        assert [step for step, _ in found[tag]] == [*steps], tag
        assert [value for _, value in found[tag]] == pytest.approx(values), tag
    (run,) = made.runs
    for name in ("acc_pre", "acc_new", "acc_old", "acc_all"):
        assert [value for _, value in found[f"accuracy/{name}"]] == pytest.approx(
            run.points[name].to_list()
        )
    assert [step for step, _ in found["accuracy/acc_all"]] == [0, 10, 20, 20, 30, 40, 40, 50, 60]
    assert "accuracy/acc_in_task" not in found, "a record of an earlier version"


def test_what_a_run_lacks_is_left_out_and_a_diverged_loss_is_not(
    make_run: MakeRun, tmp_path: Path
) -> None:
    record = make_run(
        untested_task=1, iterations=10, every=5, loss_curve=lambda task, i: math.nan if i else 1.0
    )
    (folder,) = report_of([record]).save_events(tmp_path)
    found = scalars_of(folder)
    assert [step for step, _ in found["accuracy/acc_new"]] == [10, 15, 20, 20, 25, 30]
    assert [math.isnan(value) for _, value in found["evaluation/loss_new"]] == [
        False,
        True,
        True,
    ] * 3


def test_a_run_without_an_update_has_its_evaluations(make_run: MakeRun, tmp_path: Path) -> None:
    (folder,) = report_of([make_run(iterations=0)]).save_events(tmp_path)
    found = scalars_of(folder)
    assert [step for step, _ in found["accuracy/acc_all"]] == [0, 0, 0]
    assert not [tag for tag in found if tag.startswith("step/")]


def test_times_are_the_start_of_the_run_and_its_seconds(make_run: MakeRun, tmp_path: Path) -> None:
    record = make_run(iterations=20, every=10)
    record.info["started"] = STARTED
    (folder,) = report_of([record]).save_events(tmp_path)
    found = accumulated(folder)
    begins = found.Scalars("step/loss")[0].wall_time - 0.02
    assert begins == pytest.approx(1772600767)
    for tag in ("evaluation/loss_new", "step/loss"):
        times = [event.wall_time for event in found.Scalars(tag)]
        assert times == sorted(times)
    elapsed = [event.wall_time - begins for event in found.Scalars("evaluation/loss_new")]
    assert elapsed == pytest.approx(record.points["elapsed_s"].to_list(), abs=1e-4)


def test_each_run_has_a_folder_that_every_file_system_takes(
    make_run: MakeRun, tmp_path: Path
) -> None:
    notes = ("a/b: [red]\n", "a b  [red]", "../../up", "x" * 10_000, "\x1b\ud800")
    records = [make_run("least-square", note=note, iterations=2) for note in notes]
    folders = report_of(records).save_events(tmp_path / "events")
    assert len({folder.name.lower() for folder in folders}) == len(notes)
    for folder in folders:
        assert folder.parent == tmp_path / "events"
        assert len(folder.name) <= 110
        assert folder.name.isascii()
        assert not set(folder.name) & set('/\\:*?"<>| \n')
        assert "step/loss" in scalars_of(folder)


def test_settings_are_hyperparameters(make_run: MakeRun, tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import metadata

    record = make_run("least-square", note="[red]\n", most=2**80)
    (folder,) = report_of([record]).save_events(tmp_path)
    found = accumulated(folder)
    (content,) = found.PluginTagToContent(metadata.PLUGIN_NAME).values()
    told = metadata.parse_session_start_info_plugin_data(content).hparams
    assert told["init"].string_value == "least-square"
    assert told["lr"].number_value == 0.001
    assert told["note"].string_value == "[red]\\x0a"
    assert told["most"].string_value == str(2**80)


def test_writing_again_replaces_the_events(make_run: MakeRun, tmp_path: Path) -> None:
    made = report_of([make_run(iterations=10)])
    (folder,) = made.save_events(tmp_path)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    made.save_events(tmp_path)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert len(before) == 1


def test_a_folder_that_cannot_be_written_is_an_error(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClinitError, match="cannot write"):
        report_of([make_run(iterations=1)]).save_events(tmp_path / "file")


def test_the_command_says_how_to_look(three_inits: Path, tmp_path: Path) -> None:
    words = [str(three_inits), "--no-curves", "--tensorboard", str(tmp_path / "events")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert f"tensorboard --logdir {tmp_path / 'events'}" in result.stderr
    names = {path.name for path in (tmp_path / "events").iterdir()}
    assert names == {"random", "class-mean", "least-square"}


def test_without_tensorboard_the_extra_is_named(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(RecordError, match="needs TensorBoard, which is not installed") as caught:
        report_of([make_run()]).save_events(tmp_path / "events")
    assert caught.value.remedy == 'Install it: pip install "clinit[tensorboard]".'
    assert not (tmp_path / "events").exists()
