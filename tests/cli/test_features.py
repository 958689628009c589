"""From features of somebody else's network to named rows: import, train, export, predict."""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.calls import call, done, refused, unframed

BASE, NEW = ("ant", "bee", "cat"), ("dog", "elk")
TRAIN = ("--init", "least-square", "--tasks", "2", "--iterations", "3", "--buffer", "30")


def write(folder: Path, name: str, classes: tuple[str, ...], count: int, seed: int) -> list[Path]:
    """Write features and text labels, rows in any order."""
    rng = np.random.default_rng(seed)
    every, names = BASE + NEW, rng.permutation(np.repeat(classes, count))
    centres = 2 * np.eye(8)[[every.index(each) for each in names]]
    files = [folder / f"{name}.npy", folder / f"{name}-labels.npy"]
    np.save(files[0], (centres + rng.standard_normal((len(names), 8))).astype(np.float32))
    np.save(files[1], names)
    return files


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Caches of imported base and new classes, a run on them, and its head."""
    folder = tmp_path_factory.mktemp("work")
    for side, classes in (("base", BASE), ("new", NEW)):
        for split, count in (("train", 40), ("val", 30)):
            files = write(folder, f"{side}-{split}", classes, count, seed=len(side) + count)
            given = ["--backbone", "own", "--split", split, "--out", folder / side]
            (folder / f"{side}-{split}.log").write_text(done("cache", "import", *files, *given))
    head = folder / "base-head.npz"
    (folder / "fit.log").write_text(done("head", "fit", folder / "base", "--out", head))
    done("train-head", "--base", folder / "base", "--head", head, "--new", folder / "new", *TRAIN,
         "--out", folder / "runs", "--device", "cpu")  # fmt: skip
    run = folder / "runs" / "least-square-calibrated"
    (folder / "export.log").write_text(done("export", run, "--out", folder / "head.npz"))
    return folder


def test_an_import_names_the_command_that_fits_a_head_and_tells_how_good_it_is(work: Path) -> None:
    told = (work / "base-train.log").read_text()
    assert f"clinit head fit {work / 'base'} --out head.safetensors" in told
    fitted = (work / "fit.log").read_text()
    assert "multinomial logistic regression" in fitted
    assert re.search(r"On 90 validation rows: top-1 .* \(C ", fitted)


def test_a_head_alone_is_exported_and_names_rows(work: Path) -> None:
    text = (work / "export.log").read_text()
    assert "A head on 8 features of own: 5 classes, 3 of the base, 2 that arrived later" in text
    assert "Probabilities: off by " in text
    assert f"clinit predict {work / 'head.npz'} FEATURES…" in text
    told = json.loads(done("predict", work / "head.npz", work / "new-val.npy", "--json"))
    assert [each["row"] for each in told] == list(range(60))
    assert {each["features"] for each in told} == {str(work / "new-val.npy")}
    assert {c["task"] for each in told for c in each["classes"]} == {0, 1, 2}
    labels = np.load(work / "new-val-labels.npy")
    assert (np.array([each["classes"][0]["class"] for each in told]) == labels).mean() > 0.6


def test_a_head_that_remembers_no_image_rejects_nothing(work: Path) -> None:
    given = ("predict", work / "head.npz", work / "new-val.npy")
    assert "remembers no image of old classes" in str(refused(call(*given, "--reject", "auto")))
    idle = call(*given, "--device", "cpu")
    assert idle.exit_code == 2
    assert "--device has no effect here" in unframed(idle)


def test_class_names_without_rows_are_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=np.ones((3, 2)), labels=[1, 1, 2])  # from 1
    (tmp_path / "names.txt").write_text("dog\nelk\nfox\n")
    given = ("--classes", tmp_path / "names.txt", "--backbone", "own", "--out", tmp_path / "out")
    assert "Warning: 1 of 3 classes without a row: dog" in done(
        "cache", "import", tmp_path / "x.npz", *given
    )


def test_verify_prints_the_command_that_writes_a_damaged_shard_again(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a cache"
    command = ("cache", "import", work / "base-train.npy", work / "base-train-labels.npy",
               "--backbone", "own", "--out", out)  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["/bin/clinit", *map(str, command)])
    done(*command)
    (shard,) = (out / "train").glob("shard-*.h5")
    whole = shard.read_bytes()
    shard.unlink()
    lines = refused(call("cache", "verify", out)).remedy.splitlines()
    (line,) = (each for each in lines if "clinit cache" in each and "&&" in each)
    place, typed = line.removeprefix("The command was: cd ").split(" && clinit ")
    assert shlex.split(place) == [str(Path.cwd())]
    done(*shlex.split(typed))
    assert shard.read_bytes() == whole
    assert "Nothing has changed since the cache was written." in done("cache", "verify", out)
