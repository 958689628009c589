from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner, Result

from clinit.cli.choices import Init
from clinit.cli.config_file import read_config
from clinit.cli.context import Context, given, overridden
from clinit.errors import ConfigFileError

app = typer.Typer()


@app.command()
def options(
    context: Context,
    out: Annotated[Path, typer.Option()],
    init: Annotated[list[Init] | None, typer.Option()] = None,
    eval_every: Annotated[int, typer.Option(min=1)] = 50,
    lam: Annotated[str, typer.Option("--lambda")] = "0.05",
    lr: Annotated[float, typer.Option()] = 1e-3,
    diagnose: Annotated[bool, typer.Option("--diagnose")] = False,
    config_file: Annotated[
        Path | None, typer.Option("--config", is_eager=True, callback=read_config)
    ] = None,
) -> None:
    names = [each.value for each in init or []]
    typer.echo(f"{out} {names} {eval_every} {lam} {lr} {diagnose}")
    typer.echo(f"{given(context, 'lr')} {overridden(context, 'lr', 'eval_every')}")


def run(folder: Path, text: str, *words: str) -> Result:
    file = folder / "study.toml"
    file.write_text(text, encoding="utf-8")
    return CliRunner().invoke(app, ["--config", str(file), *words])


def refused(result: Result) -> ConfigFileError:
    assert isinstance(result.exception, ConfigFileError), result.output
    return result.exception


def test_options_come_from_the_file(tmp_path: Path) -> None:
    text = """
        out = "runs"
        init = ["random", "least-square"]
        eval-every = 10
        lambda = 1e-4
        lr = 1
        diagnose = true
    """
    result = run(tmp_path, text)
    assert result.output.splitlines() == [
        "runs ['random', 'least-square'] 10 0.0001 1.0 True",
        "default_map False",
    ]


def test_the_command_line_wins_wherever_the_file_is_named(tmp_path: Path) -> None:
    text = 'out = "runs"\ninit = "random"\neval-every = 10\nlr = 0.5\n'
    words = ["--eval-every", "20", "--init", "lda", "--init", "zero"]
    first = run(tmp_path, text, *words)
    last = CliRunner().invoke(app, [*words, "--config", str(tmp_path / "study.toml")])
    assert first.output == last.output
    assert first.output.splitlines() == [
        "runs ['lda', 'zero'] 20 0.05 0.5 False",
        "default_map True",
    ]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("eval_every", "eval-every"), ("lamda", "lambda"), ("initt", "init"), ("lam", "lambda")],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(
    key: str, nearest: str, tmp_path: Path
) -> None:
    error = refused(run(tmp_path, f'out = "runs"\n{key} = 1\n'))
    assert (
        str(error) == f"{tmp_path / 'study.toml'} sets {key!r}, which is no option of this command"
    )
    assert error.remedy == f"Did you mean {nearest!r}?"


def test_a_key_like_none_is_answered_with_all(tmp_path: Path) -> None:
    error = refused(run(tmp_path, 'out = "runs"\nxyzzy = 1\n'))
    assert error.remedy == "Known are: out, init, eval-every, lambda, lr, diagnose."


def test_a_file_cannot_name_another_file(tmp_path: Path) -> None:
    assert "no option" in str(refused(run(tmp_path, 'config = "other.toml"\n')))


@pytest.mark.parametrize(
    "line",
    [
        "eval-every = 0",
        "eval-every = 1.5",
        "eval-every = true",
        'lr = "fast"',
        'init = "best"',
        "diagnose = 3",
    ],
)
def test_values_are_checked_like_options(line: str, tmp_path: Path) -> None:
    result = run(tmp_path, f'out = "runs"\n{line}\n')
    assert result.exit_code == 2
    assert f"Invalid value for '--{line.split()[0]}'" in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = [0.1, 0.2]", "gives 'lr' a list, but the option takes one value"),
        ("[lr]\nvalue = 1", "gives 'lr' a table, expected a string, a number"),
        ("init = [['random']]", "gives 'init' a list in a list"),
        ("lr = 2026-11-21", "gives 'lr' a date"),
        ("lr = ", "is not TOML: Invalid value"),
    ],
)
def test_what_no_option_takes_is_refused(text: str, message: str, tmp_path: Path) -> None:
    assert message in str(refused(run(tmp_path, text)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--config", str(tmp_path / "no.toml")])
    assert str(refused(result)).endswith("no.toml: No such file or directory")


def test_a_required_option_may_be_in_neither(tmp_path: Path) -> None:
    result = run(tmp_path, "lr = 0.1\n")
    assert result.exit_code == 2
    assert "Missing option" in result.output
