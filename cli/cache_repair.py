"""`clinit cache repair`: write again what is damaged in a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.choices import CacheArgument
from clinit.cli.console import note, say
from clinit.cli.interruption import keeps
from clinit.cli.network_options import Workers
from clinit.cli.progress import counting, doing
from clinit.extract.number_of import number_of
from clinit.headtrain.study import Device


@keeps("What is mended is kept: the same command goes on after it.")
def repair(
    cache: CacheArgument,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the images.", metavar="FOLDER", show_default="where they were"
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="File of the weights.", metavar="FILE", show_default="where they were"),
    ] = None,
    device: Annotated[
        Device | None,
        typer.Option(
            help="Device to compute on, of the kind that computed the features.",
            show_default="that kind",
        ),
    ] = None,
    workers: Workers = None,
) -> None:
    """Write again what fails verification: from the images, imported files or merged caches.

    The cache records where they were. What is whole stays as it is; where
    something cannot be computed again, the error says which command writes it.
    A row that had features keeps them: an image that is gone is asked for.
    """
    from clinit.extract.repair.parts import DamagedCache, RepairConfig

    with doing("Verifying …"):
        found = DamagedCache.of(cache)
    if not found.problems:
        say("Everything is as it was written: nothing to repair.")
        return
    for problem in found.problems:
        say(f"  {problem}")
    from clinit.extract.repair.repair import repair as run  # loads PyTorch

    config = RepairConfig(root=root, weights=weights, device=device, workers=workers)
    is_same = True
    with counting() as show:
        for mended in run(found, config, on_rows=show, on_note=note):
            computed = "" if mended.rows is None else f", {number_of(mended.rows, 'row')} computed"
            say(f"{mended.title}: mended{computed}")
            for difference in mended.differences:
                say(f"  {difference}")
            is_same = is_same and not mended.differences
    if is_same:
        say("Everything is as it was written.")
    else:
        say("Everything is whole; what is not as it was written is said above.")
