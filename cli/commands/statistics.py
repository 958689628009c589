"""`clinit statistics`: sum caches into one file, which linear heads can use instead of rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.frame.console import say
from clinit.cli.frame.options import Split, described
from clinit.cli.frame.progress import counting
from clinit.cli.frame.run_data import check_caches
from clinit.files.paths import check_writable
from clinit.headtrain.study.parts import Weighting
from clinit.words import number_of


def statistics(
    caches: Annotated[
        list[Path],
        typer.Argument(help="Feature caches of one backbone, summed together.", metavar="CACHE..."),
    ],
    out: Annotated[Path, described("File to write, .safetensors.", "FILE")],
    weighting: Annotated[
        Weighting,
        described(
            "Average with equal weights of all classes, which all methods but slda need, or of all"
            " rows (sample)."
        ),
    ] = "class",
    split: Annotated[Split | None, described("Split to sum.", default="train, or else val")] = None,
) -> None:
    """Sum caches to counts, means and one second moment: all that linear heads need of rows.

    For C classes and d features, FILE contains C d + d^2 numbers, whatever the
    number of images. They are summed in one pass, with one shard in memory at a
    time. FILE replaces the rows in `clinit train-head --base`, `clinit diagnose`
    and `clinit add --old`.

    clinit statistics caches/base --out base-statistics.safetensors
    """
    if out.suffix != ".safetensors":
        raise typer.BadParameter(f"--out must be a file that ends in .safetensors, got {out}")
    check_caches(*caches)
    check_writable(out)
    from clinit.headtrain.statistics.summed import sum_caches

    with counting("rows") as count:
        progress = partial(count, "Summing")
        found = sum_caches(caches, out, weighting, split and split.value, progress)
    sums = found.statistics
    say(
        f"{number_of(int(sums.totals.sum()), 'row')} of"
        f" {number_of(int((sums.totals > 0).sum()), 'class')}, width {sums.dim}, weighting"
        f" {sums.weighting}: C d + d^2 = {(sums.num_classes + sums.dim) * sums.dim:,} numbers"
    )
    say(f"Statistics at {out}")
