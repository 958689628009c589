"""Print the results of commands: JSON, the report of runs, the remark on a cache without a head."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clinit.analysis.report import ReportView
from clinit.cli.frame.console import note, out, print_json, say
from clinit.words import number_of

if TYPE_CHECKING:
    from clinit.analysis.runs import Runs


def print_content(content: Any) -> None:
    """Print plain values as JSON for programs, with null for numbers that are not finite."""
    from clinit.headtrain.protocol.record.format import finite

    print_json(json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False))


def show(runs: Runs, view: ReportView) -> None:
    """Print the parts of a report from top to bottom, then its notes."""
    for part in runs.parts(view, width=min(out.width, 120)):
        out.print(part, crop=False)
    for told in runs.told(view):
        note(told)


def show_runs(places: Collection[Path], trained: Collection[Path]) -> None:
    """Print the table of records, without the notes of runs that were trained just now."""
    folder = next(iter(places)).parent
    show_records(places, trained, means=False)
    told = number_of(len(places), "run record")
    say(f"{told} at {folder}; curves: clinit report {folder} --curves")


def show_records(places: Collection[Path], told: Collection[Path], *, means: bool) -> None:
    """Print the table of records, or of their means over seeds, without the notes of `told`."""
    from clinit.analysis.runs import load_runs

    runs = load_runs(*places)
    known = {place.resolve() for place in told}
    said = {n for run in runs if run.path in known for n in run.record.info["notes"]}
    show(runs, ReportView(means=means, said=said))


def tell_headless(cache: Path) -> None:
    """Print the command that fits a head to a cache without a head."""
    fit = f"clinit head fit {shlex.quote(str(cache))} --out head.safetensors"
    note(f"to use these as base classes, fit a head: {fit}")
