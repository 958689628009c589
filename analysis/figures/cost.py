"""What a start costs: seconds of initialisation beside the seconds of all the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clinit.analysis.figures.line import Start, starts_of
from clinit.analysis.report.run import RunSummary
from clinit.errors import RecordError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a start over all its tasks, means over its seeds."""

    name: str
    initialisation: float
    rest: float
    """Training and evaluation."""

    @property
    def share(self) -> float:
        """The share of initialisation in percent; 0 where no time was measured."""
        total = self.initialisation + self.rest
        return 100 * self.initialisation / total if total > 0 else 0.0


def cost_of(start: Start) -> Cost | None:
    """Return what a start costs; None where the records do not say."""
    parts = [part for run in start.runs if (part := _seconds(run)) is not None]
    if not parts:
        return None
    initialisation = sum(part[0] for part in parts) / len(parts)
    total = sum(part[1] for part in parts) / len(parts)
    return Cost(start.name, initialisation, max(0.0, total - initialisation))


def figure(runs: Sequence[RunSummary]) -> Figure:
    """Return one bar a start, as wide as a column."""
    from clinit.analysis.figures import style

    costs = _costs(runs)
    width = style.COLUMN
    result, (axes,) = style.page(width, 0.75 + 0.2 * len(costs))
    places = range(len(costs))
    longest = max(cost.initialisation + cost.rest for cost in costs) or 1.0
    first = [cost.initialisation for cost in costs]
    bars = [
        axes.barh(places, first, 0.65, color=style.COLOURS[0]),
        axes.barh(places, [cost.rest for cost in costs], 0.65, first, color="#c9d9e6"),
    ]
    for place, cost in zip(places, costs, strict=True):
        style.write(
            axes,
            cost.initialisation + cost.rest + 0.015 * longest,
            place,
            f"{cost.share:.1f} %",
            va="center",
        )
    style.name_bars(axes, [cost.name for cost in costs], 26)
    axes.set_xlim(0, 1.22 * longest)
    style.name_axes(axes, x="Seconds per run")
    words = ["initialisation (share in %)", "training and evaluation"]
    style.legend(result, words, bars, width, handle=1.2)
    return result


def _costs(runs: Sequence[RunSummary]) -> list[Cost]:
    costs = [cost for start in starts_of(runs) if (cost := cost_of(start)) is not None]
    if not costs:
        raise RecordError(
            "no record says how many seconds its run and its initialisations took",
            remedy="Run them again: `clinit rerun RUN --out FOLDER` records them.",
        )
    return costs


def _seconds(run: RunSummary) -> tuple[float, float] | None:
    """Return the seconds of all initialisations and of the run as a whole."""
    total = run.record.info.get("seconds")
    starts = [task.get("initialisation") or {} for task in run.record.info["tasks"]]
    parts = [start.get("seconds") for start in starts]
    known = [float(part) for part in parts if part is not None]
    if total is None or len(known) < len(parts):
        return None
    return sum(known), float(total)
