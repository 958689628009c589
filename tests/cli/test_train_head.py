import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

import clinit
from clinit.analysis.report.settings import Names, shown
from clinit.analysis.runs import load_runs
from clinit.errors import DeviceError, ExperimentError, RecordError
from clinit.extract.cache.head import read_head, write_head
from clinit.headtrain.protocol import runs as runs_module
from clinit.headtrain.protocol.record.format import find_records, read_info, read_record
from clinit.headtrain.protocol.record.info import settings_of
from clinit.headtrain.protocol.stream.source import head_digest, read_base_head
from clinit.headtrain.protocol.study.study import identity_of
from tests.cli.calls import call, checked, done, refused
from tests.cli.made_cache import write_cache
from tests.conftest import unwritten

SIZES = ("--tasks=2", "--iterations=12", "--eval-every=5", "--batch-size=8", "--device=cpu")
STORED = ("steps.parquet", "evaluations.parquet", "classes.parquet", "head.safetensors")
RANDOM = ("--init", "random")


def headless(cache: Path) -> Path:
    (cache / "head.safetensors").unlink()
    return cache


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "base", 0)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return headless(write_cache(tmp_path / "new", 1, bad=(3,)))


Train = Callable[..., Result]


@pytest.fixture
def train(base: Path, new: Path, tmp_path: Path) -> Train:
    """Run `clinit train-head` on the two caches."""

    def run(out: str, *words: str) -> Result:
        places = ["--base", str(base), "--new", str(new), "--out", str(tmp_path / out)]
        return call("train-head", *places, *SIZES, *words)

    return run


def contents(*places: Path) -> dict[str, list[bytes]]:
    """What the records hold, by the identity of their run; wall times left out."""
    return {
        identity_of(settings_of(read_info(folder))): [
            *[(folder / name).read_bytes() for name in STORED],
            read_record(folder).points.drop("elapsed_s").write_csv().encode(),
        ]
        for place in places
        for folder in find_records(place)
    }


def test_one_call_writes_a_record_a_head_and_prints_their_table(
    train: Train, base: Path, new: Path, tmp_path: Path
) -> None:
    text = checked(train("runs", "--buffer", "10"))
    names = ["class-mean-calibrated", "least-square-calibrated", "random"]
    assert [folder.name for folder in find_records(tmp_path / "runs")] == names
    for fact in ("A_pre", "A_new", "L_new", "least-square", "3 run records at", "Note: "):
        assert fact in text
    info = read_record(tmp_path / "runs" / "random").info
    assert info["base"]["path"] == str(base)
    assert info["base"]["manifest_digest"] != info["new"]["manifest_digest"]
    assert info["config"]["buffer"] == 10
    assert info["timings_s"]["load"] > 0
    assert f"{new}/train leaves out 1 bad image" in info["notes"]


def test_repeated_options_are_combined_and_random_rows_come_once(
    train: Train, tmp_path: Path
) -> None:
    checked(train("runs", *RANDOM, "--init", "least-square", "--scale", "none", "--scale", "norm"))
    names = [folder.name for folder in find_records(tmp_path / "runs")]
    assert names == ["least-square-none", "least-square-norm", "random"]


def test_what_is_in_the_way_or_not_computed_is_refused_before_anything_is_read(
    tmp_path: Path, train: Train, base: Path
) -> None:
    (base / "train" / "plan.json").write_text("")  # cannot be read
    error = refused(train("runs", "--precision", "tf32"))
    assert isinstance(error, DeviceError)
    assert "tf32" in str(error)
    (tmp_path / "runs" / "random").mkdir(parents=True)
    error = refused(train("runs"))
    assert isinstance(error, RecordError)
    assert "runs/random exists and is never replaced: it is no run record" in str(error)


@pytest.mark.parametrize("method", ["rehearsal", "naive", "joint", "ncm", "ridge", "lda"])
def test_records_of_every_method_are_found_again(
    train: Train, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved, file = method in ("ncm", "ridge", "lda"), tmp_path / "options.toml"
    sizes = "" if solved else "iterations = 12\nbatch-size = 8\neval-every = 5\n"
    file.write_text(f'method = "{method}"\n{sizes}tasks = 2\ndevice = "cpu"\n')
    sides = [f"--{side}={tmp_path / side}" for side in ("base", "new")]
    words = ["train-head", *sides, f"--out={tmp_path / 'runs'}", f"--config={file}", "--diagnose"]
    text, start = done(*words), "" if method == "rehearsal" else f"{method}-"
    names = [path.name for path in find_records(tmp_path / "runs")]
    assert (method if solved else f"{start}least-square-calibrated") in names
    assert read_info(tmp_path / "runs" / names[0])["tasks"][1]["diagnosis"]
    monkeypatch.setattr(runs_module, "run_experiment", lambda *_: pytest.fail("trained"))
    with unwritten(*(tmp_path / "runs").rglob("*.*")):
        again = done(*words)
    for name in names:
        assert f"{tmp_path}/runs/{name} is already recorded" in again.splitlines()
    table = {line for line in text.splitlines() if line.startswith(method)}
    assert table <= set(again.splitlines())


@pytest.mark.parametrize(
    ("names", "fact"),
    [
        ("new0 new1 new2", "1 class not named (new3)"),
        ("new0 new1 new2 new3 new3", "'new3' is in lines 4 and 5"),
        ("", "the file contains no name"),
    ],
)
def test_a_class_order_that_does_not_fit_is_refused(
    names: str, fact: str, train: Train, tmp_path: Path
) -> None:
    file = tmp_path / "order.txt"
    file.write_text(names.replace(" ", "\n"), encoding="utf-8")
    error = refused(train("runs", "--class-order", str(file)))
    assert isinstance(error, ExperimentError)
    assert fact in str(error)
    assert "per line" in error.remedy


# Heads from a file.


def align(cache: Path, out: Path) -> Path:
    words = ["head", "align", str(cache), "--out", str(out), "--device", "cpu", "--epochs", "3"]
    assert "mse loss " in done(*words)
    return out


def test_an_aligned_head_is_what_mse_runs_start_from(
    train: Train, base: Path, tmp_path: Path
) -> None:
    aligned = align(base, tmp_path / "mse.safetensors")
    for name, words in {"stored": [], "aligned": ["--head", str(aligned)]}.items():
        checked(train(name, *RANDOM, "--loss", "mse", *words))
    stored, started = (read_info(tmp_path / name / "random") for name in ("stored", "aligned"))
    assert stored["head"]["path"] is None
    assert "alignment" not in stored["head"]
    assert started["head"]["path"] == str(aligned)
    assert started["head"]["alignment"]["loss"] == "mse"
    assert started["head"]["digest"] == head_digest(read_head(aligned))
    notes = [
        any("clinit head align" in note for note in info["notes"]) for info in (stored, started)
    ]
    assert notes == [True, False]
    runs = load_runs(tmp_path / "stored", tmp_path / "aligned").runs
    assert runs[0].key != runs[1].key
    assert "head" in Names.of(runs).of_training
    assert {shown(run, "head").split()[0] for run in runs} == {"mse.safetensors", "stored"}
    other = checked(train("other", *RANDOM, "--head", str(aligned)))
    assert "the base head is aligned with mse, not with ce" in other


def test_the_same_head_from_a_file_gives_comparable_runs(
    train: Train, base: Path, tmp_path: Path
) -> None:
    checked(train("a", *RANDOM))
    checked(train("b", *RANDOM, "--head", str(base / "head.safetensors")))
    (run,) = load_runs(tmp_path / "a", tmp_path / "b")  # the other is a copy
    assert run.init == "random"


def test_facts_beside_or_in_a_head_are_read_and_damaged_ones_reported(
    train: Train, base: Path, tmp_path: Path
) -> None:
    path, beside = align(base, tmp_path / "mse.safetensors"), tmp_path / "mse.alignment.json"
    today, told = read_base_head(path)
    assert today.alignment is not None
    write_head(replace(today, alignment=None), path)  # as an earlier version wrote it
    facts = {"format": "clinit-alignment/1", **today.alignment}
    beside.write_text(json.dumps(facts))
    assert read_base_head(path)[1] == told
    for content in ("{", '{"format": "clinit-alignment/1"}', json.dumps({**facts, "views": "2"})):
        beside.write_text(content)
        error = refused(train("runs", "--head", str(path)))
        assert str(error).startswith(f"{beside} is damaged: ")
        assert "run `clinit head align` again" in error.remedy
    write_head(replace(today, alignment={**today.alignment, "lr": []}), path)
    error = refused(train("runs", "--head", str(path)))
    assert str(error).startswith(f"the alignment in {path} is damaged: ")
    assert "`$.lr`" in str(error)


# The same command again.


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("--seed", "1"), "of another run: config differs in seed (0 there, 1 now)"),
        (("--buffer", "9"), "of another run: config differs in buffer"),
        (("--diagnose",), "without the diagnoses asked for"),
        (("--new", "other"), "was made with other data: new manifest_digest"),
    ],
)
def test_records_of_other_settings_data_or_without_diagnoses_are_refused(
    train: Train, tmp_path: Path, words: tuple[str, ...], fact: str
) -> None:
    checked(train("runs", *RANDOM))
    other = headless(write_cache(tmp_path / "other", 2))
    given = [str(other) if word == "other" else word for word in words]
    error = refused(train("runs", *RANDOM, *given))
    assert str(error).startswith(f"{tmp_path / 'runs'}/random ")
    assert fact in str(error)
    assert error.remedy.startswith("Choose another --out, or replace it with --overwrite.")


# Several caches and several seeds.


def test_several_caches_are_one_side(train: Train, new: Path, tmp_path: Path) -> None:
    other = headless(write_cache(tmp_path / "other", 2))
    checked(train("runs", *RANDOM, "--new", str(other)))
    record = read_record(tmp_path / "runs" / "random")
    assert record.info["new"]["path"] == str(new)
    assert record.info["new"]["other_paths"] == [str(other)]
    settings = {key: record.info["config"][key] for key in ("tasks", "iterations", "batch_size")}
    study = settings | {"init": "random", "eval_every": 5, "device": "cpu"}
    (same,) = clinit.train(tmp_path / "base", [new, other], study)
    assert same.record.steps.equals(record.steps)


def test_several_seeds_are_the_runs_of_each_alone_bit_for_bit(train: Train, tmp_path: Path) -> None:
    text = checked(train("both", "--seed", "0:2"))
    assert "Seed 1 (2 of 2):" in text
    assert "6 run records at" in text
    assert " ± " in text
    for seed in (0, 1):
        checked(train(f"seed-{seed}", "--seed", str(seed)))
    both = contents(tmp_path / "both")
    assert len(both) == 6
    assert both == contents(tmp_path / "seed-0", tmp_path / "seed-1")
    names = {path.name for path in find_records(tmp_path / "both")}
    assert {"random-seed=0", "random-seed=1"} <= names


def test_seeds_that_are_recorded_are_not_trained_again_under_whatever_name(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(train("runs", *RANDOM))
    text = checked(train("runs", *RANDOM, "--seed=0:3"))
    assert f"{tmp_path / 'runs'}/random is already recorded" in text
    names = sorted(path.name for path in find_records(tmp_path / "runs"))
    assert names == ["random", "random-seed=1", "random-seed=2"]
    whole = contents(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "random-seed=2")
    assert "Seed 2 (" not in checked(train("runs", "--seed=1,2", *RANDOM))  # the only one
    assert contents(tmp_path / "runs") == whole
    monkeypatch.setattr(runs_module, "run_experiment", lambda *_: pytest.fail("trained"))
    assert "3 run records" in checked(train("runs", *RANDOM, "--seed=2,1", "--seed=0"))
