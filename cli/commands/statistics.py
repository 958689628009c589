"""`clinit statistics`: caches summed to one file, which stands for their rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.frame.console import say
from clinit.cli.frame.interruption import keeps
from clinit.cli.frame.options import Split, described
from clinit.cli.frame.progress import counting
from clinit.cli.frame.run_data import check_caches
from clinit.extract.cache.plan import WHOLE, Part
from clinit.files.paths import check_writable
from clinit.headtrain.study.parts import Weighting
from clinit.words import number_of


@keeps("Parts that are summed are kept; the same command sums what is missing.")
def statistics(
    caches: Annotated[
        list[Path],
        typer.Argument(help="Feature caches of one backbone, summed together.", metavar="CACHE..."),
    ],
    out: Annotated[Path, described("File to write, .safetensors.", "FILE")],
    weighting: Annotated[
        Weighting,
        described(
            "Averages over classes, of the average of each, as all but slda read them; or over all"
            " rows."
        ),
    ] = "class",
    split: Annotated[Split | None, described("Which rows.", default="train, or else val")] = None,
    part: Annotated[
        str | None,
        described(
            "Sum one of n parts of the shards. Give each process its own; whichever is last writes"
            " FILE.",
            "I/N",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        described(
            "Sum on the Ray cluster at this address, a part for each processor. Caches and FILE are"
            " on shared storage.",
            "ADDRESS",
        ),
    ] = None,
) -> None:
    """Sum caches to counts, means and one second moment: all that linear heads need of rows.

    C d + d^2 numbers for C classes and d features, whatever the number of images,
    in one pass with a shard in memory at a time. FILE stands for the rows in
    `clinit train-head --base`, `clinit diagnose` and `clinit add --old`.

    clinit statistics caches/base --out base-statistics.safetensors
    """
    if out.suffix != ".safetensors":
        raise typer.BadParameter(f"--out is the file to write, .safetensors, got {out}")
    if part is not None and ray is not None:
        raise typer.BadParameter("--part and --ray exclude each other: give one")
    chosen = WHOLE if part is None else Part.parse(part)
    check_caches(*caches)
    check_writable(out)
    from clinit.headtrain.statistics.summed import part_file, sum_caches, sum_on_ray

    given = caches, out, weighting, split and split.value
    with counting("rows" if ray is None else "parts") as count:
        progress = partial(count, "Summing")
        found = sum_on_ray(ray, *given, progress) if ray else sum_caches(*given, chosen, progress)
    if found is None:
        say(f"Part {chosen} at {part_file(out, chosen)}; the last part writes {out}")
        return
    sums = found.statistics
    say(
        f"{number_of(int(sums.totals.sum()), 'row')} of"
        f" {number_of(int((sums.totals > 0).sum()), 'class')}, width {sums.dim}, weighting"
        f" {sums.weighting}: C d + d^2 = {(sums.num_classes + sums.dim) * sums.dim:,} numbers"
    )
    say(f"Statistics at {out}")
