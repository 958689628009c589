"""`clinit demo`: the whole pipeline on embedded data, offline."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.context import Context
from clinit.cli.digits import announce, make_digits
from clinit.cli.interruption import keeps
from clinit.cli.typed import runner
from clinit.errors import ClinitError
from clinit.files.paths import check_writable

_MARKER = ".clinit-demo"


@keeps("The demo starts anew when it is run again.")
def demo(
    context: Context,
    folder: Annotated[
        Path,
        typer.Option("--out", help="Folder for everything that the demo writes.", metavar="FOLDER"),
    ] = Path("clinit-demo"),
) -> None:
    """Run the whole pipeline on handwritten digits, offline, in about a minute.

    A small ConvNeXtV2 learns the digits 0 to 3 on the spot. It is then frozen,
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
    run("report", runs)


def _prepare(folder: Path) -> None:
    """Make an empty folder; one that an earlier demo wrote is cleared, any other is refused."""
    check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARKER).exists():
            raise ClinitError(
                f"{folder} is not empty and was not written by an earlier demo",
                remedy="Choose another folder with `clinit demo --out`.",
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()
