"""`clinit cache merge`: several caches of one backbone become one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.console import note, say
from clinit.cli.interruption import keeps
from clinit.cli.progress import counting
from clinit.words import number_of


@keeps("Written shards are kept: the same command goes on after them.")
def merge(
    out: Annotated[Path, typer.Argument(help="Folder of the new cache.", show_default=False)],
    caches: Annotated[list[Path], typer.Argument(help="Two caches or more.", show_default=False)],
) -> None:
    """Merge caches of one backbone: other classes, other images, other splits.

    Classes are matched by name. Row i of the result is row i of its manifest,
    which `clinit extract --manifest` accepts. An image in two caches is refused.

    clinit cache merge caches/all caches/first-half caches/second-half
    """
    from clinit.extract.merge import merge as run

    with counting() as show:
        for split in run(caches, out, on_rows=show, on_note=note):
            classes = len(set(split.labels.tolist()))
            say(
                f"{split.plan.title}: {number_of(split.num_rows, 'row')} of {classes:,} classes,"
                f" {split.dim} x {split.dtype}, at {split.path}"
            )
            if split.num_valid < split.num_rows:
                say(f"  without features: {split.num_rows - split.num_valid:,}")
            if (percent := split.summary.head.top1.percent) is not None:
                say(f"  stored head: top-1 {percent:.2f} % of {split.summary.head.total:,} images")
