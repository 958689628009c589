"""The frame of the command line: its help, its refusals, and what it loads."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from clinit.cli import main as command_line
from clinit.headtrain.protocol.study.rules import settings_of

TRAIN = ("train-head", "--base", "absent", "--new", "absent", "--out", "o")
EXTRACT = ("extract", "--root=a", "--out=o")
SWEEP = ("sweep", "--base", "absent", "--new", "absent", "--out", "o")


def walk(command: Any, above: Any = None, name: str = "clinit") -> Iterator[tuple[str, Any, Any]]:
    settings = command.context_settings if above is None else {}
    context = command.context_class(command, info_name=name, parent=above, **settings)
    yield context.command_path, command, context
    for each in getattr(command, "commands", {}):
        yield from walk(command.commands[each], context, each)


COMMANDS = {
    path: (command, each) for path, command, each in walk(typer.main.get_command(command_line.app))
}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["clinit", *arguments])
    with pytest.raises(SystemExit) as caught:
        command_line.main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_every_option_has_whole_help_at_80_columns(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command, context = COMMANDS[path]
    text = command.get_help(context)
    assert command.help
    assert max(map(len, text.splitlines())) <= 80
    for parameter in command.get_params(context):
        assert getattr(parameter, "help", None), parameter.name
        for name in parameter.opts if parameter.param_type_name == "option" else ():
            assert re.search(rf"^  .*(?<![\w-]){name}(?![\w-])", text, re.MULTILINE)


def test_settings_of_a_study_stand_below_the_titles_that_they_name() -> None:
    command, context = COMMANDS["clinit train-top"]
    parts = re.split(r"^(\w[\w+ ]*):\n", command.get_help(context), flags=re.MULTILINE)
    titles = dict(zip(parts[1::2], parts[2::2], strict=True))
    for field in settings_of(top=True).values():
        assert field.option in titles[field.panel]
    assert list(titles)[-1] == "Options"


MISTAKES = {
    (*TRAIN, "--method=rehersal"): "--method.*'rehersal'.*'rehearsal'",
    (*TRAIN, "--tasks=many"): "--tasks.*integer.*'many'",
    (*TRAIN, "--tasks=0"): "--tasks.* 1, got '?0",
    (*TRAIN, "--itertions=4"): "--itertions.*--iterations",
    (*TRAIN, "--lr=-1"): "--lr takes.*got -1.0",
    (*TRAIN, "--lambda=much"): "--lambda.*'much'",
    (*TRAIN, "--tasks=0", "--tasks=4"): "no feature cache at absent",  # the last one wins
    (*TRAIN, "--init=random", "--init=lda"): "no feature cache at absent",
    ("sweep", "--weight-decay", "0"): "--weight-decay.*weight_decay=VALUE",
    ("cache", "shwo"): "'shwo'.*'show'",
    ("train-head", "--base", "x"): "'--new'.*Feature cache of the new classes",
    ("report", "r", "--plot"): "'--plot' requires an argument",
    ("demo", "here", "there"): "here there",
    ("cache", "show", "caches[bold]/absent"): r"no feature cache at caches\[bold\]/absent",
    ("cache", "show", "x" * 5000): "no feature cache at xxx",
    EXTRACT: "give either --dataset or --manifest",
    (*EXTRACT, "--dataset=folder", "--mean=a"): "--mean takes a list of numbers .*, got 'a'",
    (*EXTRACT, "--dataset=folder", "--std=0"): "--std takes a list of numbers .above 0., got",
    (*EXTRACT, "--dataset=folder", "--part=1/2", "--ray=x:1"): "--part and --ray exclude each",
    (*EXTRACT, "--dataset=digits", "--mean=127"): "127 is 0.498",
    (*EXTRACT, "--dataset=imagnet1k"): "imagenet1k",
    (*TRAIN, "--seed=3:3"): "--seed 3:3 is not a range",
    (*TRAIN, "--seed=1.5"): r"got '1\.5'. Write one",
    (*TRAIN, "--seed=-1"): "got -1",
    (*SWEEP, "--top", "--bank-size=3"): "--bank-size is for banks of heads",
    (*SWEEP, "--top", "--held-out=0.2"): "--held-out is for banks of heads",
    (*SWEEP, "--top", "--memory=1GB"): "--memory is for banks of heads",
    (*SWEEP, "--workers=3"): "--workers is for runs of top blocks",
    ("head", "align", "absent", "--out=o", "--memory=much"): "got 'much'",
    ("head", "align", "absent", "--out=o", "--memory=0"): "--memory must be a size above 0",
    ("head", "fit", "absent", "--out=head.bin"): r"--out needs a file that ends in \.safetensors",
    ("head", "fit", "absent", "--overwrite"): "--overwrite has no effect without --out",
    ("report", "r", "--compare=init"): "--compare needs --baseline",
    ("report", "r", "--json", "--format=csv"): "--json does not go with --format csv",
    ("report", "r", "--figure=pie", "--plot=a.png"): "there is no column 'pie'",
    ("report", "r", "--columns=acc_all,factor"): "runs have no factor, only tasks",
    ("report", "r", "--columns=acc_olt"): "acc_old",
    ("report", "r", "--figure=efficiency"): "add --plot FILE",
    ("report", "r", "--figure=curves"): "add --plot FILE",
    ("report", "r", "--curves", "--json"): "below the tables",
    ("report", "r", "--per-task", "--format=csv"): "--json has every task",
    ("recipe", "show", "table2"): "'table2'.*Did you mean the recipe 'table",
    ("recipe", "show", "xyzzy"): "'xyzzy'.*clinit recipe list",
    ("head", "align", "c", "--out=o", "--config=docs/table2-last-layers.toml"): (
        "docs/table2-last-layers.toml: No such file.*the recipe 'table2-last-layer'"
    ),
    ("reproduce", "last-laier"): "last-layer",
    ("reproduce", "cost", "--base", "b"): "--base needs --new and vice versa",
}


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: " ".join(words)[:50])
def test_a_mistake_is_told_without_a_traceback(
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *words) in (1, 2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert re.search(MISTAKES[words], " ".join(shown.err.split()))


@pytest.mark.parametrize("odd", ["0", "5", "²"])
def test_the_help_is_given_at_any_width(
    odd: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "clinit", "recipe", "show", "--help"]
    environment = {**os.environ, "COLUMNS": odd}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "Print a recipe: the commands in order" in done.stdout


def test_a_removed_current_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert run(monkeypatch, "report", "runs") == 1
    assert "the current folder has been removed" in capsys.readouterr().err


def test_the_commands_are_those_of_the_documentation() -> None:
    pages = (Path(__file__).parents[2] / "docs").glob("*.md")
    manual = "".join(page.read_text("utf-8") for page in pages if page.name != "commands.md")
    shown = ((path, each) for path, (each, _) in COMMANDS.items() if not each.hidden)
    leaves = [path for path, each in shown if not hasattr(each, "commands")]
    assert [path for path in leaves if path not in manual] == []
