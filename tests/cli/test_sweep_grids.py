from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from clinit.cli.config import commands_with_files
from clinit.cli.main import app
from clinit.cli.sweep_grids import grids_of
from clinit.errors import ClinitError, ConfigFileError, ExperimentError
from clinit.headtrain.sweep.grid import Interval

COMMANDS = commands_with_files(typer.main.get_command(app))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def grids(text: str, *words: str) -> list[dict[str, Any]]:
    Path("study.toml").write_text(text, encoding="utf-8")
    return list(grids_of(Path("study.toml"), list(words), COMMANDS))


BUDGETS = """
[[sweep.grid]]
iterations = 600
buffer = 24000

[[sweep.grid]]
iterations = 1200
buffer = 192000
seed = "0:2"
"""


def test_every_table_is_a_grid_of_its_own() -> None:
    assert grids(BUDGETS) == [
        {"iterations": (600,), "buffer": (24_000,)},
        {"iterations": (1200,), "buffer": (192_000,), "seed": (0, 1)},
    ]


def test_words_of_the_command_line_overlay_every_table() -> None:
    found = grids(BUDGETS, "seed=7", "lr=1e-4..1e-2:log", "buffer_per_class=3")
    rest = {"seed": (7,), "lr": Interval(1e-4, 1e-2, log=True), "buffer_per_class": (3,)}
    assert found == [{"iterations": (600,), **rest}, {"iterations": (1200,), **rest}]


@pytest.mark.parametrize("head", ["[grid]", "[sweep.grid]", "[[sweep.grid]]"])
def test_one_grid_may_be_a_plain_table(head: str) -> None:
    assert grids(f"{head}\nseed = 1\n") == [{"seed": (1,)}]


def test_settings_of_train_head_are_the_defaults_of_the_runs() -> None:
    text = """
        tasks = 2
        base = "b"
        eval-every = 7
        buffer = 10
        [train-head]
        init = ["random", "lda"]
        lr = 1e-4
        head = "h.safetensors"
        diagnose = true
        eval-every = 5
        [[sweep.grid]]
        lr = [0.1, 0.2]
        buffer-per-class = 3
    """
    under = {"tasks": (2,), "eval_every": (5,), "init": ("random", "lda")}
    assert grids(text) == [{**under, "lr": (0.1, 0.2), "buffer_per_class": (3,)}]
    found = grids(text.split("[[")[0], "seed=0:2", "init=zero")
    rest = {"lr": (1e-4,), "buffer": (10,), "init": ("zero",)}
    assert found == [{**under, **rest, "seed": (0, 1)}]


def test_methods_with_settings_of_their_own_are_grids_of_their_own() -> None:
    text = "[train-head]\nlr = 1e-3\n[train-head.joint]\nlr = 1e-2\n[sweep.grid]\n"
    both = 'method = ["rehearsal", "joint"]\nseed = 1\n'
    assert grids(text + both) == [
        {"lr": (1e-3,), "method": ("rehearsal",), "seed": (1,)},
        {"lr": (1e-2,), "method": ("joint",), "seed": (1,)},
    ]
    assert grids(text + both, "lr=5") == [
        {"method": ("rehearsal", "joint"), "seed": (1,), "lr": (5.0,)}
    ]
    assert grids(text + "seed = 1\n", "method=joint")[0]["lr"] == (1e-2,)
    own = text.replace("lr = 1e-3", 'method = "joint"', 1)
    assert grids(own + "seed = 1\n") == [{"method": ("joint",), "lr": (1e-2,), "seed": (1,)}]


@pytest.mark.parametrize(
    ("text", "error", "message", "remedy"),
    [
        ("", ConfigFileError, "study.toml holds no grid", "Write [[sweep.grid]] and below it"),
        ("[train-head]\nlr = 1\n", ConfigFileError, "study.toml holds no grid", "seed=0:5"),
        (
            "[grid]\n",
            ConfigFileError,
            "study.toml has a [grid] that is empty, expected fields and their values",
            "Write [grid] and below it lines such as",
        ),
        (
            "[sweep]\ngrid = [1]\n",
            ConfigFileError,
            "study.toml has a [[sweep.grid]] that is a number, expected fields and their values",
            "Write [[sweep.grid]] and below it",
        ),
        (
            "[[sweep.grid]]\nseed = 1\n[[sweep.grid]]\n",
            ConfigFileError,
            "study.toml has a [[sweep.grid]] that is empty, expected fields and their values",
            "Write [[sweep.grid]] and below it",
        ),
        (
            "[grid]\nseed = 1\n[[sweep.grid]]\nseed = 1\n",
            ConfigFileError,
            "study.toml has [grid] and [[sweep.grid]]",
            "Write each grid as a table [[sweep.grid]].",
        ),
        (
            "[gird]\nseed = 1\n[grid]\nseed = 1\n",
            ConfigFileError,
            "study.toml has a section [gird], but no command of that name reads it",
            "Did you mean [grid]?",
        ),
        ("[grid\n", ConfigFileError, "study.toml is not TOML", "Write one option per line"),
        (
            "[grid]\nbufer = 1\n",
            ConfigFileError,
            "study.toml: a sweep of train-head has no field 'bufer'",
            "Did you mean buffer?",
        ),
        (
            "[[sweep.grid]]\nseed = [[1]]\n",
            ConfigFileError,
            "study.toml: seed takes an integer, got [1]",
            "seed=0",
        ),
        (
            "[[sweep.grid]]\nseed = '0:60000'\n[[sweep.grid]]\nseed = '0:60000'\n",
            ExperimentError,
            "120,000 combinations in 2 grids, most of them 60,000 of seed; a sweep trains at most"
            " 100,000",
            "several sweeps",
        ),
        (
            "[train-head]\nclass-order = 'a.txt'\n[grid]\nseed = 1\n",
            ConfigFileError,
            "study.toml: class_order cannot be varied: each of its values is a list",
            "Vary seed",
        ),
        (
            "[train-head]\nlrr = 1\n[grid]\nseed = 1\n",
            ConfigFileError,
            "study.toml sets 'lrr' in [train-head], which is not an option of train-head",
            "Did you mean 'lr'?",
        ),
    ],
)
def test_a_study_that_is_no_grid_is_refused(
    text: str, error: type[ClinitError], message: str, remedy: str
) -> None:
    with pytest.raises(error) as caught:
        grids(text)
    assert str(caught.value).startswith(message)
    assert remedy in caught.value.remedy


def parse(text: str, *words: str) -> dict[str, Any]:
    Path("study.toml").write_text(text, encoding="utf-8")
    root: Any = typer.main.get_command(app)
    line = ["--config=study.toml", "--out=o", *words]
    parent = root.context_class(root)
    context = root.commands["sweep"].make_context("sweep", line, parent=parent)
    params: dict[str, Any] = context.params
    return params


def test_the_sweep_has_options_of_its_own_in_the_file() -> None:
    text = """
        new = "n"
        [train-head]
        base = "b"
        head = "h"
        diagnose = true
        [sweep]
        bank-size = 3
        [[sweep.grid]]
        seed = 1
    """
    found = parse(text)
    assert [str(found[name]) for name in ("base", "new", "bank_size")] == ["b", "n", "3"]
    assert list(found["head"]) == ["h"]
    own = parse(text.replace("bank-size = 3", 'head = ["mse=m", "c"]'), "--bank-size=5", "seed=2")
    assert (list(own["head"]), own["bank_size"]) == (["mse=m", "c"], 5)
    assert list(own["grid"]) == ["seed=2"]


def test_a_mistyped_grid_is_named() -> None:
    with pytest.raises(ConfigFileError) as caught:
        parse('base = "b"\nnew = "n"\n[[sweep.gird]]\nseed = 1\n')
    assert str(caught.value) == "study.toml sets 'gird' in [sweep], which is not an option of sweep"
    assert caught.value.remedy == "Did you mean 'grid'?"


def test_a_search_takes_one_grid() -> None:
    Path("study.toml").write_text(BUDGETS, encoding="utf-8")
    words = ["--base=b", "--new=n", "--out=o", "--config=study.toml", "--search=optuna"]
    result = CliRunner().invoke(app, ["sweep", *words])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert "--search takes one grid, but there are 2: of tables [[sweep.grid]]" in said
