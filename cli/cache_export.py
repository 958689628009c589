"""`clinit cache export`: features of a cache as files that others read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.console import note, say
from clinit.cli.interruption import keeps
from clinit.cli.options import CacheArgument, Split
from clinit.cli.progress import counting
from clinit.words import number_of


class Format(StrEnum):
    """How features are written."""

    npy = "npy"
    safetensors = "safetensors"
    parquet = "parquet"


@keeps("Splits that are written are kept; an unfinished file is removed.")
def export(
    cache: CacheArgument,
    out: Annotated[
        Path,
        typer.Argument(
            help="A file of one split (.safetensors, .parquet), or a folder for all splits.",
            show_default=False,
        ),
    ],
    format: Annotated[
        Format | None,
        typer.Option(help="How to write.", show_default="by the suffix; npy for a folder"),
    ] = None,
    split: Annotated[
        Split | None, typer.Option(help="Export only this split.", show_default="all there are")
    ] = None,
    keep_invalid: Annotated[
        bool,
        typer.Option(
            "--keep-invalid", help="Keep rows without features, as NaN; they are left out else."
        ),
    ] = False,
) -> None:
    """Write features, labels and class names as NumPy, safetensors or Parquet files.

    One shard is in memory at a time, whatever the size of the cache.
    `clinit cache import` reads each of the formats, and gets the same bits.

    clinit cache export caches/scenes scenes.parquet --split train
    """
    from clinit.extract.arrays.export_features import export_features
    from clinit.extract.cache.read import open_cache

    opened = open_cache(cache)
    splits = [opened.split(split.value)] if split else list(opened.splits.values())
    with counting() as show:
        for written in export_features(
            splits,
            out,
            format.value if format else None,
            keep_invalid=keep_invalid,
            on_rows=show,
        ):
            plan = written.split.plan
            say(
                f"{plan.title}: {number_of(written.num_rows, 'row')} of {written.split.dim}"
                f" {written.split.dtype} at {written.path}"
            )
            if written.num_left_out:
                note(
                    f"{written.num_left_out:,} of {plan.num_rows:,} rows have no features and are"
                    " left out: `rows` tells which are there"
                )
