"""Commands that are called as a user types them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import ClinitError

NETWORK = ["--backbone=convnextv2_atto", "--input-size=32", "--device=cpu"]
NETWORK += ["--model-arg=depths=(1,1,1,1)", "--model-arg=dims=(4,8,8,12)"]
"""The options of the network of `tiny_weights`."""


def sides(run: Path) -> list[str]:
    """Return the options that name the caches of `tiny_run`."""
    return [f"--{side}={run.parent / 'caches' / side}" for side in ("base", "new")]


def parsed(command: str, words: Sequence[str]) -> Any:
    """Return the context of a command with these words; it is not run."""
    root: Any = typer.main.get_command(app)
    group = root.commands["head"] if command == "align" else root
    return group.commands[command].make_context(command, [*words], parent=root.context_class(root))


def call(*words: object) -> Result:
    """Call `clinit WORD…`."""
    return CliRunner().invoke(app, [str(word) for word in words])


def checked(result: Result) -> str:
    """Return what a command that has succeeded has printed."""
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def done(*words: object) -> str:
    """Call a command that succeeds; return what it prints."""
    return checked(call(*words))


def unframed(result: Result) -> str:
    """Return all that a command has printed and its error, on one line and without frames."""
    return " ".join(f"{result.output} {result.exception}".replace("│", " ").split())


def refused(result: Result) -> ClinitError:
    """Return the error that a command has ended in."""
    assert isinstance(result.exception, ClinitError), (result.output, result.exception)
    return result.exception
