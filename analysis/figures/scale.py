"""Scales and ticks that figures on paper and in the terminal share."""

from __future__ import annotations

import math
from collections.abc import Sequence

Real = int | float
"""For functions that take whole numbers too: where types are checked, an int is no float."""
LOG_RATIO = 20.0
"""Values that span more than this are drawn on a logarithmic scale."""


def spans_decades(values: Sequence[Real]) -> bool:
    """Return whether values are positive and differ by more than a factor of `LOG_RATIO`."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_RATIO


def round_ticks(low: Real, high: Real, *, log: bool, count: int = 5) -> list[float]:
    """Return about `count` round numbers between `low` and `high`."""
    if log:
        return _round_powers(low, high, count)
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _round_powers(low: Real, high: Real, count: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= count + 2:
            return ticks
    return ticks[:: math.ceil(len(ticks) / (count + 2))]


def tick_text(value: Real) -> str:
    """Return a tick as printed, in few letters: 0.05, 20, 1e-05, 1e+06."""
    return f"{value:g}"
