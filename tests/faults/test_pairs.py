"""Two processes on one --out; a sample of `benchmarks/faults.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fault_trials.pairs import PID, pair
from fault_trials.trial import Failure, Trial


@pytest.mark.parametrize(
    ("first", "second", "share", "pid"),
    [
        ("extract", "extract", 0.5, None),
        ("cache import", "cache import", 0.5, PID),
        ("manifest build", "manifest build", 0.5, PID),
        ("sweep", "sweep", 0.5, None),
        ("train-head", "train-head", 0.0, None),
        ("train-head", "train-head", 0.15, PID),
        ("align", "align, cross entropy", 0.0, None),
        ("train-top", "train-top", 0.0, PID),
    ],
)
def test_two_processes_on_one_folder_compute_nothing_twice(
    failures: Callable[[Trial], list[Failure]],
    first: str,
    second: str,
    share: float,
    pid: int | None,
) -> None:
    assert failures(pair(first, second, share, pid)) == []
