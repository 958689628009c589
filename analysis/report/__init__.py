"""Tables of runs; nothing heavy is imported here, since a command takes `ReportView` as options."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from clinit.setting import SettingGroup, setting

ReportFormat = Literal["table", "json", "csv", "markdown", "latex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView(SettingGroup):
    """Parts of a report to show."""

    format: ReportFormat = setting(
        "table",
        "Table for the terminal; JSON or CSV for programs, with an entry for each run; Markdown or"
        " LaTeX (booktabs) table of means over seeds for each data set.",
        short="-f",
    )
    columns: str = setting(
        "",
        "Columns in place of the default ones, such as acc_all,acc_new,gain,backward_transfer;"
        " docs/metrics.md lists them.",
        metavar="NAMES",
    )
    per_task: bool = setting(False, "Also show each task.")
    by_seed: bool = setting(
        False, "If there are several seeds, show each run, not only mean and deviation."
    )
    means: bool = setting(False, "Mean and deviation over seeds, not runs, in JSON and CSV too.")
    curves: bool = setting(
        False, "Draw loss and A_new of new classes over iterations below the tables."
    )
    said: Collection[str] = ()
    """Notes that are left out."""
