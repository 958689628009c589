"""`clinit cache import`: make a cache of features that were computed elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.choices import Split
from clinit.cli.console import note, say, warn
from clinit.cli.interruption import keeps
from clinit.cli.progress import counting


def _name_of_an_extractor(name: str) -> str:
    if name in ("", "imported"):
        raise typer.BadParameter("say what computed the features, such as clip-vit-b-32")
    return name


@keeps("Written shards are kept: the same command goes on after them.")
def import_(
    features: Annotated[
        Path,
        typer.Argument(
            help="Features (rows, dim): .npy, .npz, .safetensors, .parquet, or .pt that holds"
            " tensors only.",
            show_default=False,
        ),
    ],
    labels: Annotated[
        Path | None,
        typer.Argument(
            help="Labels, integers from 0 or text, in a file of their own.",
            show_default="in the file of the features",
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder of the cache.", show_default=False)],
    backbone: Annotated[
        str,
        typer.Option(
            help="Name of what computed the features, such as clip-vit-b-32. Caches of the same"
            " name can be used together, so name the weights too.",
            show_default=False,
            callback=_name_of_an_extractor,
        ),
    ],
    split: Annotated[Split, typer.Option(help="Split that the rows belong to.")] = Split.train,
    classes: Annotated[
        Path | None,
        typer.Option(
            help="Class names, one per line.",
            show_default="those in the file, or the labels themselves",
        ),
    ] = None,
    features_name: Annotated[
        str | None,
        typer.Option(
            help="Which array, tensor or column holds the features.", show_default="features"
        ),
    ] = None,
    labels_name: Annotated[
        str | None,
        typer.Option(help="Which one holds the labels.", show_default="labels, label"),
    ] = None,
    head: Annotated[
        Path | None, typer.Option(help="Head file (.safetensors) to store as the pretrained one.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Name of the data set.")] = "imported",
) -> None:
    """Make a cache of features that were computed elsewhere: CLIP, DINO, audio, text.

    Run it once per split, with the same --backbone and --classes; an import that
    was killed goes on. Then `clinit train-head` and `clinit diagnose` work as
    with features of `clinit extract`.
    """
    from clinit.extract.import_features import ImportConfig, import_features

    config = ImportConfig(
        split=split.value,
        dataset=dataset,
        backbone=backbone,
        classes=classes,
        head=head,
        features_name=features_name,
        labels_name=labels_name,
    )
    with counting("rows") as count:
        written = import_features(
            features,
            labels,
            out,
            config,
            on_note=note,
            on_rows=lambda done, total: count("Writing", done, total),
        )
    say(
        f"{written.num_rows:,} rows of {len(set(written.labels.tolist())):,} classes,"
        f" {written.dim} x {written.dtype}, at {written.path}"
    )
    if written.num_valid < written.num_rows:
        warn(f"{written.num_rows - written.num_valid:,} rows are not finite: marked invalid")
    top1 = written.summary.head.top1.percent
    if top1 is not None:
        say(f"top-1 of the head on these features: {top1:.2f} %")
