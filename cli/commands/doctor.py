"""`clinit doctor`: print faults of this machine that stop clinit or slow it down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from clinit.cli.frame.console import out, say
from clinit.cli.frame.progress import doing
from clinit.words import visible

if TYPE_CHECKING:
    from clinit.extract.doctor import Finding

_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red"}


def doctor() -> None:
    """Check what clinit needs: packages, GPU, CuPy, compiler, limits.

    A warning costs speed or functions; a fault makes commands fail. Both are
    printed with a remedy. The exit code is 1 if there is a fault.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from clinit.extract.doctor import examine

    findings: list[Finding] = []
    with doing("Checking …") as status:
        for finding in examine():
            findings.append(finding)
            status.update(f"Checking … {finding.subject} done")
    table = Table("", "", "", box=box.SIMPLE, show_header=False, padding=(0, 1, 0, 0))
    for finding in findings:
        told = Text(visible(finding.told))
        if finding.remedy:
            told.append(f"\n→ {visible(finding.remedy)}", style="bold")
        table.add_row(visible(finding.subject), Text(finding.state, _STYLES[finding.state]), told)
    out.print(table)
    bad = [finding.subject for finding in findings if finding.state != "ok"]
    say(f"Problems: {', '.join(bad)}." if bad else "No problem found.")
    if any(finding.state == "fault" for finding in findings):
        raise typer.Exit(1)
