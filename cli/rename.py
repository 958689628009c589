"""`clinit rename`: other names for classes of a model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clinit.cli.choices import Overwrite
from clinit.cli.claim import claimed_file
from clinit.cli.console import say
from clinit.cli.interruption import keeps
from clinit.cli.model_source import ModelArgument, ModelOut, check_out
from clinit.cli.progress import doing
from clinit.cli.run_data import check_model


@keeps("No half of a model is left: it is written whole or not at all.")
def rename(
    model: ModelArgument,
    names: Annotated[
        list[str],
        typer.Argument(
            help="Pairs of names, the one that the model has first.",
            metavar="OLD=NEW...",
            show_default=False,
        ),
    ],
    out: ModelOut,
    overwrite: Overwrite = False,
) -> None:
    """Give classes of a model other names.

    Rows and what it remembers stay as they are. MODEL is not changed.

    clinit rename scenes/ n02979186="cassette player" --out named-scenes/
    """
    pairs = _pairs(names)
    check_model(model)
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.deployed.edit import Classes, check_apart, renamed, write_classes
    from clinit.headtrain.deployed.model import open_model

    with claimed_file(out), doing("Putting backbone and head together …"):
        opened = open_model(model, device="cpu")
        check_apart(out, model)
        data = {"command": ["clinit", *sys.argv[1:]], "model": opened.origin}
        classes = renamed(Classes.of(opened), pairs, data=data)
        write_classes(opened, classes, out, overwrite=overwrite)
    say(f"{len(pairs):,} renamed. Model at {out}")


def _pairs(names: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in names:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise typer.BadParameter(f"expected OLD=NEW, got {text!r}")
        if old in pairs:
            raise typer.BadParameter(f"{old!r} is renamed twice")
        pairs[old] = new
    return pairs
