"""Files of version 0.1.0 are read as they were meant; `tests/data/v0.1/make.sh` made them."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import clinit
from clinit.cli.main import app
from clinit.errors import CacheError
from clinit.extract.cache.head import read_head
from clinit.extract.cache.read import open_cache, open_split
from clinit.extract.cache.verify import verify
from clinit.headtrain.protocol.record.format import changed_parameters, read_record
from clinit.headtrain.protocol.stream.source import read_base_head
from clinit.headtrain.top.activations import StoredActivations
from tests.cli.calls import checked

DATA = Path(__file__).parent / "data" / "v0.1"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, as the working folder: commands write beside them."""
    folder = tmp_path / "v0.1"
    shutil.copytree(DATA, folder)
    monkeypatch.chdir(folder)
    return folder


def run(*words: str) -> str:
    return checked(CliRunner().invoke(app, list(words), catch_exceptions=False))


def formats(folder: Path) -> dict[str, set[str]]:
    """Return which formats the JSON files of a folder have, by their name."""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("*.json"):
        found.setdefault(path.name, set()).add(json.loads(path.read_text()).get("format"))
    return found


def test_the_files_are_of_the_formats_of_that_version() -> None:
    assert formats(DATA) == {
        "plan.json": {"clinit-cache/1"},
        "cache.json": {"clinit-cache/1"},
        "run.json": {"clinit-run/1"},
        "sweep.json": {"clinit-sweep/1"},
        "mse.alignment.json": {"clinit-alignment/1"},
    }


@pytest.mark.parametrize("side", ["base", "new"])
def test_a_cache_opens_and_is_as_it_was_written(side: str) -> None:
    cache = open_cache(DATA / "caches" / side)
    assert list(verify(DATA / "caches" / side)) == []
    assert {name: split.num_valid for name, split in cache.splits.items()} == {
        "train": 32,
        "val": 16,
    }
    assert len(cache.views) == (1 if side == "base" else 0)
    loaded = cache.split("train").load()
    assert (loaded.features.shape, loaded.features.dtype) == ((32, 24), np.float16)
    assert loaded.class_names == (("0", "1", "2", "3") if side == "base" else ("4", "5", "6", "7"))
    # What 0.1.0 counted with the stored head on these features is what they give today.
    head = read_head(DATA / "caches" / side / "head.safetensors")
    if side == "base":
        answers = (loaded.features.astype(np.float32) @ head.weight.T + head.bias).argmax(axis=1)
        assert int((answers == loaded.labels).sum()) == cache.split("train").summary.head.correct


def test_a_damaged_shard_of_that_version_is_found(files: Path) -> None:
    path = files / "caches" / "base" / "train" / "shard-00000.h5"
    with h5py.File(path, "r+") as file:
        file["features"][0, 0] += 1
    ((place, problem),) = verify(files / "caches" / "base")
    assert place == path.parent
    assert str(path) in str(problem)
    with pytest.raises(CacheError, match=r"shard-00000\.h5 has changed since it was written"):
        open_split(path.parent).load()


def test_records_are_reported_and_heads_trained_from_their_caches(files: Path) -> None:
    rows = clinit.load_runs(files / "runs").rows()
    assert [row["init"] for row in rows] == ["random", "least-square"]
    # As 0.1.0 printed them.
    assert [round(row["acc_new"], 2) for row in rows] == [0.0, 93.75]
    assert rows[0]["acc_in_task"] is None  # which it did not count
    words = ("--out", "again", "--init", "random", "--mix", "text")
    run("train-head", "--config", _settings(files), *words)
    (today,) = clinit.load_runs(files / "again").rows()
    assert [task["acc_all_end"] for task in today["tasks"]] == [
        task["acc_all_end"] for task in rows[0]["tasks"]
    ]


def _settings(files: Path) -> str:
    path = files / "study.toml"
    config = read_record(files / "runs" / "random").info["config"]
    names = ("tasks", "iterations", "eval_every", "batch_size", "buffer")
    lines = [f"{name.replace('_', '-')} = {config[name]}" for name in names]
    caches = [f'{side} = "caches/{side}"' for side in ("base", "new")]
    path.write_text("\n".join(["[train-head]", *lines, *caches]))
    return str(path)


def test_a_sweep_goes_on_and_trains_no_recorded_run_again(files: Path) -> None:
    before = (files / "sweep" / "random" / "run.json").read_bytes()
    shown = run(
        *("sweep", "--base", "caches/base", "--new", "caches/new", "--out", "sweep"),
        *("tasks=2", "iterations=6", "eval_every=3", "batch_size=8", "buffer=16", "seed=0"),
        *("init=random,zero", "mix=text", "device=cpu"),
    )
    assert "1 already recorded; 1 to train" in shown
    assert (files / "sweep" / "random" / "run.json").read_bytes() == before


def test_an_aligned_head_keeps_what_is_said_of_it_beside_it() -> None:
    head, facts = read_base_head(DATA / "mse.safetensors")
    assert head.class_names == ("0", "1", "2", "3")
    assert (facts["alignment"]["loss"], facts["alignment"]["epochs"]) == ("mse", 2)


def test_stored_activations_open() -> None:
    folders = sorted((DATA / "top" / "trunk-cache").iterdir())
    assert len(folders) == 4
    for folder in folders:
        split = open_split(folder)
        assert folder.name.endswith(split.plan.identifier[:16])
        assert split.fingerprint.fields["cut"] == "stages.3.blocks.0"
        rows = StoredActivations(split, np.arange(split.num_rows), in_memory=True)
        (batch,) = rows.stream([np.arange(3)])
        assert tuple(batch.shape) == (3, *split.plan.shape)


def test_the_changed_parameters_of_top_blocks_are_read() -> None:
    changed = changed_parameters(read_record(DATA / "top" / "least-square-calibrated"))
    assert changed
    assert all(name.startswith("stages.3.blocks.0") for name in changed)


def test_a_model_names_digits(tmp_path: Path) -> None:
    model = clinit.load(DATA / "model.safetensors", device="cpu")
    assert model.facts.tasks == (0, 0, 0, 0, 1, 1, 2, 2)
    images, labels = load_digits(return_X_y=True)
    paths = []
    for number in range(7):  # the first images of the data set are the digits in order
        pixels = np.rint(images[number].reshape(8, 8) * (255 / 16)).astype(np.uint8)
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC).save(paths[-1])
    told = [prediction.guesses[0].title for prediction in model.predict(paths, top=1)]
    assert sum(name == str(label) for name, label in zip(told, labels, strict=False)) >= 6


def test_an_export_says_what_it_lacks(files: Path) -> None:
    """The weights are where they were, or named; the cache of that time says where they were."""
    shown = CliRunner().invoke(app, ["export", "runs/random", "--out", "model"])
    assert shown.exit_code != 0
    assert "/data/digits/backbone.safetensors" in str(shown.exception)
    assert "--weights FILE" in shown.exception.remedy
