"""Commands that are killed or fail, and run again; a sample of `benchmarks/faults.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fault_trials.kills import broken_decoding, kill
from fault_trials.trial import Failure, Place, Trial


@pytest.mark.parametrize(
    ("command", "mode", "share"),
    [
        ("extract", "after", 0.42),
        ("extract", "enospc", 0.6),
        ("extract --views", "kill", 0.8),
        ("extract --views", "term", 0.5),
        ("cache import", "after", 0.7),
        ("cache import", "eacces", 0.0),
        ("cache export", "after", 0.5),
        ("cache export", "enospc", 0.8),
        ("cache export, parquet", "kill", 0.6),
        ("manifest build", "after", 0.5),
        ("manifest build", "short", 0.0),
        ("align", "kill", 0.6),
        ("align", "eio", 0.9),
        ("train-head", "after", 0.5),
        ("train-head", "enospc", 0.7),
        ("train-top", "kill", 0.3),
        ("train-top", "after", 0.9),
        ("sweep", "after", 0.2),
        ("sweep --search optuna", "after", 0.1),
        ("export", "after", 0.4),
        ("export, folder", "after", 0.6),
        ("report --plot", "short", 0.0),
        ("report --html", "enospc", 0.5),
        ("predict --csv", "kill", 0.7),
    ],
)
def test_after_a_kill_or_a_failing_disk_the_same_command_ends_as_if_nothing_had_happened(
    place: Place,
    failures: Callable[[Trial], list[Failure]],
    command: str,
    mode: str,
    share: float,
) -> None:
    assert failures(kill(place, command, mode, share)) == []


@pytest.mark.parametrize("mode", ["runtime", "memory"])
def test_a_shortage_of_memory_marks_no_image_invalid(
    place: Place, failures: Callable[[Trial], list[Failure]], mode: str
) -> None:
    assert failures(broken_decoding(place, "extract", mode)) == []
