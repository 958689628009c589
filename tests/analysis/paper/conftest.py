"""Made runs in the places of a table of the paper."""

from collections.abc import Callable
from typing import Any

import pytest

from clinit.analysis.report.run import RunSummary
from clinit.analysis.runs import runs_of

SCALES = {"random": "none", "class-mean": "norm", "least-square": "norm"}


@pytest.fixture
def runs(make_run: Callable[..., Any]) -> Callable[..., Any]:
    """Make runs of the three starts for each loss, budget and seed; small ones."""

    def make(
        *,
        losses: tuple[str, ...] = ("ce",),
        budgets: tuple[tuple[int, int], ...] = ((100, 40),),
        seeds: tuple[int, ...] = (0, 1, 2),
        **settings: Any,
    ) -> tuple[RunSummary, ...]:
        records = [
            make_run(
                init,
                scale,
                iterations=iterations,
                buffer=buffer,
                loss=loss,
                seed=seed,
                tasks=2,
                accuracy=accuracy_of(init, seed),
                **{"method": "rehearsal", **settings},
            )
            for init, scale in SCALES.items()
            for loss in losses
            for iterations, buffer in budgets
            for seed in seeds
        ]
        return runs_of(records).runs

    return make


def accuracy_of(init: str, seed: int) -> Callable[[int, int], float]:
    heights = {"random": 0.3, "class-mean": 0.5, "least-square": 0.6}
    return lambda task, iteration: heights[init] + 0.05 * seed * (init != "random")
