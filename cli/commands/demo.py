"""`clinit demo`: run the whole pipeline on handwritten digits, with a small network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from clinit.cli.frame.console import out, say
from clinit.cli.frame.context import Context, Run, runner
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.progress import doing
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
    run("report", runs)


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


MODEL = "convnextv2_atto"
_MODEL_ARGS = {"depths": (1, 1, 2, 1), "dims": (16, 32, 64, 128)}
_INPUT_SIZE = 32
_EPOCHS = 12


def make_digits(folder: Path, run: Run) -> None:
    """Write images and weights into `folder`, and the caches `caches/base` and `caches/new`.

    Args:
        folder: An empty folder.
        run: Runs a command of clinit.
    """
    announce("Handwritten digits (scikit-learn) as PNG files, and a backbone trained on 0 to 3")
    weights = _make_inputs(folder)
    for name in ("base", "new"):
        announce(f"Penultimate features of the {name} classes")
        manifest = folder / f"{name}-train.parquet"
        root = folder / "digits" / name
        if name == "base":
            run(
                "manifest", "build", "folder", "--root", root, "--split", "train", "--out", manifest
            )
        arguments = [f"--model-arg={key}={value}" for key, value in _MODEL_ARGS.items()]
        run(
            *("extract", "--dataset", "folder", "--root", root),
            *("--out", folder / "caches" / name, "--backbone", MODEL, *arguments),
            *("--weights", weights, "--input-size", _INPUT_SIZE),
        )


def announce(text: str) -> None:
    """Print a heading."""
    say()
    out.print(Text(text, style="bold"), soft_wrap=True)


def _make_inputs(folder: Path) -> Path:
    from clinit.extract.dataset.scan import scan
    from clinit.extract.digits import pretrain, write_digits

    base, new = folder / "digits" / "base", folder / "digits" / "new"
    count = write_digits(base, range(4)) + write_digits(new, range(4, 10))
    say(f"{count:,} images at {folder / 'digits'}")
    weights = folder / "backbone.safetensors"
    with doing("Pretraining …") as status:
        pretrain(
            scan("folder", base, "train").manifest,
            base,
            weights,
            name=MODEL,
            model_args=_MODEL_ARGS,
            input_size=_INPUT_SIZE,
            epochs=_EPOCHS,
            on_epoch=lambda epoch: status.update(f"Pretraining, epoch {epoch} of {_EPOCHS} …"),
        )
    say(f"{MODEL}, {_EPOCHS} epochs on the digits 0 to 3, at {weights}")
    return weights
