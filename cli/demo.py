"""`clinit demo`: the whole pipeline on embedded data, offline."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from clinit.cli.console import err, out, say
from clinit.cli.context import Context
from clinit.cli.interruption import keeps
from clinit.errors import ClinitError
from clinit.extract.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MODEL = "convnextv2_atto"
_MODEL_ARGS = {"depths": (1, 1, 2, 1), "dims": (16, 32, 64, 128)}
_INPUT_SIZE = 32
_EPOCHS = 12
_MARKER = ".clinit-demo"


@keeps("The demo starts anew when it is run again.")
def demo(
    context: Context,
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for everything that the demo writes.")
    ] = Path("clinit-demo"),
) -> None:
    """Run the whole pipeline on handwritten digits, offline, in about a minute.

    A small ConvNeXtV2 learns the digits 0 to 3 on the spot. It is then frozen,
    and the digits 4 to 9 arrive in three tasks of two, with three ways to make
    the rows of the new classes. Every command is printed as you would type it.
    """
    from clinit.analysis.report import load_report

    run = _runner(context)
    _prepare(folder)
    _announce("Handwritten digits (scikit-learn) as PNG files, and a backbone that knows 0 to 3")
    weights = _make_inputs(folder)
    for name in ("base", "new"):
        _announce(f"Penultimate features of the {name} classes")
        manifest = folder / f"{name}-train.parquet"
        root = folder / "digits" / name
        if name == "base":
            run(
                "manifest", "build", "folder", "--root", root, "--split", "train", "--out", manifest
            )
        arguments = [f"--model-arg={key}={value}" for key, value in _MODEL_ARGS.items()]
        run(
            *("extract", "--dataset", "folder", "--root", root),
            *("--out", folder / "caches" / name, "--backbone", _MODEL, *arguments),
            *("--weights", weights, "--input-size", _INPUT_SIZE),
        )
    _announce("Six new classes in three tasks: random, class-mean and least-square rows")
    runs = folder / "runs"
    run(
        *("train-head", "--base", folder / "caches" / "base", "--new", folder / "caches" / "new"),
        *("--out", runs, "--tasks", 3, "--iterations", 100, "--eval-every", 10),
        *("--batch-size", 64, "--buffer", 200),
        *("--init", "random", "--init", "class-mean", "--init", "least-square"),
    )
    _announce("The same results again, from the records alone, with curves")
    run("report", runs)
    say()
    for line in _conclusion(load_report([runs]).rows()):
        say(line)


def _prepare(folder: Path) -> None:
    """Make an empty folder; one that an earlier demo wrote is cleared, any other is refused."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARKER).exists():
            raise ClinitError(
                f"{folder} is not empty and was not written by an earlier demo",
                remedy="Choose another folder with `clinit demo --out`.",
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()


def _make_inputs(folder: Path) -> Path:
    from clinit.extract.digits import write_digits
    from clinit.extract.pretrain import pretrain
    from clinit.extract.scan import scan

    base, new = folder / "digits" / "base", folder / "digits" / "new"
    count = write_digits(base, range(4)) + write_digits(new, range(4, 10))
    say(f"{count:,} images at {folder / 'digits'}")
    weights = folder / "backbone.safetensors"
    with err.status("Pretraining …") as status:
        pretrain(
            scan("folder", base, "train").manifest,
            base,
            weights,
            name=_MODEL,
            model_args=_MODEL_ARGS,
            input_size=_INPUT_SIZE,
            epochs=_EPOCHS,
            on_epoch=lambda epoch: status.update(f"Pretraining, epoch {epoch} of {_EPOCHS} …"),
        )
    say(f"{_MODEL}, {_EPOCHS} epochs on the digits 0 to 3, at {weights}")
    return weights


def _announce(text: str) -> None:
    say()
    out.print(Text(text, style="bold"), soft_wrap=True)


def _runner(context: Context) -> Callable[..., None]:
    """Return a function that prints a command as a user would type it, then runs it."""
    clinit = context.find_root().command

    def run(*arguments: object) -> None:
        words = [str(argument) for argument in arguments]
        line = visible("$ " + shlex.join(["clinit", *words]))
        out.print(Text(line, style="green"), soft_wrap=True)
        typed, sys.argv = sys.argv, ["clinit", *words]  # what the records keep as their command
        try:
            clinit.main(words, standalone_mode=False)
        finally:
            sys.argv = typed

    return run


def _conclusion(rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    random, least_square = (
        next(row for row in rows if row["init"] == name) for name in ("random", "least-square")
    )
    before, after = (row["tasks"][0]["acc_new_start"] for row in (random, least_square))
    return (
        f"When the first new digits arrived, random rows recognised {before:.0f} % of them before"
        f" any training, least-square rows {after:.0f} %.",
        f"Averaged over the three tasks, least-square rows had {least_square['acc_new']:.0f} % on"
        f" new digits (random {random['acc_new']:.0f} %) and {least_square['acc_all']:.0f} % on all"
        f" digits seen so far (random {random['acc_all']:.0f} %).",
    )
