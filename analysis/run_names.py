"""The columns of a table that name the run of each line."""

from __future__ import annotations

from collections.abc import Sequence

from clinit.analysis.columns import Column
from clinit.analysis.run_summary import RunSummary
from clinit.analysis.settings import NOTHING, SHORT, shown


def name_columns(settings: Sequence[str]) -> list[Column]:
    """Return the columns of initialisation, scale and the settings in which runs differ."""
    differing = (Column(SHORT.get(name, name), "setting") for name in settings)
    return [Column("init"), Column("scale"), *differing]


def name_cells(run: RunSummary, settings: Sequence[str], runs: Sequence[RunSummary]) -> list[str]:
    """Return what a run, one of `runs`, has in these columns."""
    scale = NOTHING if run.init == "random" else run.scale
    return [run.init, scale, *(shown(run, name, runs) for name in settings)]
