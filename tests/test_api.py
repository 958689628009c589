"""The package from Python: caches, runs, heads, and what is shown of them."""

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import clinit
from clinit.api import HeadSettings
from clinit.errors import CacheError, ExperimentError, HeadError
from clinit.headtrain.protocol import runs as runs_module
from clinit.headtrain.protocol.study.rules import settings_of
from tests.cli.calls import call

STUDY = {"tasks": 2, "iterations": 4, "eval_every": 2, "batch_size": 4, "buffer": 9}
STUDY["device"] = "cpu"  # type: ignore[assignment]


@pytest.fixture(scope="module")
def caches(tiny_run: Path) -> tuple[Path, Path]:
    folder = tiny_run.parent / "caches"
    return folder / "base", folder / "new"


def test_every_public_name_is_there() -> None:
    for name in clinit.__all__:
        assert getattr(clinit, name) is not None
    assert set(clinit.__all__) <= set(dir(clinit))
    with pytest.raises(AttributeError, match="module 'clinit' has no attribute 'train_haeds'"):
        clinit.train_haeds  # noqa: B018


def test_the_two_lists_of_public_names_agree() -> None:
    tree = ast.parse(Path(clinit.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        (node.module, name.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    listed = {(module, name) for module, names in clinit._PLACES.items() for name in names.split()}
    assert typed == listed


def test_every_setting_is_a_keyword() -> None:
    assert set(HeadSettings.__annotations__) == set(settings_of())


@pytest.mark.filterwarnings("always::DeprecationWarning")
def test_the_name_of_version_0_1_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"load_model goes in 0\.3: use clinit\.load"):
        assert clinit.load_model is clinit.load


def test_lists_of_settings_are_all_combinations(caches: tuple[Path, Path]) -> None:
    study: dict[str, Any] = {**STUDY, "iterations": 0}
    runs = clinit.train(*caches, {"scale": "none"}, {"scale": "norm", "bias": "keep"},
        init=["class-mean", "lda"], weighting="sample", seeds=np.arange(2), **study)  # fmt: skip
    names = ("seed", "scale", "bias", "init")
    assert sorted(runs.table().select(names).rows()) == sorted(
        (seed, scale, bias, init)
        for seed in (0, 1)
        for scale, bias in (("none", "write"), ("norm", "keep"))
        for init in ("class-mean", "lda")
    )
    paper = clinit.train(*caches, **study)
    assert paper.table()["init"].to_list() == ["random", "class-mean", "least-square"]


def test_five_lines_from_caches_to_a_table(caches: tuple[Path, Path]) -> None:
    base, new = map(clinit.load_cache, caches)
    assert base.train.features.shape == (len(base.train.labels), base.train.dim)
    runs = clinit.train(base, new, [{**STUDY, "init": each} for each in ("random", "lda")])
    table = runs.table()
    assert table["init"].to_list() == ["random", "lda"]
    assert table.columns[:4] == ["run", "init", "acc_all", "acc_new"]
    assert table["acc_all"].is_between(0, 100).all()
    assert "<table" in runs._repr_html_()
    assert (repr(runs), len(runs)) == (repr(table), 2)
    assert runs.points["run"].unique().sort().to_list() == [0, 1]
    assert {"acc_new", "acc_old", "loss_new"} <= set(runs.points.columns)
    assert runs.steps.columns[:3] == ["run", "task", "iteration"]
    assert runs.steps.height == 2 * 2 * 4
    assert runs.evaluations.group_by("run").agg(pl.col("total").sum())["total"].n_unique() == 1


def test_runs_that_the_command_has_recorded_are_not_trained_again(
    caches: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in STUDY.items()]
    places = [f"--base={caches[0]}", f"--new={caches[1]}", f"--out={tmp_path / 'runs'}"]
    assert call(*["train-head", *places, *words, "--init=random", "--seed=0:2"]).exit_code == 0
    study = {**STUDY, "init": "random"}
    seeds = [{**study, "seed": seed} for seed in (0, 1)]
    fresh = clinit.train(*caches, study, seeds=range(2))
    assert clinit.train(*caches, seeds).evaluations.equals(fresh.evaluations)
    monkeypatch.setattr(runs_module, "run_experiment", lambda *_, **__: pytest.fail("trained"))
    assert clinit.train(*caches, seeds, out=tmp_path / "runs").evaluations.equals(fresh.evaluations)
    assert clinit.load_runs(tmp_path).evaluations.equals(fresh.evaluations)
    assert len(clinit.train(*caches, seeds[0], out=tmp_path / "runs")) == 1
    names = sorted(path.name for path in (tmp_path / "runs").glob("r*"))
    assert names == ["random-seed=0", "random-seed=1"]
    means, table = fresh.means(), fresh.table()
    assert means["seeds"].to_list() == ["0 1"]
    assert means["acc_all"].item() == pytest.approx(table["acc_all"].mean())
    assert means["acc_all_deviation"].item() == pytest.approx(table["acc_all"].std())
    assert means["acc_all_count"].item() == 2


def test_the_table_has_the_settings_of_every_run(caches: tuple[Path, Path], tmp_path: Path) -> None:
    ncm = {"method": "ncm", "tasks": 1, "device": "cpu"}
    for name, study in (("ncm", ncm), ("ls", {**STUDY, "tasks": 1})):
        clinit.train(*caches, study, out=tmp_path / name)
    both = clinit.load_runs(tmp_path / "ncm", tmp_path / "ls").table()
    assert {"lr", "lam", "acc_all"} <= set(both.columns)
    assert sorted(both["lr"].to_list(), key=str) == [0.001, None]


def test_a_head_is_diagnosed_as_by_the_command(caches: tuple[Path, Path]) -> None:
    found = clinit.diagnose(caches[0], split="train").content()
    assert found["d_ls"] >= 0
    stored = clinit.load_cache(caches[0]).head
    assert clinit.diagnose(caches[0], stored, split="train").content() == found


def test_wrong_calls_are_refused(caches: tuple[Path, Path]) -> None:
    for study, message in (
        ({"bufer": 3}, "there is no setting 'bufer'"),
        ({"method": "ncm", "lr": 3.0}, "--lr does not go with --method ncm"),
        ([], "there is no study"),
    ):
        with pytest.raises(ValueError, match=message):
            clinit.train(*caches, study)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="init is an empty list"):
        clinit.train(*caches, init=[])
    for seeds, message in (([], "seeds is empty"), (iter("0:3"), "takes a count")):
        with pytest.raises(ValueError, match=message):
            clinit.train(*caches, seeds=seeds)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the head has 0 rows"):
        clinit.train(*caches, STUDY, head=(1, 2))
    own = "tests.headtrain.test_own_training:entropy"  # is finite at first
    odd: dict[str, Any] = {"lr": np.array([1e30]), "seeds": np.int64(1), "loss": ["ce", own]}
    with pytest.warns(UserWarning, match="has diverged"):
        clinit.train(*caches, STUDY, **odd)
    with pytest.raises(CacheError, match="more than one of the caches"):
        clinit.train(caches[0], caches[0], STUDY)
    with pytest.raises(ExperimentError, match="holds no pretrained head"):
        clinit.train(replace(clinit.load_cache(caches[0]), head=None), caches[1], STUDY)


def test_features_of_a_folder_in_one_call(make_run: Callable[..., Path], tmp_path: Path) -> None:
    model = {"img_size": 32, "embed_dim": 12, "depth": 2, "num_heads": 2}
    run = make_run(tmp_path, "vit_tiny_patch16_224", **model)
    stored = clinit.load_cache(run.parent / "caches" / "base")
    again = clinit.extract_features(
        tmp_path / "base",
        tmp_path / "again",
        "vit_tiny_patch16_224",
        weights=tmp_path / "weights.safetensors",
        model_args=model,
        device="cpu",
        input_size=32,
        batch_size=4,
    )
    np.testing.assert_array_equal(again.train.features, stored.train.features)
    options = {"weights": tmp_path / "weights.safetensors", "model_args": model, "input_size": 32}
    in_memory = clinit.extract(tmp_path / "base", "vit_tiny_patch16_224", device="cpu", **options)
    np.testing.assert_array_equal(in_memory.train.features, stored.train.features)
    assert again.train.class_names == stored.train.class_names
    assert again.head is not None


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_saved_head_starts_a_run(caches: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    stored = clinit.load_cache(caches[0]).head
    path = str(tmp_path / f"head{suffix}")  # a path as text
    clinit.save_head(path, torch.from_numpy(stored.weight), stored.bias, list("abc"))
    found = clinit.load_head(path)
    assert found.class_names == ("a", "b", "c")
    np.testing.assert_array_equal(found.weight, stored.weight)
    runs = clinit.train(*caches, STUDY, head=path)
    assert runs.evaluations.equals(clinit.train(*caches, STUDY).evaluations)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "head.bin"}, "got 'head.bin'"),
        ({"weight": np.ones(3)}, r"weight is float64 \(3,\), expected floats \(classes, dim\)"),
        ({"weight": np.ones((2, 3), int)}, "weight is int64"),
        ({"bias": np.ones(3)}, r"bias is float64 \(3,\), expected floats \(2,\)"),
        ({"bias": np.array([1, np.inf])}, "not finite"),
        ({"weight": np.full((2, 3), 1e300)}, "not finite"),
        ({"class_names": ["cat", "cat"]}, "2 class names, 1 of them different, for 2 rows"),
        ({"class_names": ["", "dog"]}, "must be texts"),
        ({"class_names": "cat"}, "1 class names"),
    ],
)
def test_what_is_no_head_is_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    given = {"path": "head.npz", "weight": np.ones((2, 3)), "bias": np.zeros(2)} | arguments
    given = {"class_names": ["cat", "dog"], **given, "path": tmp_path / given["path"]}
    with pytest.raises(ValueError, match=message):
        clinit.save_head(**given)
    assert list(tmp_path.iterdir()) == []


def test_rows_of_features_are_named(tmp_path: Path) -> None:
    weight, path = np.eye(3, dtype=np.float32), tmp_path / "head.npz"
    head = clinit.save_head(path, weight, None, ["ant", "bee", "cat"])
    rows = np.array([[0, 2, 1], [3, 0, 0]], dtype=np.float16)
    model = clinit.Model(clinit.Head(head.weight, head.bias), ["ant", "bee", "cat"])
    found = model.predict(rows, top=2)
    names = [[guess.name for guess in each.guesses] for each in found]
    assert names == [["bee", "cat"], ["ant", "bee"]]
    expected = np.exp(rows[0]) / np.exp(rows[0].astype(float)).sum()
    assert found[0].guesses[0].probability == pytest.approx(expected[1], rel=1e-3)
    np.save(tmp_path / "rows.npy", rows)
    from_files = clinit.load(path).predict(tmp_path / "rows.npy", top=2)
    assert [each.guesses for each in from_files] == [each.guesses for each in found]
    assert model.predict(torch.from_numpy(rows), top=2) == found
    with pytest.raises(HeadError, match=r"shape \(2, 2\), the head reads \(rows, 3\)"):
        model.predict(rows[:, :2])


def test_rows_whose_logits_overflow_are_named_and_do_not_affect_others(tmp_path: Path) -> None:
    head = clinit.save_head(tmp_path / "head.npz", 10 * np.eye(2, 3), None, ["ant", "bee"])
    rows = np.array([[1, 0, 0], [1e38, 0, 0], [0, 1e38, 1e38], [0, np.inf, 0], [0, 1, 1e300]])
    found = clinit.Model(head).predict(rows)
    words = [each.reason and each.reason.split()[1:3] for each in found]
    overflow = ["logits", "overflow:"]
    assert words == [None, overflow, overflow, ["features", "are"], None]
    assert [each.guesses[0].name for each in (found[0], found[4])] == ["ant", "bee"]


def test_rows_of_later_blocks_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clinit.headtrain.model.predict.BLOCK_ROWS", 3)
    head = clinit.save_head(tmp_path / "head.npz", np.eye(2), None, ["ant", "bee"])
    rows = np.random.default_rng(0).standard_normal((8, 2))
    np.save(tmp_path / "rows.npy", rows)
    for given in (rows, tmp_path / "rows.npy"):
        found = clinit.Model(head).predict(given)
        assert [each.row for each in found] == list(range(8))
        answers = [each.guesses[0].name == "bee" for each in found]
        assert answers == (rows[:, 1] > rows[:, 0]).tolist()


def test_predictions_give_the_counts_and_the_mistakes_that_they_come_from(tiny_run: Path) -> None:
    runs = clinit.load_runs(tiny_run)
    record, found = runs.runs[0].record, runs.predictions
    assert found.columns == ["run", "task", "iteration", "row", "image", "predicted"]
    wrong = found.filter(pl.col("row") != pl.col("predicted"))
    keys = ["task", "row", "image"]
    assert sorted(wrong.drop("run").rows()) == sorted(record.mistakes.rows())
    assert found.select(keys).is_unique().all()
    counts = found.group_by("task", "row").agg(
        correct=(pl.col("row") == pl.col("predicted")).sum(), total=pl.len()
    )
    last = pl.col("iteration") == pl.col("iteration").max().over("task")
    recorded = record.evaluations.filter(last, pl.col("total") > 0)
    columns = ["task", "row", "correct", "total"]
    assert sorted(counts.select(columns).rows()) == sorted(recorded.select(columns).rows())
