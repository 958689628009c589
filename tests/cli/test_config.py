import re
from pathlib import Path
from typing import Any

import pytest
import typer

from clinit.cli.frame.config import APART, commands_with_files, grids_of
from clinit.cli.frame.context import given
from clinit.cli.main import app
from clinit.errors import ConfigFileError, ExperimentError
from clinit.headtrain.protocol.sweep.grid import distinct, runs_of
from tests.cli.calls import parsed

COMMANDS = commands_with_files(typer.main.get_command(app))
PLACES = {
    "extract": ("--root=r", "--out=o"),
    "align": ("cache", "--out=o"),
    **dict.fromkeys(("add", "remember"), ("model", "images", "--out=o")),
    **dict.fromkeys(("train-head", "train-top", "sweep"), ("--base=b", "--new=n", "--out=o")),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parse(command: str, text: str, *words: str, first: bool = True) -> Any:
    """Read a command line with a file, `first` or last on it; the command is not run."""
    Path("study.toml").write_text(text, encoding="utf-8")
    line = [*PLACES[command], *words]
    line.insert(0 if first else len(line), "--config=study.toml")
    return parsed(command, line)


def options(command: str, text: str, *words: str, first: bool = True) -> dict[str, Any]:
    params: dict[str, Any] = parse(command, text, *words, first=first).params
    return params


def grids(text: str, *words: str) -> list[dict[str, Any]]:
    parse("sweep", text)
    return list(grids_of(Path("study.toml"), list(words)))


STUDY = """
tasks = 7
seed = 3
scale = ["norm", "none"]

[extract]
transform = "paper"
seeds = "not read by train-top, nor looked at"

[train-head]
lr = 1e-4

[train-top]
lr = 2e-3
rank = 8
probe = false
trunk-budget = "0"
lambda = 1e-4
init = "lda"

[train-top.derpp]
rank = 4
derpp-alpha = 1
"""


def test_the_section_of_the_command_wins_over_the_top_of_the_file() -> None:
    found = options("train-top", STUDY)
    assert (found["tasks"], found["seed"], found["rank"]) == (7, ["3"], 8)
    assert (found["lr"], found["lam"], found["derpp_alpha"]) == (2e-3, "0.0001", 0.1)
    assert (found["probe"], found["trunk_budget"], found["full_rank"]) == (False, "0", False)
    assert list(map(str, found["scale"])) == ["norm", "none"]
    assert list(map(str, found["init"])) == ["lda"]
    head = options("train-head", STUDY)
    assert (head["tasks"], head["lr"], head["lam"]) == (7, 1e-4, "auto")
    assert options("train-head", "tasks = 7\n[train-head]\ntasks = 2\n")["tasks"] == 2


@pytest.mark.parametrize("first", [True, False])
def test_the_section_of_the_method_wins_over_both_and_the_command_line_over_all(
    first: bool,
) -> None:
    found = options("train-top", STUDY, "--method=derpp", first=first)
    assert (found["rank"], found["derpp_alpha"], found["lr"]) == (4, 1.0, 2e-3)
    text = '[train-top]\nmethod = "derpp"\nrank = 8\n[train-top.derpp]\nrank = 4\n'
    assert options("train-top", text, first=first)["rank"] == 4
    assert options("train-top", text, "--method=joint", first=first)["rank"] == 8
    words = ["--method=derpp", "--rank=2", "--tasks=1", "--init=zero", "--probe"]
    context = parse("train-top", STUDY, *words, first=first)
    assert [context.params[name] for name in ("rank", "tasks", "probe")] == [2, 1, True]
    where = [given(context, name) for name in ("rank", "lr", "alpha")]
    assert where == ["commandline", "default_map", None]


@pytest.mark.parametrize("command", APART)
def test_a_model_in_use_reads_its_own_section_alone(command: str) -> None:
    found = options(command, f"iterations = 5000\nworkers = 3\n[{command}]\nworkers = 4\n")
    assert found["workers"] == 4
    assert "iterations" not in found


@pytest.mark.parametrize(
    ("text", "fact", "remedy"),
    [
        ("lamda = 1", "'lamda'", "'?lambda"),
        ("config = 'other.toml'", "'config'", "Known are: base, new, "),
        ("[train-top]\nranck = 1", "'ranck', which is no option", "rank"),
        ("[train-top]\ntransform = 'paper'", "'transform'", ""),
        ("[train-top.ewc]\newc-lamda = 1", "'ewc-lamda', .* in .train-top.ewc", "ewc-lambda"),
        ("[train-top.ewc]\nmethod = 'ewc'", "'method'", ""),
        ("[train-tops]\nrank = 2", "'train-tops'", "train-top"),
        ("[train-top.drpp]\nrank = 2", "'drpp'", "derpp"),
        ("train-top = 1", "'train-top'", "Write .train-top."),
        ("tasks = [1, 2]", "'tasks'", "`tasks = ...`"),
        ("[train-top]\ninit = [['random']]", "'init'", "`init = ...`"),
        ("[train-top.rehearsal]\ntasks = {value = 1}", "'tasks'", "`tasks = ...`"),
        ("tasks = ", "is not TOML", "one option per line"),
        ("a = " + "[" * 100_000, "is not TOML", ""),
        ("iterations = " + "9" * 5000, "is not TOML", ""),
        ("#" * (16 * 2**20 + 1), "larger than 16 MiB", ""),
    ],
)
def test_what_no_option_takes_is_refused_with_the_nearest(
    text: str, fact: str, remedy: str
) -> None:
    with pytest.raises(ConfigFileError, match=fact) as caught:
        parse("train-top", text)
    assert "study.toml" in str(caught.value)
    assert re.search(remedy, caught.value.remedy)


# Grids.

BUDGETS = """
[[sweep.grid]]
iterations = 600
buffer = 24000

[[sweep.grid]]
iterations = 1200
buffer = 192000
seed = "0:2"
"""


def test_every_table_is_a_grid_and_words_of_the_command_line_overlay_each() -> None:
    assert grids(BUDGETS) == [
        {"iterations": (600,), "buffer": (24_000,)},
        {"iterations": (1200,), "buffer": (192_000,), "seed": (0, 1)},
    ]
    found = grids(BUDGETS, "seed=7", "lr=1e-4..1e-2:log2", "buffer=3")
    rest = {"seed": (7,), "lr": (1e-4, 1e-2), "buffer": (3,)}
    assert found == [{"iterations": (600,), **rest}, {"iterations": (1200,), **rest}]


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
        buffer = 3
    """
    under = {"tasks": (2,), "eval_every": (5,), "init": ("random", "lda")}
    assert grids(text) == [{**under, "lr": (0.1, 0.2), "buffer": (3,)}]
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


SEEDS = "[sweep.grid]\nseed = 1\n"


@pytest.mark.parametrize(
    ("text", "fact", "remedy"),
    [
        ("", "study.toml contains no grid", "[[sweep.grid]]"),
        ("[sweep.grid]\n", "contains a grid that is empty", "[[sweep.grid]]"),
        ("[sweep]\ngrid = [1]\n", "or not a table", "[[sweep.grid]]"),
        ("[grid]\nseed = 1\n", "'grid'", ""),
        ("[sweep.grid]\nbufer = 1\n", "study.toml: a sweep", "buffer"),
        ("[[sweep.grid]]\nseed = [[1]]\n", "seed takes an integer", "seed="),
        ("[sweep.grid]\nseed = '0:60000'\ntasks = '1:3'\n", "120,000", "several sweeps"),
        (f"[train-head]\nclass-order = 'a'\n{SEEDS}", "class_order cannot be varied", "Vary seed"),
        (f"[train-head]\nlrr = 1\n{SEEDS}", "'lrr'", "lr"),
    ],
)
def test_a_study_that_is_no_grid_is_refused(text: str, fact: str, remedy: str) -> None:
    with pytest.raises(ExperimentError if fact == "120,000" else ConfigFileError) as caught:
        grids(text)
    assert fact in str(caught.value)
    assert remedy in caught.value.remedy


def test_the_sweep_has_the_places_of_its_runs_and_options_of_its_own() -> None:
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
    Path("study.toml").write_text(text)
    found = parsed("sweep", ["--config=study.toml", "--out=o", "seed=2"]).params
    assert [found[name] for name in ("base", "new")] == [[Path("b")], [Path("n")]]
    assert found["bank_size"] == 3
    assert (list(found["head"]), list(found["grid"])) == (["h"], ["seed=2"])


# The documentation.


def test_the_files_of_the_documentation_are_read_by_the_commands_that_it_names() -> None:
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    (line,) = (each for each in page.splitlines() if "accept `--config FILE`" in each)
    said = line.split(" accept ")[0].replace("clinit ", "")
    assert set(COMMANDS) == set(PLACES) == set(re.findall("`([^`]+)`", said))
    text, study = (block.split("```")[0] for block in page.split("```toml")[1:])
    for command in COMMANDS:
        options(command, text)
    assert options("train-top", text)["lr"] == 1.5e-3
    assert options("train-top", text, "--method=ewc")["lr"] == 8e-4
    for words, count in (([], 30), (["seed=0"], 6)):
        found = grids(study, *words)
        assert len(distinct(run for grid in found for run in runs_of(grid))) == count
