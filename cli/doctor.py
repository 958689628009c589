"""`clinit doctor`: what on this machine keeps clinit from working, or from working well."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.console import out, print_json, say
from clinit.cli.options import AsJson, Dtype, Output, OutputFormat
from clinit.cli.progress import doing
from clinit.words import visible

if TYPE_CHECKING:
    from clinit.extract.doctor import Finding

_DIM = 384
_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red"}


def doctor(
    place: Annotated[
        Path,
        typer.Option(
            "--out", help="Where caches are to be written.", metavar="FOLDER", show_default="here"
        ),
    ] = Path(),
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Data set to be extracted: its images are counted against the free space.",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Images to be extracted, instead."),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Width of the features.",
            show_default=f"{_DIM}, of ConvNeXtV2-Femto",
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="How they are stored.", show_default="float16")
    ] = None,
    output: OutputFormat = Output.table,
    as_json: AsJson = False,
) -> None:
    """Check what clinit needs: packages, GPU, CuPy, image codecs, disk, limits.

    A warning costs speed or comfort; a fault makes something fail, and the
    exit code 1. Beside each is what mends it.

    clinit doctor --dataset imagenet1k --dim 1280 --out /data/caches
    """
    from clinit.extract.doctor import State, cache_bytes, examine

    if dataset is not None:
        from clinit.extract.dataset.known import read_dataset

        if rows is not None:
            raise typer.BadParameter("give either --dataset or --rows")
        described = read_dataset(dataset)
        rows = sum(described.images.values()) or described.total
        if rows is None:
            raise typer.BadParameter(f"nobody knows how many images {dataset} has: give --rows")
    if rows is None and (dim or dtype):
        raise typer.BadParameter(
            "--dim and --dtype are of a cache to be extracted: give --dataset or --rows too"
        )
    item_bytes = 4 if dtype == "float32" else 2
    planned = cache_bytes(rows, dim or _DIM, item_bytes) if rows else None
    findings: list[Finding] = []
    with doing("Checking …") as status:
        for finding in examine(place, planned):
            findings.append(finding)
            status.update(f"Checking … {finding.subject} done")
    if as_json or output is Output.json:
        print_json(json.dumps([asdict(finding) for finding in findings], ensure_ascii=False))
    else:
        _show(findings)
    if any(finding.state is State.fault for finding in findings):
        raise typer.Exit(1)


def _show(findings: Sequence[Finding]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("", "", "", box=box.SIMPLE, show_header=False, padding=(0, 1, 0, 0))
    for finding in findings:
        told = Text(visible(finding.told))
        if finding.remedy:
            told.append(f"\n→ {visible(finding.remedy)}", style="bold")
        table.add_row(visible(finding.subject), Text(finding.state, _STYLES[finding.state]), told)
    out.print(table)
    bad = [finding.subject for finding in findings if finding.state != "ok"]
    say(f"To be mended: {', '.join(bad)}." if bad else "Nothing stands in the way.")
