"""`clinit statistics`: sum caches into one file, which linear heads can use instead of rows."""

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
from clinit.headtrain.heads.start.settings import Weighting
from clinit.words import number_of


@keeps("Finished parts are kept: run the same command again to sum the rest.")
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
    part: Annotated[
        str | None,
        described(
            "Sum only part i of n of the shards. Give each process another part; the last"
            " process writes FILE.",
            "I/N",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        described(
            "Sum on the Ray cluster at this address, a part for each processor. Caches and FILE"
            " must be on shared storage.",
            "ADDRESS",
        ),
    ] = None,
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
    if part is not None and ray is not None:
        raise typer.BadParameter("--part and --ray exclude each other: give one")
    chosen = WHOLE if part is None else Part.parse(part)
    check_caches(*caches)
    check_writable(out)
    from clinit.headtrain.protocol.stream.summed import part_file, sum_caches, sum_on_ray

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
