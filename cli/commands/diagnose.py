"""`clinit diagnose`: neural collapse and least-square deviation of heads on caches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame.console import note, out, say
from clinit.cli.frame.options import AsJson, DeviceOption, Split, described
from clinit.cli.frame.progress import doing
from clinit.cli.frame.results import print_content
from clinit.cli.frame.run_data import check_caches
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.extract.cache.head import Head

STORED = "pretrained"
"""Value of --head for the head in the cache."""


def diagnose(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Feature caches of one backbone, measured together; or run records, or folders of"
            " them, whose heads are measured on the caches that they read.",
            metavar="CACHE|RUN...",
        ),
    ],
    split: Annotated[Split | None, described("Split to use.", default="train, or else val")] = None,
    head: Annotated[
        list[str] | None,
        described(
            "A head file; `pretrained` is the head stored in the cache. Repeatable.",
            default=f"{STORED}, without run records",
        ),
    ] = None,
    lam: Annotated[
        float, typer.Option("--lambda", min=0, help="Ridge of the least-squares head W_LS.")
    ] = 0.05,
    device: DeviceOption = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure how far features and heads have collapsed, and how far heads are from W_LS.

    Measures are NC1 to NC4 and D_LS, over the classes of both the caches and the
    head, with equal weights; every image counts. Each is printed with its meaning
    and its least possible value.

    clinit diagnose runs/first
    """
    if not math.isfinite(lam):
        raise typer.BadParameter(f"--lambda must be a finite number, got {lam}")
    of_runs = {p: sorted(p.glob("run.json")) or sorted(p.glob("*/run.json")) for p in paths}
    records = [file.parent for files in of_runs.values() for file in files]
    places = [path for path, files in of_runs.items() if not files] or _places(records)
    named = head or ([] if records else [STORED])
    check_caches(*places)
    for each in named:
        check_caches(head=None if each == STORED else Path(each))
    from clinit.analysis.metrics.diagnosis import diagnose_splits
    from clinit.analysis.report.tables import heads_table
    from clinit.extract.cache.read import open_cache
    from clinit.headtrain.protocol.record.format import final_head, read_record
    from clinit.machine import choose_device

    caches = [open_cache(place) for place in places]
    name: str = split or next(iter(caches[0].splits))
    rows = [cache.split(name) for cache in caches]
    heads = {each: _head(each, caches[0].head, places[0]) for each in named}
    heads |= {str(path): final_head(read_record(path)) for path in records}
    with doing(f"Reading {places[0]} …"):
        found = {
            each: diagnose_splits(rows, own, lam=lam, device=choose_device(device))
            for each, own in heads.items()
        }
    of = {"cache": " ".join(map(str, places)), "split": name}
    if as_json:
        every = [{**of, "head": each, **one.content()} for each, one in found.items()]
        print_content(every if len(every) > 1 else every[0])
        return
    first = next(iter(found.values()))
    collapse = first.collapse
    told = f"head {next(iter(found))}" if len(found) == 1 else number_of(len(found), "head")
    say(f"{of['cache']}, split {name}, {told}")
    say(
        f"{number_of(first.rows, 'row')} of {collapse.classes:,} classes, width {collapse.dim},"
        f" class means of rank {collapse.rank} (cut {collapse.cut:.0e}), lambda {lam:g}; computed"
        f" with {first.library}"
    )
    out.print(heads_table(found))
    if others := len({n for r in rows for n in r.class_names}) - collapse.classes:
        note(f"left out: {number_of(others, 'class')} without a row in the head, or features")
    if lost := min(collapse.dim, collapse.classes - 1) - collapse.rank:
        note(
            f"along {lost} of the directions, class means vary by no more than the rounding of the"
            " features; NC1 leaves them out"
        )


def _places(records: list[Path]) -> list[Path]:
    """Return the caches of the first record; refuse records of other data."""
    from clinit.errors import RecordError
    from clinit.headtrain.protocol.record.format import read_info

    infos = [read_info(path) for path in records]
    sides = [filter(None, (info["base"], info["new"])) for info in infos]
    read = [[Path(p) for s in own for p in (s["path"], *s.get("other_paths", ()))] for own in sides]
    for path, each, info in zip(records, read, infos, strict=True):
        if each != read[0]:
            raise RecordError(
                f"{path} read other caches than {records[0]}",
                remedy="Give records of one command, or the caches to measure them on.",
            )
        if "top_blocks" in info["config"]:
            raise RecordError(
                f"{path} trained blocks of the backbone, so its head is not for cached features",
                remedy="Give records of `clinit train-head`.",
            )
    return read[0]


def _head(name: str, stored: Head | None, cache: Path) -> Head:
    from clinit.errors import HeadError
    from clinit.extract.cache.head import read_head

    if name != STORED:
        return read_head(Path(name), on_note=note)
    if stored is None:
        raise HeadError(
            f"{cache} contains no pretrained head", remedy="Give a head file with `--head FILE`."
        )
    return stored
