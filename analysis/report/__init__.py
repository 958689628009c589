"""Tables of runs; nothing heavy is imported here, since a command takes `View` as options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Format = Literal["table", "json", "csv", "markdown", "latex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Parts of a report to show."""

    format: Format = "table"
    """JSON and CSV contain an entry for each run, Markdown and LaTeX a table for each data set."""
    columns: str | Sequence[str] = ""
    """Measures in place of the default ones: `acc_all,gain`."""
    per_task: bool = False
    by_seed: bool = False
    """Whether each run has a line below the means over seeds."""
    means: bool = False
    """Whether to show means over seeds, even of a single seed, instead of runs."""
    curves: bool = True
    said: Collection[str] = ()
    """Notes that are left out."""
