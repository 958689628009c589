"""Every recipe, read by every command that it is for, against the numbers of the paper."""

import itertools
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer

from clinit.cli.frame.config import grids_of, recipe, recipe_names
from clinit.cli.main import app
from clinit.headtrain.protocol.sweep.grid import distinct, runs_of
from tests.cli.calls import done, parsed

ROOT: Any = typer.main.get_command(app)
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


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def options(command: str, name: str, *words: str) -> dict[str, Any]:
    """The options of a command with a recipe; the command is not run."""
    found: dict[str, Any] = parsed(command, [f"--config={name}", *words]).params
    return found


def runs(name: str, *, top: bool = False) -> list[dict[str, Any]]:
    """The settings of all runs that a sweep of a recipe trains."""
    grids = grids_of(Path(name), [], top=top)
    return [
        run.values() for run in distinct(run for each in grids for run in runs_of(each, top=top))
    ]


def test_the_recipes_are_the_tables_of_the_paper() -> None:
    assert recipe_names() == ["figure1-spikes", "starts", *ORDER]


@pytest.mark.slow
def test_starts_compares_the_default_with_six_others_in_each_cell() -> None:
    cells = Counter(
        tuple(run[name] for name in ("buffer", "shots", "iterations", "seed"))
        for run in runs("starts")
        if run["mix"] == "text" and run["iterations"]
    )
    assert max(cells.values()) == 7
    few, steps, seeds = (1, 2, 5, 10, 20, 50, 200), (25, 100, 300, 600), range(5)
    assert {*itertools.product([24_000], few, steps, seeds)} <= {
        cell for cell, count in cells.items() if count == 7
    }


@pytest.mark.parametrize("name", ["figure1-spikes", "starts", *ORDER])
def test_the_commands_of_a_recipe_are_commands(name: str) -> None:
    """Every command in the head of the file is read, with all of its options."""
    Path("mse.safetensors").touch()
    text = recipe(name)
    assert max(map(len, text.splitlines())) <= 100
    text = re.split(r"^\[", text, maxsplit=1, flags=re.MULTILINE)[0].replace("\\\n#", "")
    lines = re.findall(r"^# +(clinit .*)$", text, flags=re.MULTILINE)
    assert len(lines) >= (2 if name == "starts" else 4)
    for line in lines:
        words = shlex.split(line.partition(" > ")[0], comments=True)[1:]
        context = ROOT.context_class(ROOT)
        group: Any = ROOT
        while hasattr(group, "commands"):
            group, word = group.commands[words[0]], words.pop(0)
        found = group.make_context(word, words, parent=context).params
        if "config_file" in found:
            assert str(found["config_file"]) == name


# The command.


def test_recipes_are_listed_with_their_titles_and_shown_as_they_are() -> None:
    shown = done("recipe", "list")
    assert [name for name in ORDER if name in shown] == ORDER
    assert "Table 4: EWC and DER++" in shown
    assert done("recipe", "show", ORDER[1]) == recipe(ORDER[1])


def test_a_file_of_the_name_of_a_recipe_comes_first_and_a_folder_does_not() -> None:
    Path(ORDER[1]).mkdir()
    assert options("align", ORDER[1], "cache", "--out=o")["epochs"] == 50
    Path(ORDER[2]).write_text("[align]\nepochs = 3\n")
    assert options("align", ORDER[2], "cache", "--out=o")["epochs"] == 3
