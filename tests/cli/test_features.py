"""From features of somebody else's network to named rows: import, train, export, predict."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from clinit.extract.arrays import fitted_head as judge_head
from clinit.extract.cache.read import open_cache
from tests.cli.calls import call, done, refused

BASE, NEW = ("ant", "bee", "cat"), ("dog", "elk")
TRAIN = ("--init", "least-square", "--tasks", "2", "--iterations", "3", "--buffer", "30")


def write(folder: Path, name: str, classes: tuple[str, ...], count: int, seed: int) -> list[Path]:
    """Write features and text labels, rows in any order."""
    rng = np.random.default_rng(seed)
    every = BASE + NEW
    names = rng.permutation(np.repeat(classes, count))
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
            fit = ["--fit-head", "ridge"] if (side, split) == ("base", "train") else []
            given = ["--backbone", "own", "--split", split, "--out", folder / side]
            text = done("cache", "import", *files, *given, *fit)
            (folder / f"{side}-{split}.log").write_text(text)
    done("train-head", "--base", folder / "base", "--new", folder / "new", *TRAIN,
         "--out", folder / "runs", "--device", "cpu")  # fmt: skip
    run = folder / "runs" / "least-square-calibrated"
    (folder / "export.log").write_text(done("export", run, "--out", folder / "head.npz"))
    return folder


def test_the_import_fits_a_head_and_says_how_good_it_is(work: Path) -> None:
    _, fitted, top1 = (work / "base-train.log").read_text().splitlines()[:3]
    assert fitted.startswith("Head of 3 classes: ridge, lambda 0.")
    assert top1.startswith("top-1 of the head on the 120 rows that it was fitted to: ")
    assert top1.endswith(" %")
    assert "top-1 of the head on these features: " in (work / "base-val.log").read_text()
    cache = open_cache(work / "base")
    assert cache.head is not None
    assert cache.head.class_names == BASE
    for split in cache.splits.values():
        assert split.summary.head.total == split.num_rows
        assert split.summary.head.tensors is not None


def test_a_head_alone_is_exported_and_names_rows(work: Path) -> None:
    text = (work / "export.log").read_text()
    assert "A head of 5 classes, 2 of which arrived later, on 8 features of own" in text
    assert "Probabilities: temperature " in text
    assert f"clinit predict {work / 'head.npz'} FEATURES.npy" in text
    told = json.loads(done("predict", work / "head.npz", work / "new-val.npy", "--json"))
    assert [each["row"] for each in told] == list(range(60))
    assert {each["features"] for each in told} == {str(work / "new-val.npy")}
    assert {c["task"] for each in told for c in each["classes"]} == {0, 1, 2}
    labels = np.load(work / "new-val-labels.npy")
    assert (np.array([each["classes"][0]["class"] for each in told]) == labels).mean() > 0.6


def test_rows_of_none_of_the_classes_are_unknown_below_a_threshold(work: Path) -> None:
    given = ("predict", work / "head.npz", work / "new-val.npy", "--reject", "max-logit")
    text = done(*given, "--threshold", "1e9")
    assert "60 of 60 rows unknown: their score is below 1e+09" in text
    error = refused(call(*given))
    assert "remembers no image of its classes" in str(error)
    assert "--threshold VALUE" in error.remedy


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ("predict head.npz new-val.npy --device cpu", "--device means nothing here"),
        ("predict . a.jpg --features-name emb", "is a model of images"),
        ("export RUN --out model --head-only", "a file that ends in .npz or .safetensors"),
        ("export RUN --out x.npz --onnx", "--onnx means nothing if the head alone is"),
        ("export RUN --out x.npz --no-temperature --base new", "--base means nothing if no"),
        ("export RUN --out x.npz --no-temperature --new new", "--new means nothing if no"),
        ("export RUN --out m --no-temperature --no-memory --new new", "--new means nothing"),
        ("cache import X Y --backbone o --out c --fit-head lda --split val", "training rows"),
        ("cache import X Y --backbone o --out c --fit-head lda --head head.npz", "exclude one"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    work: Path, monkeypatch: pytest.MonkeyPatch, words: str, fact: str
) -> None:
    monkeypatch.chdir(work)
    names = {"RUN": "runs/least-square-calibrated", "X": "base-train.npy"}
    names["Y"] = "base-train-labels.npy"
    before = set(work.iterdir())
    result = call(*(names.get(word, word) for word in words.split()))
    assert result.exit_code == 2
    assert fact in " ".join(result.output.replace("│", " ").split())
    assert set(work.iterdir()) == before


@pytest.fixture
def fitted(work: Path, tmp_path: Path) -> tuple[Path, tuple[object, ...]]:
    """Return a copy of the base cache, whose head was fitted, and the command that made it."""
    files = work / "base-train.npy", work / "base-train-labels.npy"
    shutil.copytree(work / "base", tmp_path / "base")
    command = ("cache", "import", *files, "--backbone", "own", "--out", tmp_path / "base")
    return tmp_path / "base", (*command, "--fit-head", "ridge")


@pytest.mark.parametrize("step", ["write_summary", "store_head"])
def test_an_import_that_was_killed_while_its_head_was_stored_is_finished_by_the_same_command(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    files = work / "base-train.npy", work / "base-train-labels.npy"
    command = ("cache", "import", *files, "--backbone", "own", "--out", tmp_path / "cache")

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(judge_head, step, kill)
        assert call(*command, "--fit-head", "lda").exit_code != 0
    assert open_cache(tmp_path / "cache").head is None
    assert "Head of 3 classes: lda, shrinkage 0.0001" in done(*command, "--fit-head", "lda")
    assert "Nothing has changed since" in done("cache", "verify", tmp_path / "cache")
    assert "the cache has a head" in str(refused(call(*command, "--fit-head", "lda")))


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
    (line,) = (
        line
        for line in refused(call("cache", "verify", out)).remedy.splitlines()
        if "clinit cache" in line and "&&" in line
    )
    place, typed = line.removeprefix("It was: cd ").split(" && clinit ")
    assert shlex.split(place) == [str(Path.cwd())]
    done(*shlex.split(typed))
    assert shard.read_bytes() == whole
    assert "Nothing has changed since it was written." in done("cache", "verify", out)


@pytest.mark.parametrize("how", ["gone", "one bit"])
def test_a_fitted_head_that_is_lost_is_fitted_again(
    fitted: tuple[Path, tuple[object, ...]], how: str
) -> None:
    cache, command = fitted
    before = {file: file.read_bytes() for file in cache.rglob("*.*") if file.name != "cache.json"}
    head = cache / "head.safetensors"
    content = before[head]
    head.unlink()
    if how == "one bit":
        head.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "with its `--fit-head` again" in refused(call("cache", "verify", cache)).remedy
    text = done(*command)
    assert "Head of 3 classes: ridge, lambda 0." in text
    assert "not the head that the cache had" not in text
    assert {file: file.read_bytes() for file in before} == before
    assert "Nothing has changed since it was written." in done("cache", "verify", cache)
