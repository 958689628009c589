"""`clinit cache group`: which training images show the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.console import say
from clinit.cli.interruption import keeps
from clinit.cli.options import CacheArgument
from clinit.words import number_of


@keeps("No half of a file is left: it is written whole or not at all.")
def group(
    cache: CacheArgument,
    table: Annotated[
        Path,
        typer.Argument(
            help="CSV or Parquet file with a row per image: `path`, as in the manifest, and the"
            " column of the groups. Without `path`: a row per imported feature, in their order.",
            show_default=False,
        ),
    ],
    column: Annotated[
        str,
        typer.Option(
            help="Column whose equal values belong together: video, patient, burst.",
            show_default=False,
        ),
    ],
) -> None:
    """Record which training images of a class belong together.

    Images of one group count as one where new head rows start, and are left out
    together. Groups that are recorded take the place of those that are found in
    the features: copies, crops and frames that stand by themselves.

    clinit cache group caches/scenes frames.csv --column video
    """
    from clinit.extract.arrays.groups import write_groups
    from clinit.extract.cache.read import open_cache

    split = open_cache(cache).split("train")
    repeating, groups = write_groups(split.path, split.manifest, table, column)
    rows = number_of(split.num_rows, "image")
    say(f"Of {rows}, {repeating:,} repeat others: {number_of(groups, 'group')} by {column}")
