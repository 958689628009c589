"""From features of somebody else's network to named rows: import, train, export, predict."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from clinit.api import save_head
from clinit.cli.main import app
from clinit.errors import CacheError, ClinitError, ExperimentError, HeadError, ModelError
from clinit.extract.arrays import fitted_head as judge_head
from clinit.extract.cache.head import read_head
from clinit.extract.cache.read import open_cache
from clinit.headtrain.model.head_alone import predict_features

BASE, NEW = ("ant", "bee", "cat"), ("dog", "elk")
TRAIN = ("--init", "least-square", "--tasks", "2", "--iterations", "3", "--buffer", "30")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def failed(*arguments: object) -> ClinitError:
    result = invoke(*arguments)
    assert isinstance(result.exception, ClinitError), (result.output, result.exception)
    return result.exception


def unframed(result: Result) -> str:
    return " ".join(result.output.replace("│", " ").split())


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
            (folder / f"{side}.log").write_text(done("cache", "import", *files, *given, *fit))
            if fit:
                (folder / "fit.log").write_text((folder / f"{side}.log").read_text())
    done("train-head", "--base", folder / "base", "--new", folder / "new", *TRAIN,
         "--out", folder / "runs", "--device", "cpu")  # fmt: skip
    run = folder / "runs" / "least-square-calibrated"
    (folder / "export.log").write_text(done("export", run, "--out", folder / "head.npz"))
    return folder


def test_the_import_fits_a_head_and_says_how_good_it_is(work: Path) -> None:
    lines = (work / "fit.log").read_text().splitlines()
    assert lines[1].startswith("Head of 3 classes: ridge, lambda 0.")
    assert lines[2].startswith("top-1 of the head on the 120 rows that it was fitted to: ")
    assert lines[2].endswith(" %; `--split val` measures it on others")
    (top1,) = [line for line in (work / "base.log").read_text().splitlines() if "top-1" in line]
    assert top1.startswith("top-1 of the head on these features: ")
    cache = open_cache(work / "base")
    assert cache.head is not None
    assert cache.head.class_names == BASE
    for split in cache.splits.values():
        assert split.summary.head.total == split.num_rows
        assert split.summary.head.tensors is not None


def test_a_head_is_measured_on_val_at_once_where_that_is_there(tmp_path: Path) -> None:
    given = ("--backbone", "own", "--out", tmp_path / "base")
    train = write(tmp_path, "train", BASE, 20, seed=1)
    val = write(tmp_path, "val", BASE[:2], 10, seed=2)
    done("cache", "import", *train, *given)
    done("cache", "import", *val, *given, "--split", "val")
    printed = done("cache", "import", *train, *given, "--fit-head", "ridge")
    top1 = open_cache(tmp_path / "base").split("val").summary.head.top1
    assert f"top-1 of the head on 20 rows of val: {top1.percent:.2f} %" in printed
    assert "measures it on others" not in printed


def test_a_head_alone_is_exported_and_says_how_sure_it_is(work: Path) -> None:
    text = (work / "export.log").read_text()
    assert "A head of 5 classes, 2 of which arrived later, on 8 features of own" in text
    assert "Probabilities: temperature " in text
    assert f"clinit predict {work / 'head.npz'} FEATURES.npy" in text


def test_rows_are_named_with_their_probabilities(work: Path) -> None:
    told = json.loads(done("predict", work / "head.npz", work / "new-val.npy", "--json"))
    features = np.load(work / "new-val.npy")
    head = read_head(work / "head.npz")
    logits = features @ head.weight.T + head.bias
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert [each["row"] for each in told] == list(range(60))
    assert {each["features"] for each in told} == {str(work / "new-val.npy")}
    for row, each in zip(expected, told, strict=True):
        assert head.class_names is not None
        assert each["classes"][0]["class"] == head.class_names[row.argmax()]
        assert each["classes"][0]["probability"] == pytest.approx(row.max(), rel=1e-5)
    labels = np.load(work / "new-val-labels.npy")
    right = [each["classes"][0]["class"] for each in told] == labels
    assert right.mean() > 0.6
    assert {c["task"] for each in told for c in each["classes"]} == {0, 1, 2}


@pytest.mark.parametrize("kind", ["npz", "safetensors", "parquet"])
def test_every_kind_of_file_gives_the_same_names(work: Path, tmp_path: Path, kind: str) -> None:
    done("cache", "export", work / "new", tmp_path / "out", "--format",
         {"npz": "npy"}.get(kind, kind))  # fmt: skip
    file = tmp_path / "out" / f"val.{kind}"
    if kind == "npz":
        file = tmp_path / "val.npz"
        np.savez(file, embedding=np.load(tmp_path / "out" / "val" / "features.npy"))
    name = ["--features-name", "embedding"] if kind == "npz" else []
    done("predict", work / "head.npz", file, *name, "--csv", tmp_path / "found.csv")
    with (tmp_path / "found.csv").open() as text:
        rows = list(csv.DictReader(text))
    stored = open_cache(work / "new").split("val").load()
    expected = predict_features(work / "head.npz", stored.features)
    assert [row["class"] for row in rows] == [g.name for each in expected for g in each.guesses]
    assert rows[0].keys() >= {"features", "row", "rank", "class", "probability"}


def test_rows_that_are_not_finite_are_named_and_do_not_affect_others(
    work: Path, tmp_path: Path
) -> None:
    features = np.load(work / "new-val.npy")[:4]
    features[2, 3] = np.nan
    np.save(tmp_path / "some.npy", features)
    result = invoke(
        *("predict", work / "head.npz", tmp_path / "some.npy"),
        *("--parquet", tmp_path / "found.parquet"),
    )
    assert result.exit_code == 1
    assert "1 of 4 rows cannot be read:" in result.output
    assert f"{tmp_path / 'some.npy'}, row 2: its features are not finite" in result.output
    found = pl.read_parquet(tmp_path / "found.parquet")
    assert found.filter(pl.col("error").is_not_null())["row"].to_list() == [2]
    whole = predict_features(work / "head.npz", features[[0, 1, 3]])
    first = found.filter(pl.col("rank") == 1)
    assert first["class"].to_list() == [each.guesses[0].name for each in whole]


def test_rows_of_none_of_the_classes_are_unknown_below_a_threshold(work: Path) -> None:
    given = ("predict", work / "head.npz", work / "new-val.npy", "--reject", "max-logit")
    text = done(*given, "--threshold", "1e9")
    assert "60 of 60 rows unknown: their score is below 1e+09" in text
    error = failed(*given)
    assert isinstance(error, ModelError)
    assert "remembers no image of its classes" in str(error)
    assert "--threshold VALUE" in error.remedy


def test_features_of_another_width_are_refused(work: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.ones((2, 9), np.float32))
    error = failed("predict", work / "head.npz", tmp_path / "wide.npy")
    assert "of shape (2, 9), the head reads (rows, 8)" in str(error)
    np.save(tmp_path / "ints.npy", np.ones((2, 8), int))
    error = failed("predict", work / "head.npz", tmp_path / "ints.npy")
    assert "holds int64, expected floats (rows, dim)" in str(error)
    error = failed("predict", work / "head.npz", work / "new")
    assert isinstance(error, CacheError)
    assert "clinit cache export CACHE FOLDER" in error.remedy


def test_options_of_images_mean_nothing_for_a_head(work: Path) -> None:
    result = invoke("predict", work / "head.npz", work / "new-val.npy", "--device", "cpu")
    assert result.exit_code == 2
    assert "--device means nothing here" in unframed(result)
    result = invoke("predict", work, work / "a.jpg", "--features-name", "emb")
    assert result.exit_code == 2
    assert "is a model of images" in unframed(result)


def test_a_run_on_imported_features_has_no_network_to_export(work: Path, tmp_path: Path) -> None:
    run = work / "runs" / "least-square-calibrated"
    error = failed("export", run, "--out", tmp_path / "model")
    assert "no network is known for the features" in str(error)
    assert "`clinit export RUN --out FILE.npz`" in error.remedy
    result = invoke("export", run, "--out", tmp_path / "model", "--head-only")
    assert result.exit_code == 2
    assert "a file that ends in .npz or .safetensors with --head-only" in unframed(result)
    result = invoke("export", run, "--out", tmp_path / "head.npz", "--onnx")
    assert result.exit_code == 2
    assert "--onnx means nothing where the head alone is written" in unframed(result)
    assert list(tmp_path.iterdir()) == []


def imported(folder: Path, name: str, classes: tuple[str, ...], *, seeds: tuple[int, int]) -> Path:
    """Import training and validation rows that are drawn with these seeds."""
    for split, count, seed in zip(("train", "val"), (40, 30), seeds, strict=True):
        files = write(folder, f"{name}-{split}", classes, count, seed)
        done("cache", "import", *files, "--backbone", "own", "--split", split,
             "--out", folder / name)  # fmt: skip
    return folder / name


def test_a_temperature_is_fitted_to_the_rows_of_the_run_alone(work: Path, tmp_path: Path) -> None:
    run = work / "runs" / "least-square-calibrated"
    same = imported(tmp_path, "same", NEW, seeds=(3 + 40, 3 + 30))
    text = done("export", run, "--out", tmp_path / "same.npz", "--new", same)
    assert "Probabilities: temperature " in text
    heads = [read_head(file).weight for file in (tmp_path / "same.npz", work / "head.npz")]
    assert heads[0].tobytes() == heads[1].tobytes()
    other = imported(tmp_path, "other", NEW, seeds=(3 + 40, 99))
    text = " ".join(done("export", run, "--out", tmp_path / "other.npz", "--new", other).split())
    assert "temperature " not in text
    assert "its val rows differ" in text
    plain = read_head(run / "head.safetensors").weight
    assert read_head(tmp_path / "other.npz").weight.tobytes() == plain.tobytes()


@pytest.mark.parametrize("option", ["--base", "--new"])
def test_a_cache_means_nothing_where_no_feature_is_read(
    work: Path, tmp_path: Path, option: str
) -> None:
    run = work / "runs" / "least-square-calibrated"
    result = invoke("export", run, "--out", tmp_path / "head.npz", "--no-temperature",
                    option, work / "new")  # fmt: skip
    assert result.exit_code == 2
    assert f"{option} means nothing where no feature is read" in unframed(result)
    result = invoke("export", run, "--out", tmp_path / "model", "--no-temperature", "--no-memory",
                    "--new", work / "new")  # fmt: skip
    assert "--new means nothing where no feature is read" in unframed(result)


def test_scores_without_a_temperature_are_told_of(work: Path, tmp_path: Path) -> None:
    given = ("--base", work / "base", "--new", work / "new", "--tasks", "2", "--device", "cpu")
    done("train-head", *given, "--method", "simplecil", "--out", tmp_path / "runs")
    run = tmp_path / "runs" / "simplecil"
    for option, said in (("--no-temperature", True), ("--temperature", False)):
        head = tmp_path / f"head{option}.npz"
        done("export", run, "--out", head, option)
        text = " ".join(done("predict", head, work / "new-val.npy").split())
        assert ("the head was solved (simplecil), not with cross entropy" in text) is said


def test_a_base_class_without_training_rows_leaves_the_probabilities_of_others(
    work: Path, tmp_path: Path
) -> None:
    files = write(tmp_path, "base-train", BASE[:2], 40, seed=1)
    (tmp_path / "classes.txt").write_text("\n".join(BASE))
    named = ("--backbone", "own", "--classes", tmp_path / "classes.txt", "--out", tmp_path / "base")
    head = tmp_path / "head.npz"
    save_head(head, np.eye(3, 8, dtype=np.float32), None, BASE)
    done("cache", "import", *files, *named, "--head", head)
    files = write(tmp_path, "base-val", BASE, 40, seed=2)
    done("cache", "import", *files, *named, "--split", "val")
    done("train-head", "--base", tmp_path / "base", "--new", work / "new", "--tasks", "2",
         "--method", "slda", "--out", tmp_path / "runs", "--device", "cpu")  # fmt: skip
    heads = []
    for name, option in (("plain", "--no-temperature"), ("divided", "--temperature")):
        text = done("export", tmp_path / "runs" / "slda", "--out", tmp_path / f"{name}.npz", option)
        heads.append(tmp_path / f"{name}.npz")
    (value,) = re.findall(r"temperature (\S+), fitted on 70 held-out rows", text)
    assert 0.2 < float(value) < 5
    found = [predict_features(head, work / "new-val.npy") for head in heads]
    named_rows = [[[guess.name for guess in each.guesses] for each in one] for one in found]
    assert named_rows[0] == named_rows[1]


def test_a_head_of_a_run_starts_another_one(work: Path, tmp_path: Path) -> None:
    run = work / "runs" / "least-square-calibrated"
    head = tmp_path / "head.safetensors"
    done("export", run, "--out", head, "--head-only", "--no-temperature")
    assert read_head(head).weight.tobytes() == read_head(run / "head.safetensors").weight.tobytes()
    everything = [
        np.concatenate([np.load(work / f"{side}-train{end}.npy") for side in ("base", "new")])
        for end in ("", "-labels")
    ]
    np.savez(tmp_path / "old.npz", features=everything[0], labels=everything[1])
    done("cache", "import", tmp_path / "old.npz", "--backbone", "own", "--out", tmp_path / "old",
         "--head", head)  # fmt: skip
    assert open_cache(tmp_path / "old").split("train").summary.head.top1.total == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--split", "val"), "--fit-head fits to training rows: give it with --split train"),
        (("--head", "head.npz"), "--head and --fit-head exclude one another"),
    ],
)
def test_fitting_goes_with_training_rows_and_no_other_head(
    work: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    files = work / "base-train.npy", work / "base-train-labels.npy"
    out = ("--backbone", "own", "--out", tmp_path / "cache", "--fit-head", "lda")
    result = invoke("cache", "import", *files, *out, *options)
    assert result.exit_code == 2
    assert message in unframed(result)
    assert not (tmp_path / "cache").exists()


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
        assert invoke(*command, "--fit-head", "lda").exit_code != 0
    assert open_cache(tmp_path / "cache").head is None
    assert "Head of 3 classes: lda, shrinkage 0.0001" in done(*command, "--fit-head", "lda")
    assert "Everything is as it was written." in done("cache", "verify", tmp_path / "cache")
    error = failed(*command, "--fit-head", "lda")
    assert isinstance(error, HeadError)
    assert "is there already: the cache has a head" in str(error)


@pytest.fixture
def fitted(work: Path, tmp_path: Path) -> tuple[Path, tuple[object, ...]]:
    """Return a copy of the base cache, whose head was fitted, and the command that made it."""
    files = work / "base-train.npy", work / "base-train-labels.npy"
    shutil.copytree(work / "base", tmp_path / "base")
    command = ("cache", "import", *files, "--backbone", "own", "--out", tmp_path / "base")
    return tmp_path / "base", (*command, "--fit-head", "ridge")


def damage(head: Path, how: str) -> None:
    if how == "gone":
        head.unlink()
    else:
        content = bytearray(head.read_bytes())
        content[-1] ^= 1
        head.write_bytes(content)


AGAIN = (
    "Run the `clinit cache import` command of this cache with its `--fit-head` again: it fits the"
    " head anew and keeps what is whole."
)


def test_verify_prints_the_command_that_writes_a_damaged_shard_again(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels = work / "base-train.npy", work / "base-train-labels.npy"
    out = tmp_path / "a cache"
    command = ("cache", "import", features, labels, "--backbone", "own", "--out", out)
    monkeypatch.setattr(sys, "argv", ["/bin/clinit", *map(str, command)])
    done(*command)
    (shard,) = (out / "train").glob("shard-*.h5")
    whole = shard.read_bytes()
    shard.unlink()
    (line,) = (
        line
        for line in failed("cache", "verify", out).remedy.splitlines()
        if "clinit cache" in line and "&&" in line
    )
    place, typed = line.removeprefix("It was: cd ").split(" && clinit ")
    assert shlex.split(place) == [str(Path.cwd())]
    done(*shlex.split(typed))
    assert shard.read_bytes() == whole
    assert "Everything is as it was written." in done("cache", "verify", out)


@pytest.mark.parametrize("how", ["gone", "one bit"])
def test_a_fitted_head_that_is_lost_is_fitted_again(
    fitted: tuple[Path, tuple[object, ...]], how: str
) -> None:
    cache, command = fitted
    before = {file: file.read_bytes() for file in cache.rglob("*.*") if file.name != "cache.json"}
    damage(cache / "head.safetensors", how)
    assert AGAIN in failed("cache", "verify", cache).remedy
    text = done(*command)
    assert "Head of 3 classes: ridge, lambda 0." in text
    assert "not the head that the cache had" not in text
    assert {file: file.read_bytes() for file in before} == before
    assert "Everything is as it was written." in done("cache", "verify", cache)
    assert "is there already: the cache has a head" in str(failed(*command))


def test_a_head_that_was_given_is_not_fitted_where_it_is_lost(
    fitted: tuple[Path, tuple[object, ...]], work: Path, tmp_path: Path
) -> None:
    _, command = fitted
    *given, _, _ = command
    given[given.index("--out") + 1] = cache = tmp_path / "given"
    head = tmp_path / "head.npz"
    save_head(head, np.eye(3, 8, dtype=np.float32), None, BASE)
    done(*given, "--head", head)
    damage(cache / "head.safetensors", "gone")
    error = failed(*given, "--fit-head", "ridge")
    assert "is damaged or missing, and it was not fitted to the features beside it" in str(error)
    done(*given, "--head", head)
    assert open_cache(cache).head is not None


def test_a_strange_head_in_place_of_a_fitted_one_is_not_replaced(
    fitted: tuple[Path, tuple[object, ...]],
) -> None:
    cache, command = fitted
    head = cache / "head.safetensors"
    save_head(head, np.eye(3, 8, dtype=np.float32), None, BASE)
    error = failed(*command)
    assert str(error) == f"{head} is not the head that was stored with the features beside it"
    assert error.remedy == "Put it into another place; then the same command fits the head anew."


def test_base_classes_without_a_head_say_how_to_get_one(work: Path, tmp_path: Path) -> None:
    error = failed(
        *("train-head", "--base", work / "new", "--new", work / "base"),
        *("--out", tmp_path / "runs", *TRAIN),
    )
    assert isinstance(error, ExperimentError)
    assert "import their features with `--fit-head logistic`" in error.remedy


@pytest.mark.parametrize(("suffix", "labels"), [(".npz", ""), (".npy", " LABELS.npy")])
def test_a_file_in_place_of_a_cache_is_told_the_command(
    work: Path, tmp_path: Path, suffix: str, labels: str
) -> None:
    file = tmp_path / f"my features{suffix}"
    file.write_bytes(b"")
    error = failed(
        "train-head", "--base", file, "--new", work / "new", "--out", tmp_path / "runs", *TRAIN
    )
    assert str(error) == f"no feature cache at {file}"
    assert error.remedy == (
        f"It is a file: `clinit cache import '{file}'{labels} --backbone NAME --out"
        f" '{tmp_path / 'my features'}'` makes a cache of it, with `--fit-head logistic` for base"
        " classes that have no head."
    )


def test_a_file_without_rows_has_the_columns_of_features(work: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.zeros((0, 8), np.float32))
    for kind in ("csv", "parquet"):
        out = tmp_path / f"found.{kind}"
        done("predict", work / "head.npz", tmp_path / "none.npy", f"--{kind}", out)
    assert (tmp_path / "found.csv").read_text().startswith("features,row,rank,class,")
    assert pl.read_parquet(tmp_path / "found.parquet").columns[:2] == ["features", "row"]


def test_what_is_no_model_is_told_what_one_is(work: Path) -> None:
    error = failed("predict", work / "base", work / "new-val.npy")
    assert "is a folder without a model.safetensors" in str(error)
    assert "`clinit export RUN --out FOLDER`" in error.remedy
    run = work / "runs" / "least-square-calibrated"
    error = failed("predict", run, work / "new-val.npy")
    assert f"`clinit export {run} --out FOLDER`" in error.remedy


def test_rows_of_test_images_are_imported_as_the_split_val(tmp_path: Path) -> None:
    np.savez(tmp_path / "test.npz", features=np.eye(4, dtype=np.float32), labels=np.arange(4))
    words = ("cache", "import", tmp_path / "test.npz", "--backbone", "own", "--split", "test")
    result = invoke(*words, "--out", tmp_path / "cache")
    assert result.exit_code == 0, (result.output, result.exception)
    assert list(open_cache(tmp_path / "cache").splits) == ["val"]
