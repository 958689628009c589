from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from clinit.analysis.metrics.efficiency import comparison_key
from clinit.analysis.report.report import load_report
from clinit.analysis.report.settings import differences, shown
from clinit.cli.main import app
from clinit.errors import CacheError, ClinitError, DeviceError, ExperimentError, RecordError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head, read_head, write_head
from clinit.extract.cache.plan import Plan, settle_plan, shard_name
from clinit.extract.cache.shard import assemble, write_shard
from clinit.extract.cache.summary import RunFacts, write_summary
from clinit.extract.dataset.manifest import Manifest, write_manifest
from clinit.headtrain import runs
from clinit.headtrain.record import format as record_module
from clinit.headtrain.record.format import find_records, read_record
from clinit.headtrain.stream.base_head import head_digest, read_base_head
from clinit.headtrain.stream.source import read_source
from clinit.headtrain.train import heads as precision

DIM, CLASSES = 8, 4
FINGERPRINT = Fingerprint({"backbone": "made", "weights": "1"})
OTHER_WEIGHTS = Fingerprint({"backbone": "made", "weights": "2"})


def write_split(
    cache: Path,
    split: str,
    centres: np.ndarray,
    *,
    rows_a_class: int = 12,
    bad: Sequence[int] = (),
    fingerprint: Fingerprint = FINGERPRINT,
) -> None:
    """Write a complete split of Gaussian classes, as an extraction would have."""
    names = tuple(f"{cache.name}{index}" for index in range(len(centres)))
    labels = np.repeat(np.arange(len(centres)), rows_a_class)
    table = pl.DataFrame(
        {
            "path": [f"{names[label]}/{row:03}.png" for row, label in enumerate(labels)],
            "label": labels,
            "class_name": [names[label] for label in labels],
            "size_bytes": np.full(len(labels), 7, dtype=np.int64),
        }
    )
    manifest = Manifest("made", split, names, table)
    plan = Plan(
        dataset="made",
        split=split,
        num_rows=len(labels),
        dim=DIM,
        dtype="float16",
        shard_rows=10,
        batch_size=10,
        fingerprint=fingerprint.of_rows(manifest.digest),
    )
    folder = cache / split
    noise = np.random.default_rng(len(split)).normal(size=(len(labels), DIM))
    features = (centres[labels] + 0.3 * noise).astype(np.float32)
    settle_plan(plan, folder)
    write_manifest(manifest, folder / "manifest.parquet")
    for index in range(plan.num_shards):
        rows = list(plan.rows(index))
        shard = assemble(
            features[rows],
            labels[rows],
            {row - rows[0]: "truncated" for row in bad if row in rows},
            dtype="float16",
        )
        write_shard(shard, folder / shard_name(index), plan=plan, index=index)
    write_summary(folder, plan, manifest, head=None, head_classes="none", run=RunFacts())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of caches of base and of new classes, not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    centres = np.random.default_rng(0).normal(size=(CLASSES, DIM))
    write_split(folder / "base", "train", centres)
    write_split(folder / "base", "val", centres)
    names = tuple(f"base{index}" for index in range(CLASSES))
    weight, bias = 10 * centres, -5 * (centres**2).sum(1)
    identifier = FINGERPRINT.backbone_identifier
    head = Head(weight.astype(np.float32), bias.astype(np.float32), names, identifier)
    write_head(head, folder / "base" / "head.safetensors")
    centres = np.random.default_rng(1).normal(size=(CLASSES, DIM))
    write_split(folder / "new", "train", centres, bad=[3])
    write_split(folder / "new", "val", centres)
    return folder


@pytest.fixture
def base(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "base", tmp_path / "base")


@pytest.fixture
def new(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "new", tmp_path / "new")


def invoke(base: Path, new: Path, out: Path, *options: str) -> Result:
    words = ["--base", str(base), "--new", str(new), "--out", str(out)]
    sizes = ["--tasks", "2", "--iterations", "12", "--eval-every", "5", "--batch-size", "8"]
    return CliRunner().invoke(app, ["train-head", *words, *sizes, "--device", "cpu", *options])


def refused(result: Result) -> ClinitError:
    assert isinstance(result.exception, ClinitError), result.output
    return result.exception


def test_one_call_writes_a_record_a_head_and_prints_their_table(
    base: Path, new: Path, tmp_path: Path
) -> None:
    result = invoke(base, new, tmp_path / "runs", "--buffer", "10")
    assert result.exit_code == 0, result.output
    names = ["class-mean-calibrated", "least-square-calibrated", "random"]
    assert [folder.name for folder in find_records(tmp_path / "runs")] == names
    for text in ("A_pre", "A_new", "A_old", "A_all", "L_new", "least-square", "3 run records at"):
        assert text in result.output
    assert "Note: " in result.output
    record = read_record(tmp_path / "runs" / "random")
    assert record.info["base"]["path"] == str(base)
    assert record.info["base"]["manifest_digest"] != record.info["new"]["manifest_digest"]
    assert record.info["config"]["buffer"] == 10
    assert record.info["timings_s"]["load"] > 0
    assert f"{new}/train lists 1 bad images: they are left out" in record.info["notes"]


def test_repeated_options_are_combined_and_random_rows_come_once(
    base: Path, new: Path, tmp_path: Path
) -> None:
    options = ["--init", "random", "--init", "least-square", "--scale", "none", "--scale", "norm"]
    result = invoke(base, new, tmp_path / "runs", *options)
    assert result.exit_code == 0, result.output
    names = [folder.name for folder in find_records(tmp_path / "runs")]
    assert names == ["least-square-none", "least-square-norm", "random"]


def test_verbose_shows_what_calibration_chose(base: Path, new: Path, tmp_path: Path) -> None:
    result = invoke(base, new, tmp_path / "runs", "--init", "least-square", "-v")
    assert result.exit_code == 0, result.output
    assert "Task 2, least-square-calibrated: factor " in result.output
    assert "class-balanced loss" in result.output


def test_fitted_rows_of_few_images_are_recorded_with_how_they_came_about(
    base: Path, new: Path, tmp_path: Path
) -> None:
    few = ("--shots", "3", "--fit-ridge", "20", "--lambda", "0.5", "--method", "rehearsal")
    result = invoke(base, new, tmp_path / "runs", *few, "--init", "fitted")
    assert result.exit_code == 0, result.output
    record = read_record(tmp_path / "runs" / "fitted-calibrated")
    config = record.info["config"]
    assert (config["shots"], config["fit_ridge"], config["lam"]) == (3, 20.0, 0.5)
    task = record.info["tasks"][0]
    assert task["train_rows"] == 3 * task["classes"]
    start = task["initialisation"]
    assert start["fit_s"] > 0
    assert start["loss_after"] <= start["loss_before"]


def hollow_cache(folder: Path) -> Path:
    """Make a cache of an empty file, which cannot be read."""
    (folder / "hollow" / "train").mkdir(parents=True)
    (folder / "hollow" / "train" / "plan.json").touch()
    return folder / "hollow"


def test_an_existing_record_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "runs" / "random").mkdir(parents=True)
    hollow = hollow_cache(tmp_path)
    error = refused(invoke(hollow, hollow, tmp_path / "runs"))
    assert isinstance(error, RecordError)
    assert str(error).endswith("runs/random that is never replaced: it is no run record")
    assert error.remedy == "Choose another --out, or move it away."


def test_a_cache_without_a_head_is_refused(base: Path, new: Path, tmp_path: Path) -> None:
    error = refused(invoke(new, base, tmp_path / "runs"))
    assert isinstance(error, ExperimentError)
    assert f"{new} holds no pretrained head to start from" in str(error)
    assert "--fit-head" in error.remedy


def test_caches_of_different_backbones_are_refused_by_the_field(base: Path, tmp_path: Path) -> None:
    centres = np.zeros((CLASSES, DIM))
    write_split(tmp_path / "other", "train", centres, fingerprint=OTHER_WEIGHTS)
    error = refused(invoke(base, tmp_path / "other", tmp_path / "runs"))
    assert isinstance(error, CacheError)
    assert "different backbones: weights (1 / 2)" in str(error)


def test_a_cache_without_a_val_split_is_read(tmp_path: Path) -> None:
    write_split(tmp_path / "cache", "train", np.zeros((CLASSES, DIM)))
    assert len(read_source(tmp_path / "cache").val.labels) == 0


def test_a_cache_without_a_train_split_is_refused(tmp_path: Path) -> None:
    write_split(tmp_path / "cache", "val", np.zeros((CLASSES, DIM)))
    with pytest.raises(CacheError, match="has no split 'train'"):
        read_source(tmp_path / "cache")


def test_a_precision_is_recorded(
    base: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)
    options = ["--precision", "bf16", "--init", "random"]
    result = invoke(base, new, tmp_path / "runs", *options)
    assert result.exit_code == 0, result.output
    assert read_record(tmp_path / "runs" / "random").info["config"]["precision"] == "bf16"


def test_a_precision_that_the_device_lacks_is_refused_before_anything_is_read(
    tmp_path: Path,
) -> None:
    hollow = hollow_cache(tmp_path)
    error = refused(invoke(hollow, hollow, tmp_path / "runs", "--precision", "tf32"))
    assert isinstance(error, DeviceError)
    assert "tf32 needs a CUDA device, and training runs on cpu" in str(error)
    assert "--precision float32" in error.remedy


def test_a_learning_rate_of_zero_is_a_wrong_argument(tmp_path: Path) -> None:
    result = invoke(tmp_path, tmp_path, tmp_path / "runs", "--lr", "0")
    assert result.exit_code == 2
    assert "--lr takes a number" in result.output


def run_alone(base: Path, new: Path, out: Path, *options: str) -> Result:
    words = ["--base", str(base), "--new", str(new), "--out", str(out)]
    return CliRunner().invoke(
        app, ["train-head", *words, "--tasks", "2", "--device", "cpu", *options]
    )


@pytest.mark.parametrize("method", ["ncm", "ridge", "lda"])
def test_a_solved_head_is_one_record_named_by_its_method(
    method: str, base: Path, new: Path, tmp_path: Path
) -> None:
    result = run_alone(base, new, tmp_path / "runs", "--method", method, "--diagnose")
    assert result.exit_code == 0, result.output
    assert [folder.name for folder in find_records(tmp_path / "runs")] == [method]
    assert method in result.output
    assert "No gain without a random run" not in result.output
    assert read_record(tmp_path / "runs" / method).info["tasks"][1]["diagnosis"]


@pytest.mark.parametrize("method", ["naive", "joint"])
def test_methods_without_a_buffer_are_trained_beside_rehearsal(
    method: str, base: Path, new: Path, tmp_path: Path
) -> None:
    for name in ("rehearsal", method):
        result = invoke(base, new, tmp_path / "runs", "--method", name)
        assert result.exit_code == 0, result.output
    assert (tmp_path / "runs" / f"{method}-least-square-calibrated" / "run.json").is_file()
    assert (tmp_path / "runs" / "least-square-calibrated" / "run.json").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--method", "naive", "--buffer", "10"],
            "--buffer does not go with --method naive: it trains on new rows alone; with"
            " --init-rows buffer, one is kept for initialisation",
        ),
        (
            ["--method", "ridge", "--init-rows", "new"],
            "--init-rows does not go with --method ridge",
        ),
        (["--method", "ncm", "--weighting", "sample"], "--weighting does not go with --method ncm"),
        (
            ["--method", "naive", "--init-rows", "buffer", "--mix", "sgm"],
            "--mix does not go with --method naive",
        ),
        (
            ["--method", "ncm", "--lambda", "1"],
            "--lambda does not go with --method ncm: its",
        ),
        (["--method", "ridge", "--lr", "0.1"], "--lr does not go with --method ridge"),
        (["--method", "lda", "--init", "lda"], "--init does not go with --method lda"),
        (["--method", "ncm", "--precision", "bf16"], "--precision does not go with --method ncm"),
    ],
)
def test_options_that_a_method_would_ignore_are_refused(
    options: list[str], message: str, base: Path, new: Path, tmp_path: Path
) -> None:
    result = run_alone(base, new, tmp_path / "runs", *options)
    assert result.exit_code == 2
    assert message in said(result)


def said(result: Result) -> str:
    """The output of a usage error as one line, without the box around it."""
    return " ".join(result.output.replace("│", " ").split())


def test_a_class_order_decides_when_classes_arrive(base: Path, new: Path, tmp_path: Path) -> None:
    order = [f"new{index}" for index in (2, 0, 3, 1)]
    file = tmp_path / "order.txt"
    file.write_text("\n".join(order) + "\n\n", encoding="utf-8")
    for seed in ("0", "1"):
        out = tmp_path / seed
        options = ["--class-order", str(file), "--seed", seed, "--init", "random"]
        result = invoke(base, new, out, *options)
        assert result.exit_code == 0, result.output
        record = read_record(out / "random")
        assert record.classes["name"].to_list()[CLASSES:] == order
        assert record.info["config"]["class_order"] == order


@pytest.mark.parametrize(
    ("names", "fact"),
    [
        ("new0 new1 new2", "1 class not named (new3)"),
        ("new0 new1 new2 new3 new4", "1 class not in the new data (new4)"),
        ("new0 new1 new2 new3 new3", "1 class named more than once (new3)"),
        ("", "it names no class"),
        (None, "No such file"),
    ],
)
def test_a_class_order_that_does_not_fit_is_refused(
    names: str | None, fact: str, base: Path, new: Path, tmp_path: Path
) -> None:
    file = tmp_path / "order.txt"
    if names is not None:
        file.write_text(names.replace(" ", "\n"), encoding="utf-8")
    error = refused(invoke(base, new, tmp_path / "runs", "--class-order", str(file)))
    assert isinstance(error, ExperimentError)
    assert fact in str(error)
    assert "per line" in error.remedy


def test_a_buffer_by_class_grows_and_excludes_a_total(
    base: Path, new: Path, tmp_path: Path
) -> None:
    options = ["--init", "random", "--buffer-per-class", "3"]
    result = invoke(base, new, tmp_path / "runs", *options)
    assert result.exit_code == 0, result.output
    record = read_record(tmp_path / "runs" / "random")
    assert [task["buffer_rows"] for task in record.info["tasks"]] == [12, 18]
    both = invoke(base, new, tmp_path / "other", *options, "--buffer", "24000")
    assert both.exit_code == 2
    assert "--buffer and --buffer-per-class exclude each other" in said(both)


def test_the_split_of_the_buffer_and_the_mix_are_recorded(
    base: Path, new: Path, tmp_path: Path
) -> None:
    options = ["--mix", "sgm", "--buffer-split", "sgm", "--buffer", "40", "--init", "random"]
    result = invoke(base, new, tmp_path / "runs", *options)
    assert result.exit_code == 0, result.output
    record = read_record(tmp_path / "runs" / "random")
    assert (record.info["config"]["mix"], record.info["config"]["buffer_split"]) == ("sgm", "sgm")
    assert [task["buffer_rows"] for task in record.info["tasks"]] == [31, 40]
    steps = record.steps
    expected = [4 / 8] * 12 + [3 / 8] * 12
    share = (steps["loss"] - steps["loss_old"]) / (steps["loss_new"] - steps["loss_old"])
    np.testing.assert_allclose(share, expected, atol=1e-3)


def test_a_split_buffer_by_class_is_refused(base: Path, new: Path, tmp_path: Path) -> None:
    options = ["--buffer-split", "sgm", "--buffer-per-class", "3"]
    result = invoke(base, new, tmp_path / "runs", *options)
    assert result.exit_code == 2
    assert "needs a total buffer, not --buffer-per-class" in said(result)


def run_align(cache: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(
        app, ["align", str(cache), "--out", str(out), "--device", "cpu", "--epochs", "3", *options]
    )


def test_an_aligned_head_is_what_mse_runs_start_from(base: Path, new: Path, tmp_path: Path) -> None:
    aligned = tmp_path / "mse.safetensors"
    result = run_align(base, aligned)
    assert result.exit_code == 0, result.output
    for text in ("mse loss ", "plain images", "Top-1 on 48 validation rows", f"Head at {aligned}"):
        assert text in result.output
    for name, options in {"stored": [], "aligned": ["--head", str(aligned)]}.items():
        out = tmp_path / name
        result = invoke(base, new, out, "--init", "random", "--loss", "mse", *options)
        assert result.exit_code == 0, result.output
    stored, started = (
        read_record(tmp_path / name / "random").info for name in ("stored", "aligned")
    )
    assert stored["head"]["path"] is None
    assert "alignment" not in stored["head"]
    assert started["head"]["path"] == str(aligned)
    assert started["head"]["alignment"]["loss"] == "mse"
    assert started["head"]["alignment"]["views"] == 0
    assert started["head"]["digest"] == head_digest(read_head(aligned))
    assert comparison_key(stored) != comparison_key(started)
    assert any("clinit align" in note for note in stored["notes"])
    assert not any("clinit align" in note for note in started["notes"])
    runs = load_report([tmp_path / "stored", tmp_path / "aligned"]).runs
    assert "head" in differences(runs).of_training
    assert {shown(run, "head") for run in runs} == {"mse.safetensors", "stored"}


def test_another_loss_than_that_of_the_alignment_is_noted(
    base: Path, new: Path, tmp_path: Path
) -> None:
    run_align(base, tmp_path / "mse.safetensors")
    options = ["--init", "random", "--head", str(tmp_path / "mse.safetensors")]
    result = invoke(base, new, tmp_path / "runs", *options)
    assert "the base head is aligned with mse, not with ce" in result.output


def test_the_same_head_from_a_file_gives_comparable_runs(
    base: Path, new: Path, tmp_path: Path
) -> None:
    for name, options in {"a": [], "b": ["--head", str(base / "head.safetensors")]}.items():
        invoke(base, new, tmp_path / name, "--init", "random", *options)
    infos = [read_record(tmp_path / name / "random").info for name in ("a", "b")]
    assert comparison_key(infos[0]) == comparison_key(infos[1])


def test_what_cannot_be_aligned_is_refused(base: Path, new: Path, tmp_path: Path) -> None:
    missing = refused(run_align(new, tmp_path / "head.safetensors"))
    assert f"{new} holds no pretrained head" in str(missing)
    assert "--head FILE" in missing.remedy
    present = refused(run_align(base, base / "head.safetensors"))
    whole = f"that is never replaced: it is part of the feature cache {base}"
    assert str(present).endswith(whole)
    named = run_align(base, tmp_path / "head.pt")
    assert named.exit_code == 2
    assert "--out is the head file to write, .safetensors" in said(named)


def test_damaged_facts_beside_a_head_are_reported(base: Path, new: Path, tmp_path: Path) -> None:
    run_align(base, tmp_path / "mse.safetensors")
    head = read_head(tmp_path / "mse.safetensors")
    options = ["--head", str(tmp_path / "mse.safetensors")]
    beside = tmp_path / "mse.alignment.json"
    write_head(replace(head, alignment=None), tmp_path / "mse.safetensors")
    for content, message in {
        "{": "is damaged: Expecting property name",
        '{"format": "clinit-alignment/1"}': "is damaged: it lacks `loss`",
        '{"format": "clinit-alignment/1", "loss": "mse", "views": "2"}': (
            "is damaged: views is '2', expected `int`, got `str`"
        ),
        "[]": "is damaged: it holds [] instead of fields",
    }.items():
        beside.write_text(content, encoding="utf-8")
        error = refused(invoke(base, new, tmp_path / "runs", *options))
        assert str(error).startswith(f"{beside} {message}")
        assert "run `clinit align` again" in error.remedy
    assert head.alignment is not None
    write_head(replace(head, alignment={**head.alignment, "lr": []}), Path(options[1]))
    error = refused(invoke(base, new, tmp_path / "runs", *options))
    told = f"the alignment in {options[1]} is damaged: lr is [], expected"
    assert str(error).startswith(told)


def test_an_alignment_that_an_earlier_version_wrote_beside_its_head_is_read(
    base: Path, tmp_path: Path
) -> None:
    run_align(base, tmp_path / "mse.safetensors")
    today, told = read_base_head(tmp_path / "mse.safetensors")
    write_head(replace(today, alignment=None), tmp_path / "mse.safetensors")
    facts = {"format": "clinit-alignment/1", **(today.alignment or {})}
    (tmp_path / "mse.alignment.json").write_text(json.dumps(facts), encoding="utf-8")
    assert read_base_head(tmp_path / "mse.safetensors")[1] == told
    write_head(Head(2 * today.weight, today.bias), tmp_path / "mse.safetensors")
    assert "alignment" not in read_base_head(tmp_path / "mse.safetensors")[1]


def test_an_alignment_is_one_file_with_its_provenance(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(Path, "replace", lambda draft, path: written.append(path))
    assert run_align(base, tmp_path / "mse.safetensors").exit_code == 0
    assert written == [tmp_path / "mse.safetensors"]


def tables(folder: Path) -> dict[str, list[object]]:
    """The numbers of all records, wall times left out."""
    return {
        record.info["id"]: [
            record.steps.write_csv(),
            record.evaluations.write_csv(),
            record.points.drop("elapsed_s").write_csv(),
            (path / "head.safetensors").read_bytes(),
        ]
        for path in find_records(folder)
        for record in [read_record(path)]
    }


def test_the_same_command_again_trains_nothing_and_shows_the_same_table(
    base: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = invoke(base, new, tmp_path / "runs", "--diagnose")
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.*")}
    monkeypatch.setattr(runs, "train_bank", lambda *_: pytest.fail("trained"))
    again = invoke(base, new, tmp_path / "runs", "--diagnose")
    assert again.exit_code == 0, again.output
    for name in ("class-mean-calibrated", "least-square-calibrated", "random"):
        assert f"{tmp_path}/runs/{name} is there already" in again.output.splitlines()
    table = [line for line in first.output.splitlines() if line.startswith("least-square")]
    assert table
    assert set(table) <= set(again.output.splitlines())
    assert {path: path.stat().st_mtime_ns for path in written} == written


@pytest.mark.parametrize("method", ["rehearsal", "naive", "ncm", "ridge", "lda"])
def test_records_of_every_method_are_found_again(
    base: Path, new: Path, tmp_path: Path, method: str
) -> None:
    for words in ([], ["is there already"]):
        result = run_alone(base, new, tmp_path / "runs", "--method", method)
        assert result.exit_code == 0, result.output
        assert all(word in result.output for word in words)


def test_records_that_are_missing_get_the_numbers_of_the_uninterrupted_call(
    base: Path, new: Path, tmp_path: Path
) -> None:
    invoke(base, new, tmp_path / "whole")
    invoke(base, new, tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "random")
    kept = tmp_path / "cut" / "least-square-calibrated" / "run.json"
    before = kept.stat().st_mtime_ns
    again = invoke(base, new, tmp_path / "cut")
    assert again.exit_code == 0, again.output
    assert "All heads are trained once more" in again.output
    assert kept.stat().st_mtime_ns == before
    assert tables(tmp_path / "cut") == tables(tmp_path / "whole")


def test_a_full_disk_keeps_what_is_written_and_the_same_command_goes_on(
    base: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke(base, new, tmp_path / "whole")
    write, count = record_module._write_files, [0]

    def full(*arguments: Any) -> None:
        count[0] += 1
        if count[0] == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(record_module, "_write_files", full)
    error = refused(invoke(base, new, tmp_path / "runs"))
    assert "No space left on device; 1 of 3 runs are not recorded" in str(error)
    assert "run the same command again" in error.remedy
    assert len(find_records(tmp_path / "runs")) == 2
    assert invoke(base, new, tmp_path / "runs").exit_code == 0
    assert tables(tmp_path / "runs") == tables(tmp_path / "whole")


def test_records_of_other_settings_data_or_without_diagnoses_are_refused(
    base: Path, new: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    invoke(base, new, runs, "--init", "random")
    for options, message in {
        ("--seed", "1"): "of another run: config differs in seed",
        ("--buffer", "9"): "of another run: config differs in buffer",
        ("--diagnose",): "without the diagnoses asked for",
    }.items():
        error = refused(invoke(base, new, runs, "--init", "random", *options))
        assert str(error).startswith(f"{runs}/random holds the record of ")
        assert str(error).endswith(message)
        assert error.remedy.startswith("Choose another --out, or replace it with --overwrite.")
        assert ("`clinit sweep` collects runs" in error.remedy) == ("config" in message)
    error = refused(invoke(base, base, runs, "--init", "random"))
    assert "was made with other data: new manifest_digest" in str(error)


def test_options_of_a_file_give_way_to_a_method_and_a_buffer_of_the_command_line(
    base: Path, new: Path, tmp_path: Path
) -> None:
    recipe = ["--config", "table5-resnet18", "--tasks", "2", "--init", "random"]
    sizes = ["--iterations", "2", "--buffer-per-class", "2"]
    result = run_alone(base, new, tmp_path / "runs", *recipe, *sizes)
    assert result.exit_code == 0, result.output
    assert read_record(tmp_path / "runs" / "random").info["config"]["buffer"] is None
    solved = run_alone(base, new, tmp_path / "runs", *recipe[:2], "--method", "ncm")
    assert solved.exit_code == 0, solved.output


def test_a_file_that_contradicts_itself_is_refused(base: Path, new: Path, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('[train-head]\nmethod = "naive"\nbuffer = 10\n', encoding="utf-8")
    result = run_alone(base, new, tmp_path / "runs", "--config", str(file))
    assert result.exit_code == 2
    assert "--buffer does not go with --method naive" in said(result)


def test_several_caches_are_one_side(tmp_path: Path) -> None:
    import clinit
    from tests.headtrain.stream.made_caches import DIM, write_base, write_new, write_split

    base = write_base(tmp_path / "base")
    halves = [write_new(tmp_path / "one"), tmp_path / "two"]
    for split in ("train", "val"):
        write_split(halves[1], split, np.ones((3, DIM)), 4, seed=3)
    sides = ["--base", str(base), "--new", str(halves[0]), "--new", str(halves[1])]
    out = tmp_path / "out"
    asked = ["--init", "random", "--tasks", "2", "--iterations", "5", "--device", "cpu"]
    assert CliRunner().invoke(app, ["train-head", *sides, *asked, "--out", str(out)]).exit_code == 0
    record = read_record(out / "random")
    assert record.info["new"]["path"] == str(halves[0])
    assert record.info["new"]["other_paths"] == [str(halves[1])]
    assert len(record.info["tasks"]) == 2
    study = {"init": "random", "tasks": 2, "iterations": 5, "device": "cpu"}
    (same,) = clinit.train_heads(base, halves, study)
    assert same.record.steps.equals(record.steps)
    again = CliRunner().invoke(
        app, ["rerun", str(out / "random"), "--out", str(tmp_path / "again")]
    )
    assert again.exit_code == 0, again.output
