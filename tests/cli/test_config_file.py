from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from clinit.cli.add import add, remember
from clinit.cli.align import align
from clinit.cli.config import APART, NOT_SHARED, commands_with_files
from clinit.cli.context import given
from clinit.cli.extract import extract
from clinit.cli.main import app
from clinit.cli.sweep import sweep
from clinit.cli.sweep_grids import grids_of
from clinit.cli.train_head import train_head
from clinit.cli.train_top import train_top
from clinit.errors import ConfigFileError
from clinit.headtrain.sweep.plan import distinct, runs_of

ROOT: Any = typer.main.get_command(app)
PLACES = {
    "extract": ["--root=r", "--out=o"],
    "add": ["model", "images", "--out=o"],
    "remember": ["model", "images", "--out=o"],
    "align": ["cache", "--out=o"],
    "train-head": ["--base=b", "--new=n", "--out=o"],
    "train-top": ["--base=b", "--new=n", "--out=o"],
    "sweep": ["--base=b", "--new=n", "--out=o"],
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def parse(command: str, text: str | None, *words: str, first: bool = True) -> Any:
    """Read a command line with a file, `first` or last on it; the command is not run."""
    config = []
    if text is not None:
        Path("study.toml").write_text(text, encoding="utf-8")
        config = ["--config=study.toml"]
    line = [*config, *PLACES[command], *words] if first else [*PLACES[command], *words, *config]
    root = ROOT.context_class(ROOT)
    return ROOT.commands[command].make_context(command, line, parent=root)


def options(command: str, text: str | None, *words: str, first: bool = True) -> dict[str, Any]:
    params: dict[str, Any] = parse(command, text, *words, first=first).params
    return params


def refused(command: str, text: str, *words: str) -> ConfigFileError:
    with pytest.raises(ConfigFileError) as caught:
        parse(command, text, *words)
    return caught.value


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
no-trunk-cache = true
lambda = 1e-4
init = "lda"

[train-top.derpp]
rank = 4
derpp-alpha = 1
"""


def test_a_command_reads_the_top_of_the_file_and_its_own_section() -> None:
    found = options("train-top", STUDY)
    assert (found["tasks"], found["seed"], found["rank"]) == (7, ["3"], 8)
    assert (found["lr"], found["lam"], found["derpp_alpha"]) == (2e-3, "0.0001", 0.1)
    assert (found["probe"], found["no_trunk_cache"], found["full_rank"]) == (False, True, False)
    assert list(map(str, found["scale"])) == ["norm", "none"]
    assert list(map(str, found["init"])) == ["lda"]
    head = options("train-head", STUDY)
    assert (head["tasks"], head["lr"], head["lam"]) == (7, 1e-4, "auto")


def test_what_is_for_several_other_commands_is_passed_over() -> None:
    text = 'tasks = 7\nbuffer = 5\nseed = 1\n[extract]\ntransform = "paper"\n'
    assert str(options("extract", text)["transform"]) == "paper"
    assert options("align", text)["seed"] == 1


@pytest.mark.parametrize("first", [True, False])
def test_the_section_of_the_method_in_force_wins_over_that_of_the_command(first: bool) -> None:
    found = options("train-top", STUDY, "--method=derpp", first=first)
    assert (found["rank"], found["derpp_alpha"], found["lr"]) == (4, 1.0, 2e-3)
    text = '[train-top]\nmethod = "derpp"\nrank = 8\n[train-top.derpp]\nrank = 4\n'
    assert options("train-top", text, first=first)["rank"] == 4
    assert options("train-top", text, "--method=joint", first=first)["rank"] == 8


@pytest.mark.parametrize("first", [True, False])
def test_the_command_line_wins_over_all(first: bool) -> None:
    words = ["--method=derpp", "--rank=2", "--tasks=1", "--init=zero", "--probe"]
    context = parse("train-top", STUDY, *words, first=first)
    found = context.params
    assert (found["rank"], found["tasks"], found["probe"]) == (2, 1, True)
    assert list(map(str, found["init"])) == ["zero"]
    where = [given(context, name) for name in ("rank", "lr", "alpha")]
    assert where == ["commandline", "default_map", None]


def test_the_section_wins_over_the_top_of_the_file() -> None:
    assert options("train-head", "tasks = 7\n[train-head]\ntasks = 2\n")["tasks"] == 2


# What an option means to another command or method.


@pytest.mark.parametrize(("line", "own"), [("lr = 1.5e-3", "0.0008"), ("batch-size = 256", "128")])
def test_a_setting_that_ewc_reads_differently_is_neither_used_nor_dropped(
    line: str, own: str
) -> None:
    key = line.split(" ")[0]
    error = refused("train-top", f"[train-top]\n{line}\n", "--method=ewc")
    assert str(error) == (
        f"study.toml sets '{key}' in [train-top] for rehearsal, but ewc has a default of its own,"
        f" {own}"
    )
    assert error.remedy == f"Write it under [train-top.ewc], or give --{key}."
    name = key.replace("-", "_")
    text = f"[train-top]\n{line}\n[train-top.ewc]\n{key} = 64\n"
    assert options("train-top", text, "--method=ewc")[name] == 64
    assert options("train-top", text, "--method=ewc", f"--{key}=32")[name] == 32
    asked = options("train-top", f"[train-top]\n{line}\n", "--method=ewc", f"--{key}=32")
    assert asked[name] == 32
    assert options("train-top", text, "--method=derpp")[name] == float(line.split(" ")[2])


def test_a_setting_beside_its_method_is_for_this_method() -> None:
    text = '[train-top]\nmethod = "ewc"\nlr = 4e-4\n'
    assert options("train-top", text)["lr"] == 4e-4
    error = refused("train-top", text, "--method=joint")
    assert "in [train-top] for ewc, but joint has a default of its own, 0.0015" in str(error)


@pytest.mark.parametrize("key", sorted(NOT_SHARED))
def test_an_option_that_commands_read_differently_needs_a_section(key: str) -> None:
    error = refused("train-top", f"{key} = 1\n")
    assert f"sets {key!r} outside of a section, but it is not the same option in " in str(error)
    places = "[extract] or [align]" if key == "views" else "[train-top]"
    assert error.remedy == f"Write it under {places}."


OF_STUDY = {
    "extract": extract,
    "align": align,
    "train-head": train_head,
    "train-top": train_top,
    "sweep": sweep,
}
MODEL_IN_USE = {"add": add, "remember": remember}


def differing(commands: Iterable[Any]) -> set[str]:
    """Return the options that several commands have, but not with the same words and default."""
    seen: dict[str, set[str]] = {}
    for command in commands:
        hints = get_type_hints(command)
        for name, parameter in inspect.signature(command).parameters.items():
            seen.setdefault(name, set()).add(f"{hints[name]} = {parameter.default}")
    return {name.replace("_", "-") for name, kinds in seen.items() if len(kinds) > 1}


def test_the_options_that_need_a_section_are_those_that_differ() -> None:
    # `out` is always a path, but never the same thing; one seed is the same to all, and several
    # are refused where one is taken.
    assert {*differing(OF_STUDY.values()), "out"} - {"seed"} == NOT_SHARED
    assert {*OF_STUDY, *MODEL_IN_USE} == set(commands_with_files(ROOT))
    assert set(APART) == set(MODEL_IN_USE)
    apart = differing((*OF_STUDY.values(), *MODEL_IN_USE.values())) - NOT_SHARED
    assert apart >= {"init", "iterations"}  # a study shares them, and only add reads them otherwise


@pytest.mark.parametrize("command", APART)
def test_no_option_at_the_top_reaches_a_command_of_a_model_in_use(command: str) -> None:
    for key in commands_with_files(ROOT)[command]:
        error = refused(command, f"{key} = 1\n")
        assert str(error) == (
            f"study.toml sets '{key}' outside of a section, but {command} reads its own alone"
        )
        assert error.remedy == f"Write the value for {command} under [{command}]."


def test_a_study_and_a_model_in_use_share_a_file() -> None:
    text = 'iterations = 5000\ninit = ["lda"]\nseed = 3\n[add]\niterations = 20\n'
    text += 'init = "zero"\nseed = 4\n[remember]\nseed = 5\n'
    found = options("add", text)
    assert (found["iterations"], str(found["init"]), found["seed"]) == (20, "zero", 4)
    assert options("remember", text)["seed"] == 5
    head = options("train-head", text)
    assert (head["iterations"], list(map(str, head["init"])), head["seed"]) == (
        5000,
        ["lda"],
        ["3"],
    )


@pytest.mark.parametrize(
    ("key", "having", "sections"),
    [
        ("old-rows", "only add has it", "[add]"),
        ("hold-out", "only add and remember have it", "[add] or [remember]"),
        ("backbone", "only extract has it", "[extract]"),
    ],
)
def test_a_study_does_not_pass_over_what_is_for_none_of_its_commands(
    key: str, having: str, sections: str
) -> None:
    error = refused("train-head", f"{key} = 1\n")
    assert str(error) == f"study.toml sets '{key}' outside of a section, but {having}"
    assert error.remedy == f"Write it under {sections}."


def test_an_option_of_one_command_alone_is_for_this_command() -> None:
    assert options("train-top", "layer-decay = 0.5\n")["layer_decay"] == 0.5
    error = refused("train-head", "layer-decay = 0.5\n")
    assert str(error) == (
        "study.toml sets 'layer-decay' outside of a section, but only train-top has it"
    )
    assert error.remedy == "Write it under [train-top]."


@pytest.mark.parametrize(
    ("text", "kept", "dropped"),
    [
        ("buffer = 9\n[train-head]\nbuffer-per-class = 2\n", "buffer_per_class", "buffer"),
        (
            "[train-head]\nbuffer-per-class = 2\n[train-head.rehearsal]\nbuffer = 9\n",
            "buffer",
            "buffer_per_class",
        ),
    ],
)
def test_the_nearer_of_two_options_that_exclude_each_other_wins(
    text: str, kept: str, dropped: str
) -> None:
    found = options("train-head", text)
    assert found[kept] is not None
    assert found[dropped] is None


# Mistakes.


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ("lamda = 1", "sets 'lamda', which is not an option", "Did you mean 'lambda'?"),
        (
            "eval_every = 1",
            "sets 'eval_every', which is not an option",
            "Did you mean 'eval-every'?",
        ),
        ("trnsform = 1", "sets 'trnsform', which is not an option", "Did you mean 'transform'?"),
        (
            "config = 'other.toml'",
            "sets 'config', which is not an option",
            "Known are: base, new, ",
        ),
        (
            "[train-top]\nranck = 1",
            "sets 'ranck' in [train-top], which is not an option of train-top",
            "Did you mean 'rank'?",
        ),
        (
            "[train-top]\ntransform = 'paper'",
            "sets 'transform' in [train-top], which is not an option of train-top",
            "It is one of extract, add and remember.",
        ),
        (
            "[train-top.ewc]\newc-lamda = 1",
            "sets 'ewc-lamda' in [train-top.ewc], which is not an option of train-top",
            "Did you mean 'ewc-lambda'?",
        ),
        (
            "[train-top.ewc]\nrank = 2",
            "has a mistake in [train-top.ewc]: --rank does not go with --method ewc: it trains the"
            " blocks themselves",
            "Write it under [train-top], or remove it.",
        ),
        (
            "[train-top.ewc]\nmethod = 'ewc'",
            "sets 'method' in [train-top.ewc], which says it already",
            "Remove it.",
        ),
        (
            "[train-tops]\nrank = 2",
            "has a section [train-tops], but no command of that name reads it",
            "Did you mean [train-top]?",
        ),
        (
            "[train-top.drpp]\nrank = 2",
            "has a section [train-top.drpp], but train-top has no method 'drpp'",
            "Did you mean [train-top.derpp]?",
        ),
        (
            "train-top = 1",
            "gives 'train-top' a value, but it is the name of a section",
            "Write [train-top] and its options below it.",
        ),
    ],
)
def test_what_is_unknown_is_an_error_that_names_the_nearest(
    text: str, message: str, remedy: str
) -> None:
    error = refused("train-top", text)
    assert str(error) == f"study.toml {message}"
    assert error.remedy.startswith(remedy)


def test_a_section_without_methods_has_no_sections_below() -> None:
    error = refused("align", "[align.mse]\nlr = 1\n")
    assert str(error) == "study.toml sets 'mse' in [align], which is not an option of align"


@pytest.mark.parametrize("where", ["", "[train-head]\n", "[train-head.joint]\n"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tasks = [1, 2]", "gives 'tasks' a list, but the option takes one value"),
        ("init = [['random']]", "gives 'init' a list in a list"),
        ("tasks = 2026-11-21", "gives 'tasks' a date"),
        ("tasks = {value = 1}", "gives 'tasks' a table, expected a string, a number"),
        ("tasks = ", "is not TOML: Invalid value"),
    ],
)
def test_what_no_option_takes_is_refused(where: str, line: str, message: str) -> None:
    assert message in str(refused("train-head", where + line))


@pytest.mark.parametrize(
    "line",
    [
        "tasks = 0",
        "tasks = 1.5",
        "tasks = true",
        'weight-decay = "fast"',
        'init = "best"',
        "diagnose = 3",
        '[train-head]\nmethod = "best"',
    ],
)
def test_values_are_checked_like_options(line: str) -> None:
    Path("study.toml").write_text(line, encoding="utf-8")
    words = ["train-head", *PLACES["train-head"], "--config", "study.toml"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    name = line.splitlines()[-1].split()[0]
    assert f"Invalid value for '--{name}'" in result.output


def test_a_required_option_may_be_in_neither() -> None:
    Path("study.toml").write_text("tasks = 1\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["train-head", "--base=b", "--config=study.toml"])
    assert result.exit_code == 2
    assert "Missing option" in result.output


def test_a_required_option_may_be_in_the_file() -> None:
    Path("study.toml").write_text('base = "b"\nnew = "n"\n[train-head]\nout = "o"\n')
    root = ROOT.context_class(ROOT)
    line = ["--config=study.toml"]
    context = ROOT.commands["train-head"].make_context("train-head", line, parent=root)
    assert [str(context.params[name]) for name in ("base", "new", "out")] == ["b", "n", "o"]


def test_a_file_that_is_missing_or_unreadable_is_named() -> None:
    with pytest.raises(ConfigFileError) as caught:
        parse("align", None, "--config=no.toml")
    assert str(caught.value) == "cannot read the options in no.toml: No such file or directory"
    assert caught.value.remedy == "Give a TOML file, or a recipe of `clinit recipe list`."
    Path("latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(ConfigFileError, match=r"options in latin\.toml: it is not UTF-8 text"):
        parse("align", None, "--config=latin.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = " + b"[" * 100_000, "hostile.toml nests lists or tables too deep"),
        (b"a = " + b"{b = " * 100_000, "hostile.toml nests lists or tables too deep"),
        (b"iterations = " + b"9" * 5000, "hostile.toml holds a number of thousands of digits"),
        (b"iterations = 0x" + b"f" * 5000, "gives 'iterations' a number of more than 18 digits"),
        (b"a = 1\0", "cannot read the options in hostile.toml: it is not text: it holds NUL"),
        (b"a = 1\n# \xff", "hostile.toml: it is not UTF-8 text (line 2)"),
        (b"#" * (16 * 2**20 + 1), "hostile.toml: it is larger than 16 MiB"),
        (b'init = "\\u001b[31m"', r"gives 'init' a string with control characters: \x1b[31m"),
        (b"init = [[1]]", "gives 'init' a list in a list, expected a string, a number"),
        (b"lr = 2020-01-01", "sets 'lr' outside of a section"),
        (b"train-head = 3", "gives 'train-head' a value, but it is the name of a section"),
    ],
)
def test_a_hostile_file_is_refused_in_words(content: bytes, message: str) -> None:
    Path("hostile.toml").write_bytes(content)
    with pytest.raises(ConfigFileError) as caught:
        parse("train-head", None, "--config=hostile.toml")
    assert message in str(caught.value)


def test_a_folder_and_a_pipe_are_no_files_of_options() -> None:
    Path("folder.toml").mkdir()
    os.mkfifo("pipe.toml")
    for name, reason in (("folder", "it is a folder"), ("pipe", "it is a pipe, and nothing")):
        with pytest.raises(ConfigFileError, match=rf"options in {name}\.toml: {reason}"):
            parse("align", None, f"--config={name}.toml")


@pytest.mark.parametrize("text", ["[align", "[train-top]\nlr = 1\n"])
def test_a_shell_that_completes_a_word_is_not_told_of_a_bad_file(text: str) -> None:
    Path("study.toml").write_text(text, encoding="utf-8")
    line = ["--config=study.toml", *PLACES["train-top"], "--method=ewc"]
    context = ROOT.commands["train-top"].make_context("train-top", line, resilient_parsing=True)
    assert context.params["lr"] is None


def test_the_commands_with_a_file_are_those_of_the_documentation() -> None:
    page = (DOCS / "train-head.md").read_text(encoding="utf-8")
    (line,) = (each for each in page.splitlines() if "take `--config FILE`" in each)
    said = line.split(" take ")[0].replace("clinit ", "")
    assert set(commands_with_files(ROOT)) == set(PLACES) == set(re.findall("`([^`]+)`", said))


DOCS = Path(__file__).parents[2] / "docs"


def example(page: str) -> str:
    """Return the file of options that a page shows."""
    return (DOCS / page).read_text(encoding="utf-8").split("```toml")[1].split("```")[0]


def test_the_file_of_the_documentation_is_read_by_every_command() -> None:
    text = example("train-head.md")
    assert str(options("extract", text)["transform"]) == "paper"
    assert str(options("add", text)["transform"]) == "timm"
    assert options("add", text)["iterations"] == 300
    assert options("train-head", text)["lr"] == 1e-3
    assert options("train-top", text)["lr"] == 1.5e-3
    assert options("train-top", text, "--method=ewc")["lr"] == 8e-4
    for command in ("align", "remember", "sweep"):
        options(command, text)


def test_the_study_of_the_documentation_has_as_many_runs_as_it_says() -> None:
    Path("study.toml").write_text(example("sweep.md"), encoding="utf-8")
    for words, count in (([], 30), (["seed=0"], 6)):
        grids = grids_of(Path("study.toml"), words, commands_with_files(ROOT))
        assert len(distinct(run for grid in grids for run in runs_of(grid))) == count
