"""What columns of the tables mean, in the words of their captions.

A table for a text says all of it. Below a table in the terminal is only what those runs need to be
said of them; where the rest is written is said once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from clinit.analysis.metrics.efficiency import Reading
from clinit.analysis.report.run import RunSummary
from clinit.analysis.report.table import Fitted

WHERE_COLUMNS_ARE_TOLD = "Columns: clinit report --help"

_GAIN: dict[Reading, str] = {
    "equal-level": "iterations of random / iterations of the run, both to 95 % of random's best"
    " new-task accuracy; 1 for random itself",
    "random-best": "iterations of random to its best new-task accuracy / iterations of the run to"
    " 95 % of it; above 1 for random itself where it reaches 95 % before its best",
}


def gain_caption(reading: Reading) -> str:
    """Return what the column `gain` means by this reading."""
    return f"gain, {reading}: {_GAIN[reading]}."


def loss_caption(runs: Sequence[RunSummary]) -> str:
    """Return what the column `L_new` means, with the most images that it was measured on."""
    sizes = [run.record.info.get("loss_sample_rows") for run in runs]
    known = [size for size in sizes if size is not None]
    most = f"at most {max(known):,} " if known and len(known) == len(sizes) else ""
    return f"L_new: mean loss on {most}training images of the current task."


@dataclass(frozen=True, slots=True)
class Below:
    """Words below a table in the terminal."""

    bold: str
    """What bold numbers mean: said where the terminal shows them bold, not in a file."""
    words: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Print the words; no line where there are none."""
        words = " ".join(filter(None, (self.bold if console.color_system else "", self.words)))
        if words:
            yield Text(words, style="dim")


def below(
    runs: Sequence[RunSummary], *said: str, bold: str = "", fitted: Fitted | None = None
) -> RenderableType:
    """Return the words below a table in the terminal.

    Args:
        runs: Those of the table.
        said: Sentences about this table; empty ones are left out.
        bold: What bold numbers mean.
        fitted: The table, where it may have no room for some columns.
    """
    start = "" if not runs[0].skip_start else "The points before the first step are left out."
    missing = ""
    if fitted is not None and fitted.left_out:
        wider = 120 if fitted.width < 120 else fitted.width + 40
        missing = (
            f"Not shown in this width: {fitted.left_out} (a wider terminal, or COLUMNS={wider})."
        )
    return Below(bold, " ".join(filter(None, (*said, start, missing))))


AT_LEAST = "≥: at least, the level is reached before the first step."
"""What the mark of a gain means that is bounded by the grid of evaluations."""


def reading_caption(reading: Reading) -> str:
    """Return by which reading the column `gain` is, where it is not the usual one."""
    return "" if reading == "equal-level" else f"gain: {reading}."
