"""`clinit demo`: run the whole pipeline on handwritten digits, with a small network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.frame.context import Context, runner
from clinit.cli.frame.demo_inputs import announce, make_digits
from clinit.cli.frame.process import keeps
from clinit.errors import ClinitError
from clinit.files.paths import check_writable, exists

_MARKER = ".clinit-demo"


@keeps("The next demo starts from the beginning.")
def demo(
    context: Context,
    folder: Annotated[
        Path,
        typer.Option("--out", help="Folder for everything that the demo writes.", metavar="FOLDER"),
    ] = Path("clinit-demo"),
) -> None:
    """Run the whole pipeline on handwritten digits, offline, in about a minute.

    First, a small ConvNeXtV2 is trained on the digits 0 to 3. It is then frozen,
    and the digits 4 to 9 arrive in three tasks of two, with three ways to make
    the rows of the new classes. Every command is printed as you would type it.
    """
    run = runner(context)
    _prepare(folder)
    make_digits(folder, run)
    announce("Six new classes in three tasks: random, class-mean and least-square rows")
    runs = folder / "runs"
    run(
        *("train-head", "--base", folder / "caches" / "base", "--new", folder / "caches" / "new"),
        *("--out", runs, "--tasks", 3, "--iterations", 100, "--eval-every", 10),
        *("--batch-size", 64, "--buffer", 200),
        *("--init", "random", "--init", "class-mean", "--init", "least-square"),
    )
    announce("The same results again, from the records alone, with curves")
    run("report", runs, "--curves")


def _prepare(folder: Path) -> None:
    """Make an empty folder: clear the folder of an earlier demo, refuse any other content."""
    check_writable(folder)
    if exists(folder) and any(folder.iterdir()):
        if not exists(folder / _MARKER):
            raise ClinitError(
                f"{folder} is not empty and was not written by an earlier demo",
                remedy="Choose another folder with `clinit demo --out`.",
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()
