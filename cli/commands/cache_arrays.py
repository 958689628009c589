"""`clinit cache import` and `export`: make a cache of features in files, and write files again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from clinit.cli.commands.extract import tell_headless
from clinit.cli.frame.console import note, say, warn
from clinit.cli.frame.context import command_line
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.options import CacheArgument, ReadSplit, Split, described
from clinit.cli.frame.progress import counting
from clinit.extract.work.options import READ_AS_VAL
from clinit.files.paths import check_writable
from clinit.words import number_of


def _name_of_an_extractor(name: str) -> str:
    if name in ("", "imported"):
        raise typer.BadParameter("give the name of the extractor, such as clip-vit-b-32")
    return name


@keeps("Written shards are kept: run the same command again to resume.")
def import_(
    features: Annotated[
        Path,
        typer.Argument(help="Features (rows, dim): .npy, .npz, .safetensors or .parquet."),
    ],
    labels: Annotated[
        Path | None,
        typer.Argument(
            help="File of the labels: integers from 0, or texts.",
            show_default="the file of the features",
        ),
    ] = None,
    *,
    out: Annotated[Path, described("Folder of the cache.", "FOLDER", default=False)],
    backbone: Annotated[
        str,
        described(
            "Name of the extractor and its weights, such as clip-vit-b-32. Only caches with the"
            " same name can be used together.",
            default=False,
            callback=_name_of_an_extractor,
        ),
    ],
    split: Annotated[
        ReadSplit, described("Split that the rows belong to." + READ_AS_VAL)
    ] = ReadSplit.train,
    classes: Annotated[
        Path | None,
        described(
            "Class names, one per line.", "FILE", "names in the file, or the labels themselves"
        ),
    ] = None,
    features_name: Annotated[
        str | None,
        described("Array, tensor or column of the features.", default="features"),
    ] = None,
    labels_name: Annotated[
        str | None, described("Array, tensor or column of the labels.", default="labels, label")
    ] = None,
    head: Annotated[
        Path | None,
        described(
            "Head file to store as the pretrained head: `weight`, `bias` and `class_names` in a"
            " .safetensors or .npz file.",
            "FILE",
            "none",
        ),
    ] = None,
    dataset: Annotated[str, described("Name of the data set.")] = "imported",
) -> None:
    """Make a cache of features that another program computed: CLIP, DINO, audio, text.

    Run the command once per split, with the same --backbone and --classes; run
    it again to resume a killed import. Base classes need a head: give --head
    FILE, or run `clinit head fit` afterwards. Then `clinit train-head` and
    `clinit diagnose` work as with features of `clinit extract`.
    """
    from clinit.extract.arrays.import_features import ImportConfig, import_features

    config = ImportConfig(
        split=split.stored,
        dataset=dataset,
        backbone=backbone,
        classes=classes,
        head=head,
        features_name=features_name,
        labels_name=labels_name,
        command=command_line(),
    )
    check_writable(out)
    with counting("rows") as count:
        written = import_features(
            features, labels, out, config, on_note=note, on_rows=partial(count, "Writing")
        )
    say(
        f"{written.num_rows:,} rows of {len(set(written.labels.tolist())):,} classes,"
        f" {written.dim} x {written.dtype}, at {written.path}"
    )
    if written.num_valid < written.num_rows:
        warn(
            f"{written.num_rows - written.num_valid:,} rows were marked invalid, because they are"
            " not finite or beyond the range of float32"
        )
    top1 = written.summary.head.top1.percent
    if top1 is not None:
        say(f"top-1 of the head on these features: {top1:.2f} %")
    elif split is ReadSplit.train:
        tell_headless(out)


@keeps("Finished splits are kept; an unfinished file is removed.")
def export(
    cache: CacheArgument,
    out: Annotated[
        Path,
        typer.Argument(
            help="A .safetensors file for one split, or a folder for all splits.",
        ),
    ],
    format: Annotated[
        Literal["npy", "safetensors"] | None,
        described("Format of the files.", default="the suffix; npy for a folder"),
    ] = None,
    split: Annotated[Split | None, described("Export only this split.", default="all")] = None,
) -> None:
    """Write features, labels and class names as NumPy or safetensors files.

    Only one shard is in memory at a time. `clinit cache import` reads both
    formats back, bit for bit.

    clinit cache export caches/scenes scenes.safetensors --split train
    """
    from clinit.extract.arrays.export_features import export_features
    from clinit.extract.cache.read import open_cache

    check_writable(out, "OUT")
    opened = open_cache(cache)
    splits = [opened.split(split.value)] if split else list(opened.splits.values())
    with counting() as show:
        for written in export_features(splits, out, format, on_rows=show):
            plan = written.split.plan
            say(
                f"{plan.title}: {number_of(written.num_rows, 'row')} of {written.split.dim}"
                f" {written.split.dtype} at {written.path}"
            )
            if written.num_left_out:
                note(
                    f"{written.num_left_out:,} of {plan.num_rows:,} rows have no features and are"
                    " left out; the array `rows` lists the exported rows"
                )
