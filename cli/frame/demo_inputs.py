"""Handwritten digits as images, and their feature caches, for commands that need no data."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from clinit.cli.frame.console import out, say
from clinit.cli.frame.context import Run
from clinit.cli.frame.progress import doing


def make_digits(folder: Path, run: Run) -> None:
    """Write images and weights into `folder`, and the caches `caches/base` and `caches/new`.

    Args:
        folder: An empty folder.
        run: Runs a command of clinit.
    """
    from clinit.extract.dataset.scan import scan
    from clinit.extract.digits import EPOCHS, MODEL, MODEL_ARGS, SIDE, pretrain, write_digits

    announce("Handwritten digits (scikit-learn) as PNG files, and a backbone trained on 0 to 3")
    base, new = folder / "digits" / "base", folder / "digits" / "new"
    count = write_digits(base, range(4)) + write_digits(new, range(4, 10))
    say(f"{count:,} images at {folder / 'digits'}")
    weights = folder / "backbone.safetensors"
    with doing("Pretraining …"):
        pretrain(scan("folder", base, "train").manifest, base, weights)
    say(f"{MODEL}, {EPOCHS} epochs on the digits 0 to 3, at {weights}")
    for name in ("base", "new"):
        announce(f"Penultimate features of the {name} classes")
        root = folder / "digits" / name
        if name == "base":
            where = "--root", root, "--split", "train", "--out", folder / "base-train.parquet"
            run("manifest", "build", "folder", *where)
        arguments = [f"--model-arg={key}={value}" for key, value in MODEL_ARGS.items()]
        run(
            *("extract", "--dataset", "folder", "--root", root),
            *("--out", folder / "caches" / name, "--backbone", MODEL, *arguments),
            *("--weights", weights, "--input-size", SIDE),
        )


def announce(text: str) -> None:
    """Print a heading."""
    say()
    out.print(Text(text, style="bold"), soft_wrap=True)
