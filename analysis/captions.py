"""What columns of the tables mean, in the words of their captions.

A table for a text says all of it. Below a table in the terminal is only what those runs need to be
said of them; where the rest is written is said once.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from clinit.analysis.efficiency import Reading
from clinit.analysis.run_summary import RunSummary

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


def below(runs: Sequence[RunSummary], *said: str, left_out: str = "") -> list[RenderableType]:
    """Return the words below a table in the terminal; nothing where there is nothing to say.

    Args:
        runs: Those of the table.
        said: Sentences about this table; empty ones are left out.
        left_out: Headings of the columns that it has no room for.
    """
    start = "" if not runs[0].skip_start else "The points before the first step are left out."
    missing = f"Not shown in this width: {left_out}." if left_out else ""
    words = " ".join(filter(None, (*said, start, missing)))
    return [Text(words, style="dim")] if words else []


def reading_caption(reading: Reading) -> str:
    """Return by which reading the column `gain` is, where it is not the usual one."""
    return "" if reading == "equal-level" else f"gain: {reading}."
