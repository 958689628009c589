"""`clinit doctor`: print faults of this machine that stop clinit or slow it down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clinit.cli.frame.console import out, say
from clinit.cli.frame.options import AsJson
from clinit.cli.frame.progress import doing
from clinit.cli.frame.results import print_content
from clinit.words import visible

if TYPE_CHECKING:
    from clinit.extract.doctor import Finding

_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red"}


def doctor(
    place: Annotated[
        Path,
        typer.Option("--out", help="Folder for caches.", metavar="FOLDER", show_default="here"),
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Check what clinit needs: packages, GPU, CuPy, storage, limits.

    A warning costs speed or functions; a fault makes commands fail. Both are
    printed with a remedy. The exit code is 1 if there is a fault.

    clinit doctor --out /data/caches
    """
    from clinit.extract.doctor import examine

    findings: list[Finding] = []
    with doing("Checking …") as status:
        for finding in examine(place):
            findings.append(finding)
            status.update(f"Checking … {finding.subject} done")
    if as_json:
        print_content([asdict(finding) for finding in findings])
    else:
        _show(findings)
    if any(finding.state == "fault" for finding in findings):
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
    say(f"Problems: {', '.join(bad)}." if bad else "No problem found.")
