"""Numbers for the runs that nothing else tells apart: those that were recorded twice.

They are those of a report: its tables, figures and notes say the same number of the same run.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from clinit.analysis.run_summary import RunSummary
from clinit.analysis.seeds import alike
from clinit.analysis.settings import identity, settings


def numbered(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return the runs in their order; those of groups that are alike but for seeds have numbers."""
    names = dict.fromkeys(name for run in runs for name in settings(run) if name != "seed")
    groups = alike(runs)
    told = [identity(group[0], [*names]) for group in groups]
    counts = Counter(told)
    twice = {
        id(run) for group, key in zip(groups, told, strict=True) if counts[key] > 1 for run in group
    }
    chosen = [run for run in runs if id(run) in twice]
    numbers = {id(run): number for number, run in enumerate(chosen, start=1)}
    return [dataclasses.replace(run, number=numbers.get(id(run))) for run in runs]


def legend(runs: Sequence[RunSummary]) -> list[str]:
    """Return a line for each run that has a number: where its record lies."""
    return [f"run {run.number}: {run.path}" for run in runs if run.number is not None]
