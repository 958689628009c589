"""`clinit remove`: classes that a model is to forget."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clinit.cli.choices import Overwrite
from clinit.cli.claim import claimed_file
from clinit.cli.console import note, say
from clinit.cli.interruption import keeps
from clinit.cli.model_source import ModelArgument, ModelOut, check_out
from clinit.cli.progress import doing
from clinit.cli.run_data import check_model
from clinit.words import number_of


@keeps("No half of a model is left: it is written whole or not at all.")
def remove(
    model: ModelArgument,
    classes: Annotated[
        list[str],
        typer.Argument(help="Names of classes.", metavar="CLASS...", show_default=False),
    ],
    out: ModelOut,
    overwrite: Overwrite = False,
) -> None:
    """Remove classes from a model: their rows, and what it remembers of them.

    The rows of all other classes stay as they are, in their order. MODEL is not
    changed.

    clinit remove scenes/ campsite iceberg --out fewer-scenes/
    """
    check_model(model)
    check_out(out, overwrite=overwrite)
    from clinit.headtrain.deployed.edit import Classes, check_apart, removed, write_classes
    from clinit.headtrain.deployed.model import open_model

    with claimed_file(out), doing("Putting backbone and head together …"):
        opened = open_model(model, device="cpu")
        check_apart(out, model)
        data = {"command": ["clinit", *sys.argv[1:]], "model": opened.origin}
        left = removed(Classes.of(opened), classes, data=data)
        facts = write_classes(opened, left, out, overwrite=overwrite)
    say(
        f"{len(set(classes)):,} removed: {facts.backbone} knows"
        f" {number_of(facts.num_classes, 'class')} now"
    )
    if left.memory is not None and not left.memory.exact:
        note(
            "the covariance that all classes share is still that of the removed ones too:"
            " `clinit remember` computes it anew from images"
        )
    say(f"Model at {out}")
