"""`clinit extract`: images to a feature cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from clinit.cli.completion import datasets
from clinit.cli.config import ConfigOption
from clinit.cli.console import note, warn
from clinit.cli.context import Context, command_line, overridden
from clinit.cli.extract_output import print_results, progress_bars
from clinit.cli.interruption import keeps
from clinit.cli.network_options import COMPUTATION, NETWORK, fills, option
from clinit.cli.options import READ_AS_VAL, Autocast, Dtype, ReadSplit
from clinit.cli.progress import doing
from clinit.extract.work.options import ExtractOptions
from clinit.files.paths import check_writable

_OPTIONS: Mapping[str, Any] = {
    "root": option(Path, "Folder of the images.", "Data", metavar="FOLDER", show_default=False),
    "out": option(
        Path, "Folder of the feature cache.", "Output", metavar="FOLDER", show_default=False
    ),
    "dataset": option(
        str | None,
        "imagenet1k, places365, digits; or `folder` for any tree of class folders, `webdataset` for"
        " tar shards, `huggingface` for Parquet files.",
        "Data",
        show_default=False,
        autocompletion=datasets,
    ),
    "manifest": option(
        Path | None,
        "Manifest of `clinit manifest build`, instead of --dataset.",
        "Data",
        metavar="FILE",
        show_default=False,
    ),
    "split": option(
        ReadSplit | None,
        "Extract only this split." + READ_AS_VAL,
        "Data",
        show_default="train and val, as far as they are there",
    ),
    **NETWORK,
    **COMPUTATION,
    "dtype": option(Dtype, "How features are stored.", "Output"),
    "autocast": option(Autocast, "Lower precision of the forward pass.", "Network"),
    "limit_per_class": option(
        int | None,
        "Most images per class; the first ones are taken.",
        "Data",
        min=1,
        show_default="all",
    ),
    "shard_rows": option(
        int, "Rows per shard: what a killed run loses at most.", "Output", min=1, max=10**9
    ),
    "views": option(
        int,
        "Random crops of every training image, mirrored half of the time, stored next to the plain"
        " features for `clinit align`; those that are there are kept.",
        "Views",
        min=0,
        max=1000,
    ),
    "view_seed": option(int, "Seed of the views.", "Views", min=0, max=2**32 - 1),
    "retry_invalid": option(
        bool,
        "Read the images of invalid rows again, once they can be read; their shards are computed"
        " anew.",
        "Data",
        "--retry-invalid",
    ),
    "strict": option(
        bool,
        "Stop at an unreadable image and at counts that differ from the description.",
        "Data",
        "--strict",
    ),
    "part": option(
        str | None,
        "Compute one of n parts of the shards. Give each process its own; whichever is last"
        " completes the cache.",
        "Computation",
        metavar="I/N",
        show_default=False,
    ),
    "ray": option(
        str | None,
        "Compute on the Ray cluster at this address: one part per GPU, else one per node"
        " (--workers: processors of each). Images and cache are on shared storage.",
        "Computation",
        metavar="ADDRESS",
        show_default=False,
    ),
}


@keeps("Finished shards are kept: the same command goes on after them.")
@fills("options", ExtractOptions, _OPTIONS)
def extract(context: Context, options: ExtractOptions, config_file: ConfigOption = None) -> None:
    """Run a frozen backbone once over a data set and store its penultimate features.

    An interrupted run resumes when the same command is given again. Processes
    on any hosts that share the folder divide the work by --part 1/4 to 4/4. An
    unreadable image keeps its row, marked invalid, and is listed at the end. If
    the machine fails (memory, rights, storage) the run stops, and no row is
    marked for it.

    clinit extract --dataset imagenet1k --root /data/imagenet --out caches/imagenet1k
    """
    for name, rival in (("dataset", "manifest"), ("manifest", "dataset")):
        if overridden(context, name, rival):
            options = replace(options, **{name: None})
    if (options.dataset is None) == (options.manifest is None):
        raise typer.BadParameter("give either --dataset or --manifest")
    if options.part is not None and options.ray is not None:
        raise typer.BadParameter("--part and --ray exclude each other: give one")
    options.check()
    check_writable(options.out)
    manifests = options.manifests(doing=doing, warn=warn, note=note)
    with progress_bars() as on_progress:
        results = options.run(manifests, command=command_line(), on_progress=on_progress)
        print_results(results, options.out)
