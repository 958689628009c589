"""Every recipe, read by every command that it is for, against the numbers of the paper."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
import types
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clinit.cli import align as align_module
from clinit.cli import sweep as sweep_module
from clinit.cli import train_head as train_head_module
from clinit.cli.main import app
from clinit.cli.recipe import names, recipe
from clinit.errors import ConfigFileError
from clinit.headtrain.study.study import Study
from clinit.headtrain.sweep.grid import distinct, runs_of

INITS = {"random", "class-mean", "least-square"}
ORDER = [
    "table1-first-task",
    "table2-last-layer",
    "table3-top-layers",
    "table4-cl-methods",
    "table5-resnet18",
    "table6-class-orders",
    "table7-forward-transfer",
    "table8-cost",
]
FEMTO, RESNET = "convnextv2_femto.fcmae_ft_in1k", "resnet18.tv_in1k"
ALIGNED = {1, 2, 3, 7, 8}
"""Tables with squared error, whose head is aligned first."""
STREAM = {"tasks": 5, "mix": "text", "buffer_split": "balanced", "head_width": "full"}
HEAD = {"class_mean": "raw", "bias": "write", "weight_decay": 0.05}
LAST_LAYER = {"batch_size": 256, "eval_every": 50, "lr": 1e-3, "lam": 0.05}
TOP = {"batch_size": 256, "eval_every": 50, "lr": 1.5e-3, "lam": 0.05}
LOW_RANK = {"top_blocks": 2, "full_rank": False, "rank": 48, "alpha": 48.0, "a_init": "gaussian"}
SMALL, LARGE = (600, 24_000), (1200, 192_000)


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # commands claim their --out


class _Resolved(Exception):  # noqa: N818
    """The settings that a command would go on with."""


def invoke(*words: str) -> Any:
    result = CliRunner().invoke(app, list(words), catch_exceptions=True)
    assert isinstance(result.exception, _Resolved), (result.output, result.exception)
    return result.exception.args[0]


def stop(*found: Any, **named: Any) -> Any:
    raise _Resolved([*found, *named.values()])


@pytest.fixture(autouse=True)
def everything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("align", "sweep", "train_head", "train_top"):
        module = importlib.import_module(f"clinit.cli.{command}")
        monkeypatch.setattr(module, "check_caches", lambda *_, **__: None)
    monkeypatch.setattr("clinit.extract.work.options.ExtractOptions.check", lambda _: None)


def extract_settings(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> Any:
    monkeypatch.setattr("clinit.extract.dataset.scan.available_splits", lambda *_: ())
    monkeypatch.setattr("clinit.extract.work.options.ExtractOptions.manifests", lambda *_, **__: {})
    monkeypatch.setattr(
        "clinit.extract.work.run.extract",
        lambda _, __, ___, config, *____, **_____: stop(config),
    )
    places = ["--root=r", "--out=o", "--dataset=places365", "--device=cpu"]
    return invoke("extract", f"--config={name}", *places, *words)[0]


def align_settings(monkeypatch: pytest.MonkeyPatch, name: str) -> dict[str, Any]:
    nothing = types.SimpleNamespace(notes=(), memory=None)
    monkeypatch.setattr("clinit.extract.cache.read.open_cache", lambda _: None)
    monkeypatch.setattr("clinit.headtrain.probe.align.choose_views", lambda *_: ())
    monkeypatch.setattr("clinit.headtrain.stream.source.read_sources", lambda *_, **__: [nothing])
    monkeypatch.setattr(align_module, "_start", lambda *_: None)
    monkeypatch.setattr(align_module, "_align", lambda _, __, config, ___: stop(asdict(config)))
    found: dict[str, Any] = invoke("align", "cache", "--out=o.safetensors", f"--config={name}")[0]
    return found


def head_settings(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> list[dict[str, Any]]:
    data = types.SimpleNamespace(base=None, new=None, head=None)
    monkeypatch.setattr(train_head_module, "read_data", lambda *_: data)
    monkeypatch.setattr("clinit.headtrain.runs.left_of", stop)
    places = ["--base=b", "--new=n", "--out=o", "--device=cpu"]
    studies, *_ = invoke("train-head", f"--config={name}", *places, *words)
    return [study.values() for study in studies]


def sweep_settings(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> list[dict[str, Any]]:
    monkeypatch.setattr(sweep_module, "_runs", lambda grids, **_: stop(grids))
    places = ["--base=b", "--new=n", "--out=o"]
    grids = invoke("sweep", f"--config={name}", *places, *words)[0]
    return [run.values() for run in distinct(run for grid in grids for run in runs_of(grid))]


def top_settings(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> list[dict[str, Any]]:
    nothing = "clinit.headtrain.runs.RunData.of_images"
    monkeypatch.setattr(nothing, lambda *_, **__: (None, None))
    monkeypatch.setattr("clinit.headtrain.runs.left_of", stop)
    places = ["--base=b", "--new=n", "--out=o", "--device=cpu"]
    studies, *_ = invoke("train-top", f"--config={name}", *places, *words)
    return [study.values() for study in studies]


def check(found: dict[str, Any], *expected: dict[str, Any]) -> None:
    has_lambda = found["init"] == "least-square"  # to the others it means nothing
    for each in expected:
        read = {name: value for name, value in each.items() if name != "lam" or has_lambda}
        assert {name: found[name] for name in read} == read
    assert found["scale"] == ("none" if found["init"] == "random" else "norm")


def test_the_recipes_are_the_tables_of_the_paper() -> None:
    assert names() == ["figure1-spikes", "starts", *ORDER]


@pytest.mark.parametrize("name", ORDER)
def test_features_are_extracted_as_in_the_paper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = extract_settings(monkeypatch, name)
    assert config.backbone.name == (RESNET if name.startswith("table5") else FEMTO)
    assert (config.transform, config.views, config.backbone.autocast) == ("paper", 0, "off")
    assert extract_settings(monkeypatch, name, "--views=50").views == 50


@pytest.mark.parametrize("name", ORDER)
def test_the_head_for_squared_error_is_aligned_as_in_the_paper(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if int(name[5]) in ALIGNED:
        found = align_settings(monkeypatch, name)
        expected = {"loss": "mse", "epochs": 50, "batch_size": 512, "lr": 1e-3}
        assert {**expected, "weight_decay": 0.05}.items() <= found.items()
    else:
        assert "[align]" not in recipe(name)
        assert "clinit align" not in recipe(name)


def test_table_1_initialises_and_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = sweep_settings(monkeypatch, ORDER[0])
    assert len(runs) == 3 * 2 * 5
    assert {run["loss"] for run in runs} == {"ce", "mse"}
    assert {run["seed"] for run in runs} == {0, 1, 2, 3, 4}
    for run in runs:
        assert run["stop_after"] == 1
        check(run, STREAM, {"iterations": 0, "buffer": 24_000, "class_mean": "raw", "lam": 0.05})
    assert {run["init"] for run in runs} == INITS


@pytest.mark.parametrize(
    ("name", "losses", "training"),
    [
        (ORDER[1], {"ce", "sqen", "mse"}, LAST_LAYER),
        (ORDER[4], {"ce"}, {**LAST_LAYER, "lr": 1e-4, "lam": 1e-4}),
    ],
)
def test_tables_2_and_5_train_the_last_layer(
    name: str, losses: set[str], training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = sweep_settings(monkeypatch, name)
    cells = {
        (run["init"], run["loss"], run["seed"], run["iterations"], run["buffer"]) for run in runs
    }
    assert len(cells) == len(runs)
    assert cells == {
        (init, loss, seed, *budget)
        for init in INITS
        for loss in losses
        for seed in range(5)
        for budget in (SMALL, LARGE)
    }
    for run in runs:
        used = {k: v for k, v in training.items() if k != "lam" or run["init"] == "least-square"}
        bias = "write" if run["init"] != "random" else run["bias"]
        check(run, STREAM, {**HEAD, "bias": bias}, used, {"method": "rehearsal"})


@pytest.mark.parametrize(
    ("name", "training"),
    [(ORDER[1], LAST_LAYER), (ORDER[4], {**LAST_LAYER, "lr": 1e-4, "lam": 1e-4})],
)
def test_one_run_of_tables_2_and_5_is_that_of_the_sweep(
    name: str, training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = head_settings(monkeypatch, name, "--seed=3")
    assert {run["init"] for run in runs} == INITS
    for run in runs:
        check(run, STREAM, HEAD, training, {"seed": 3, "iterations": 600, "buffer": 24_000})
    larger = head_settings(monkeypatch, name, "--iterations=1200", "--buffer=192000", "--loss=mse")
    assert [(run["iterations"], run["buffer"], run["loss"]) for run in larger] == [
        (*LARGE, "mse")
    ] * 3


@pytest.mark.parametrize(
    ("name", "budget", "probe"),
    [
        (ORDER[2], SMALL, True),
        (ORDER[5], SMALL, True),
        (ORDER[6], SMALL, True),
        (ORDER[7], LARGE, True),
    ],
)
def test_tables_of_top_layers_have_low_rank_updates_of_two_blocks(
    name: str, budget: tuple[int, int], probe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = top_settings(monkeypatch, name, "--seed=4")
    assert {run["init"] for run in runs} == INITS
    for run in runs:
        check(run, STREAM, HEAD, TOP, LOW_RANK, {"layer_decay": 0.9, "probe": probe, "loss": "ce"})
        assert (run["iterations"], run["buffer"], run["seed"]) == (*budget, 4)
        assert run["method"] == "rehearsal"
    words = ["--iterations=1200", "--buffer=192000", "--loss=mse", "--head=mse.safetensors"]
    for run in top_settings(monkeypatch, name, *words):
        check(run, STREAM, HEAD, TOP, LOW_RANK, {"loss": "mse"})
        assert (run["iterations"], run["buffer"]) == LARGE


def test_table_4_has_the_settings_of_each_method(monkeypatch: pytest.MonkeyPatch) -> None:
    for run in top_settings(monkeypatch, ORDER[3], "--method=ewc"):
        check(run, STREAM | {"mix": "text"}, HEAD, TOP | {"lr": 8e-4, "batch_size": 128})
        assert run["iterations"] == 600
        assert run["method"] == "ewc"
        assert (run["full_rank"], run["top_blocks"]) == (True, 2)
        assert run["layer_decay"] == 0.9
        assert (run["ewc_lam"], run["ewc_mode"]) == (1e6, "task")
    for run in top_settings(monkeypatch, ORDER[3], "--method=derpp"):
        check(run, STREAM, HEAD, TOP, LOW_RANK, {"iterations": 600, "buffer": 24_000})
        assert run["method"] == "derpp"
        assert (run["derpp_alpha"], run["derpp_beta"]) == (0.1, 0.9)
        assert (run["derpp_teacher"], run["derpp_distance"]) == ("stored", "sum")


def top_sweep(monkeypatch: pytest.MonkeyPatch, name: str) -> list[dict[str, Any]]:
    monkeypatch.setattr("clinit.cli.sweep._sweep_top", lambda runs, *_, **__: stop(runs))
    words = ["--top", f"--config={name}", "--base=b", "--new=n", "--out=o"]
    return [run.values() for run in invoke("sweep", *words)[0]]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        (ORDER[2], itertools.product(["ce", "sqen", "mse"], [SMALL, LARGE], [0])),
        (ORDER[5], itertools.product(["ce"], [SMALL], range(5))),
        (ORDER[6], itertools.product(["ce", "sqen", "mse"], [SMALL, LARGE], [0])),
        (ORDER[7], itertools.product(["ce", "sqen", "mse"], [LARGE], [0])),
    ],
)
def test_one_sweep_trains_a_table_of_top_layers(
    name: str, cells: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = top_sweep(monkeypatch, name)
    found = [
        (run["init"], run["loss"], (run["iterations"], run["buffer"]), run["seed"]) for run in runs
    ]
    assert sorted(found) == sorted((init, *cell) for cell in cells for init in INITS)
    for run in runs:
        check(run, STREAM, HEAD | {"bias": run["bias"]}, TOP, LOW_RANK, {"probe": True})


def test_one_sweep_trains_both_methods_of_table_4(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = top_sweep(monkeypatch, ORDER[3])
    assert sorted((run["method"], run["init"]) for run in runs) == sorted(
        itertools.product(["ewc", "derpp"], INITS)
    )
    assert {(run["method"], run["lr"], run["batch_size"]) for run in runs} == {
        ("ewc", 8e-4, 128),
        ("derpp", 1.5e-3, 256),
    }


def test_figure_1_is_long_training_and_the_first_task_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = sweep_settings(monkeypatch, "figure1-spikes")
    assert sorted(
        (run["init"], run["iterations"], run["stop_after"] or 5) for run in runs
    ) == sorted((init, *length) for init in INITS for length in ((1250, 5), (3000, 1)))
    for run in runs:
        check(run, STREAM, {**HEAD, "bias": run["bias"]}, LAST_LAYER, {"loss": "ce", "seed": 0})


@pytest.mark.parametrize("name", ORDER)
def test_the_commands_of_a_recipe_are_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command in the head of the file is read, with all of its options."""
    import typer

    monkeypatch.chdir(tmp_path)
    Path("mse.safetensors").touch()
    root: Any = typer.main.get_command(app)
    text = recipe(name).split("[extract]")[0]
    text = text.replace("\\\n#", "").replace("$seed", "3").replace("$loss", "sqen")
    lines = re.findall(r"^# +(clinit .*)$", text, flags=re.MULTILINE)
    assert [line.split()[1] for line in lines[:3]] == ["reproduce", "extract", "extract"]
    assert len(lines) >= 4
    for line in lines:
        for method in ("ewc", "derpp"):
            words = shlex.split(line.replace("$method", method), comments=True)[1:]
            parent = root.context_class(root)
            command = root.commands[words[0]]
            context = command.make_context(words[0], words[1:], parent=parent)
            if "config_file" in context.params:
                assert str(context.params["config_file"]) == name


@pytest.mark.parametrize("name", ORDER)
def test_the_head_of_a_recipe_says_what_is_ours_and_what_it_costs(name: str) -> None:
    text = recipe(name)
    assert text.startswith(f"# Table {name[5]}: ")
    head = " ".join(text.split("[extract]")[0].replace("\n#", " ").split())
    assert "scale and head-width. The paper mentions neither" in head
    assert "Cost: caches of 1." in head
    assert max(map(len, text.splitlines())) <= 100


# The command.


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["recipe", *words], env={"COLUMNS": "80"})


def test_recipes_are_listed_with_their_titles() -> None:
    shown = run("list").output
    assert [name for name in ORDER if name in shown] == ORDER
    assert "Table 4: EWC and DER++" in shown
    assert "Commands and comments: clinit recipe show NAME" in shown


def test_a_recipe_is_shown_as_it_is(tmp_path: Path) -> None:
    shown = run("show", ORDER[1])
    assert shown.output == recipe(ORDER[1])
    assert shown.exit_code == 0


def test_an_unknown_recipe_is_refused_with_the_nearest() -> None:
    error = run("show", "table2").exception
    assert isinstance(error, ConfigFileError)
    assert str(error) == "there is no recipe 'table2'"
    assert error.remedy.startswith("Did you mean the recipe 'table")
    error = run("show", "xyzzy").exception
    assert isinstance(error, ConfigFileError)
    assert error.remedy == "Give a TOML file, or a recipe of `clinit recipe list`."


def test_a_missing_file_named_like_a_recipe_proposes_it() -> None:
    result = CliRunner().invoke(
        app, ["align", "cache", "--out=o", "--config=docs/recipes/table2-last-layers.toml"]
    )
    assert isinstance(result.exception, ConfigFileError)
    assert str(result.exception) == (
        "cannot read the options in docs/recipes/table2-last-layers.toml: No such file or directory"
    )
    assert result.exception.remedy == "Did you mean the recipe 'table2-last-layer'?"


def test_a_file_of_the_name_of_a_recipe_comes_first_and_a_folder_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(ORDER[1]).mkdir()
    assert align_settings(monkeypatch, ORDER[1])["epochs"] == 50
    Path(ORDER[2]).write_text("[align]\nepochs = 3\n")
    assert align_settings(monkeypatch, ORDER[2])["epochs"] == 3


def test_errors_in_a_recipe_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clinit.cli.recipe.recipe", lambda name: "[align]\nepoch = 1\n")
    result = CliRunner().invoke(app, ["align", "cache", "--out=o", f"--config={ORDER[1]}"])
    message = f"the recipe {ORDER[1]} sets 'epoch', which is no option or method in [align]"
    assert str(result.exception) == message


def test_starts_compares_the_default_with_six_others_in_every_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = sweep_settings(monkeypatch, "starts")
    by_cell: dict[Any, list[dict[str, Any]]] = {}
    for run in runs:
        cell = (run["buffer"], run["shots"], run["iterations"], run["seed"])
        by_cell.setdefault(cell, []).append(run)
    lengths, few = (0, 25, 100, 300, 600), (1, 2, 5, 10, 20, 50, 200)
    whole = set(itertools.product([24_000], few, lengths, range(5)))
    small = set(itertools.product([200, 600], (1, 5, 20, 200), (25, 100, 300), range(5)))
    assert set(by_cell) == whole | small
    start = Study().start
    default = {name: getattr(start, name) for name in ("init", "scale", "calibration", "lam")}
    for (_, _, iterations, _), found in by_cell.items():
        assert len(found) == 7
        assert sum(default.items() <= run.items() for run in found) == 1
        assert {run["eval_every"] for run in found} == {max(iterations, 1)}
        assert {run["tasks"] for run in found} == {5}
