"""`clinit diagnose`: neural collapse and least-square deviation of a head on a cache."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from clinit.cli.frame.console import note, out, say
from clinit.cli.frame.options import AsJson, CacheOrFile, DeviceOption, Split, described
from clinit.cli.frame.progress import doing
from clinit.cli.frame.results import print_content
from clinit.cli.frame.run_data import check_caches
from clinit.files.paths import is_file
from clinit.words import number_of

STORED = "pretrained"
"""Value of --head for the head in the cache."""


def diagnose(
    cache: CacheOrFile,
    split: Annotated[Split | None, described("Split to use.", default="train, or else val")] = None,
    head: Annotated[
        str, described("A head file; `pretrained` is the head stored in the cache.")
    ] = STORED,
    lam: Annotated[
        float, typer.Option("--lambda", min=0, help="Ridge of the least-squares head W_LS.")
    ] = 0.05,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how far features and head have collapsed, and how far the head is from W_LS.

    Measures are NC1 to NC4 and D_LS, over the classes of both the cache and the
    head, with equal weights. Each is printed with its meaning and its least
    possible value.
    """
    if not math.isfinite(lam):
        raise typer.BadParameter(f"--lambda must be a finite number, got {lam}")
    if is_file(cache) and split:
        raise typer.BadParameter(f"{cache} contains statistics, which have no --split")
    check_caches(head=None if head == STORED else Path(head), or_files=[cache])
    from clinit.analysis.metrics.diagnosis import diagnose_split, diagnose_summed
    from clinit.analysis.report.tables import head_table
    from clinit.errors import HeadError
    from clinit.extract.cache.head import read_head
    from clinit.extract.cache.read import CacheSplit, open_cache
    from clinit.headtrain.protocol.stream.summed import Summed, read_summed
    from clinit.machine import choose_device

    name, stored = "", None
    rows: CacheSplit | Summed
    if is_file(cache):
        rows = read_summed(cache)
    else:
        opened = open_cache(cache)
        name = split.value if split else next(iter(opened.splits))
        rows, stored = opened.split(name), opened.head
    chosen = stored if head == STORED else read_head(Path(head), on_note=note)
    if chosen is None:
        raise HeadError(
            f"{cache} contains no pretrained head", remedy="Give a head file with `--head FILE`."
        )
    with doing(f"Reading {cache} …"):
        if isinstance(rows, CacheSplit):
            place = choose_device(device)
            found = diagnose_split(rows, chosen, lam=lam, device=place)
        else:
            found = diagnose_summed(rows, chosen, lam=lam)
    if as_json:
        facts = {"cache": str(cache), "split": name or None, "head": head}
        print_content(facts | found.content())
        return
    collapse = found.collapse
    say(f"{cache}, {f'split {name}' if name else 'statistics'}, head {head}")
    say(
        f"{number_of(found.rows, 'row')} of {collapse.classes:,} classes, width {collapse.dim},"
        f" class means of rank {collapse.rank} (cut {collapse.cut:.0e}), lambda {lam:g}; computed"
        f" with {found.library}"
    )
    out.print(head_table(found))
    if others := len(rows.class_names) - collapse.classes:
        note(
            f"left out: {number_of(others, 'class')} of the cache without a row in the head, or"
            " without features"
        )
    if lost := min(collapse.dim, collapse.classes - 1) - collapse.rank:
        note(
            f"along {lost} of the directions, class means vary by no more than the rounding of the"
            " features; NC1 leaves them out"
        )
