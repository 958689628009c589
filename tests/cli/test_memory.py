"""`--memory` of the commands that read feature caches: the same results, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import clinit
from clinit.cli.main import app
from clinit.errors import MachineError
from clinit.extract.cache.head import read_head
from clinit.headtrain.record.compare import differences
from clinit.headtrain.record.format import find_records, read_record
from tests.headtrain.stream.made_caches import write_base, write_new

SMALL = "16 kB"
STREAM = ["--tasks=2", "--iterations=6", "--eval-every=6", "--batch-size=2", "--device=cpu"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shown(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("caches")
    base, new = write_base(folder / "base"), write_new(folder / "new")
    return [f"--base={base}", f"--new={new}"]


def base_of(caches: list[str]) -> str:
    return caches[0].removeprefix("--base=")


def check_same(one: Path, other: Path) -> None:
    names = [folder.name for folder in find_records(one)]
    assert names
    assert names == [folder.name for folder in find_records(other)]
    for name in names:
        records = (read_record(folder / name) for folder in (one, other))
        assert differences(*records) == []
        heads = [(folder / name / "head.safetensors").read_bytes() for folder in (one, other)]
        assert heads[0] == heads[1]


def test_heads_are_the_same_and_what_stays_on_disk_is_said(
    caches: list[str], tmp_path: Path
) -> None:
    whole, small = tmp_path / "whole", tmp_path / "small"
    said = shown("train-head", *caches, f"--out={whole}", *STREAM)
    assert "disk" not in said
    said = shown("train-head", *caches, f"--out={small}", *STREAM, "--memory", SMALL)
    assert f"{base_of(caches)}/train stays on disk, which is slower: its 25.09 kB" in said
    assert "more than the 16.00 kB of --memory" in said
    check_same(whole, small)
    # A run is the same run wherever its features are: neither call trains it again.
    assert "is there already" in shown(
        "train-head", *caches, f"--out={whole}", *STREAM, "--memory", SMALL
    )


def test_a_file_of_options_may_say_it(caches: list[str], tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('memory = "16kB"\n')
    said = shown("train-head", *caches, f"--out={tmp_path / 'runs'}", *STREAM, "--config", file)
    assert "of --memory" in said


def test_a_sweep_trains_the_same_runs(caches: list[str], tmp_path: Path) -> None:
    whole, small = tmp_path / "whole", tmp_path / "small"
    grid = [
        "init=random,least-square", "seed=0,1", "tasks=2", "iterations=6", "batch_size=2",
        "device=cpu",
    ]  # fmt: skip
    shown("sweep", *caches, f"--out={whole}", *grid)
    said = shown("sweep", *caches, f"--out={small}", "--memory", SMALL, *grid)
    assert "stays on disk" in said
    check_same(whole, small)


def test_a_sweep_of_top_blocks_takes_no_memory(caches: list[str], tmp_path: Path) -> None:
    result = run("sweep", *caches, f"--out={tmp_path}", "--top", "--memory", SMALL, "seed=0")
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert "--memory is for banks of heads, not for runs of --top" in said


def test_an_aligned_head_is_the_same(caches: list[str], tmp_path: Path) -> None:
    whole, small = tmp_path / "whole.safetensors", tmp_path / "small.safetensors"
    options = [base_of(caches), "--epochs=2", "--batch-size=32", "--device=cpu"]
    shown("align", *options, f"--out={whole}")
    said = shown("align", *options, f"--out={small}", f"--memory={SMALL}")
    assert "stays on disk" in said
    assert read_head(whole).weight.tobytes() == read_head(small).weight.tobytes()


def test_a_diagnosis_is_the_same(caches: list[str]) -> None:
    options = ["diagnose", base_of(caches), "--device=cpu", "--format=json", "--per-class"]
    whole, small = run(*options), run(*options, f"--memory={SMALL}")
    assert json.loads(whole.stdout) == json.loads(small.stdout)
    assert whole.stderr == small.stderr == ""


@pytest.mark.parametrize("command", ["train-head", "sweep", "align", "diagnose"])
def test_less_than_a_shard_is_refused(command: str, caches: list[str], tmp_path: Path) -> None:
    out = f"--out={tmp_path / 'new.safetensors'}"
    options = {
        "train-head": [*caches, out],
        "sweep": [*caches, out, "seed=0"],
        "align": [base_of(caches), out],
        "diagnose": [base_of(caches)],
    }[command]
    result = run(command, *options, "--memory=15kB")
    assert isinstance(result.exception, MachineError)
    assert "takes 15.39 kB and is read as a whole to verify it" in str(result.exception)
    assert "--memory" in result.exception.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("much", "--memory takes a size such as 20GB, got 'much'"),
        ("0", "--memory takes a size above 0, such as 8GB"),
    ],
)
def test_what_is_no_size_is_refused(text: str, message: str, caches: list[str]) -> None:
    result = run("diagnose", base_of(caches), "--memory", text)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_python_takes_a_size_as_well(caches: list[str]) -> None:
    base, new = (word.partition("=")[2] for word in caches)
    loaded, on_disk = clinit.load_cache(base), clinit.load_cache(base, memory=SMALL)
    assert loaded.train.is_loaded
    assert not on_disk.train.is_loaded
    assert (on_disk.train.features[5:9] == loaded.train.features[5:9]).all()
    study = {"tasks": 2, "iterations": 6, "batch_size": 2, "device": "cpu"}
    runs = [
        clinit.train_heads(base, new, study, memory=16_000),
        clinit.train_heads(on_disk, new, study, memory=SMALL),
        clinit.train_heads(base, new, study),
    ]
    for each in runs[:2]:
        assert each.evaluations.equals(runs[2].evaluations)
        assert each.steps.equals(runs[2].steps)


def test_python_is_told_what_is_no_size_and_where_one_has_no_effect(caches: list[str]) -> None:
    base, new = (word.partition("=")[2] for word in caches)
    with pytest.raises(ValueError, match="memory takes a size such as 20GB, got 'much'"):
        clinit.load_cache(base, memory="much")
    with pytest.raises(ValueError, match="memory must be above 0 bytes, got 0"):
        clinit.train_heads(base, new, memory=0)
    loaded = clinit.load_cache(base), clinit.load_cache(new)
    with pytest.raises(ValueError, match="both caches are loaded already: give their folders"):
        clinit.train_heads(*loaded, memory="1GB")
