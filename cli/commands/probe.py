"""`clinit probe`: train and measure a linear probe of a backbone, from cached features."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.frame.claim import claimed_head
from clinit.cli.frame.console import note, out, say
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.options import AsJson, CacheArgument, Overwrite
from clinit.cli.frame.progress import counting, doing
from clinit.cli.frame.results import print_content
from clinit.cli.frame.run_data import check_caches
from clinit.cli.frame.study_options import takes
from clinit.headtrain.probe.settings import ProbeConfig

_STAGES = {"grid": "Trying settings", "refit": "Training on all rows"}


@keeps("No partial file is left: the file is written completely or not at all.")
@takes("config", ProbeConfig)
def probe(
    cache: CacheArgument,
    config: ProbeConfig,
    head: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Head file to write, .safetensors, for commands with --head.",
            metavar="FILE",
            show_default="no file",
        ),
    ] = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
) -> None:
    """Measure how well a linear head separates the classes of a cache: the linear probe.

    Tries a grid of settings on a held-out part of the training rows, trains a head
    with the best setting on all training rows, and measures it once on the
    validation rows. The protocol is printed with the accuracy.
    """
    if head is not None and head.suffix != ".safetensors":
        raise typer.BadParameter(f"--out must be a file that ends in .safetensors, got {head}")
    if overwrite and head is None:
        raise typer.BadParameter("--overwrite has no effect without --out")
    check_caches(cache)
    from clinit.analysis.report.probe_table import accuracy_lines, grid_table, grid_title
    from clinit.extract.cache.head import write_head
    from clinit.headtrain.probe.protocol import probe as probe_source
    from clinit.headtrain.protocol.stream.source import read_source

    with claimed_head(head, overwrite=overwrite) if head is not None else nullcontext():
        with doing("Reading the feature cache …"):
            source = read_source(cache)
        with counting("epochs" if config.by == "adamw" else "searches") as count:
            found = probe_source(
                source,
                config,
                progress=lambda stage, done, total: count(_STAGES[stage], done, total),
            )
        if head is not None:
            write_head(found.head, head)
    if as_json:
        print_content(found.content())
        return
    say(f"{cache}: {found.protocol}")
    for text in found.notes:
        note(text)
    if found.grid:
        say(grid_title(found))
        out.print(grid_table(found))
    for line in accuracy_lines(found):
        say(line)
    if head is not None:
        say(f"Head at {head}")
