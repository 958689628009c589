"""Tables of runs; nothing heavy is imported here, since a command takes `View` as options."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Format = Literal["table", "json", "csv", "markdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Parts of a report to show."""

    format: Format = "table"
    """JSON and CSV contain an entry for each run, Markdown a table for each data set."""
    per_task: bool = False
    by_seed: bool = False
    """Whether each run has a line below the means over seeds."""
    means: bool = False
    """Whether to show means over seeds, even of a single seed, instead of runs."""
    metrics: bool = False
    """Whether to show a table of further metrics, which is the only table in Markdown."""
    curves: bool = True
    said: Collection[str] = ()
    """Notes that are left out."""
