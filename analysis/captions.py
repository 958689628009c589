"""What columns of the tables mean, in the words of their captions."""

from __future__ import annotations

from collections.abc import Sequence

from clinit.analysis.efficiency import Reading
from clinit.analysis.run_summary import RunSummary

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
