"""Commands that are killed or fail, and run again; a sample of `benchmarks/faults.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fault_trials.kills import broken_decoding, kill
from fault_trials.trial import Failure, Place, Trial

DRAFTS = pytest.mark.xfail(strict=True, reason="fault 16: drafts stay after a kill")
AGAIN = pytest.mark.xfail(strict=True, reason="fault 8: refused as it goes on")
BANKS = pytest.mark.xfail(strict=True, reason="fault 8: another composition of the banks")
TRIAL = pytest.mark.xfail(strict=True, reason="fault 8: a trial is lost")
TERM = pytest.mark.xfail(strict=True, reason="fault 22: SIGTERM")
MEMORY = pytest.mark.xfail(strict=True, reason="faults 3 and 21: memory")


@pytest.mark.parametrize(
    ("command", "mode", "share"),
    [
        pytest.param("extract", "after", 0.42, marks=DRAFTS),
        ("extract", "enospc", 0.6),
        pytest.param("extract --views", "kill", 0.8, marks=DRAFTS),
        pytest.param("extract --views", "term", 0.5, marks=TERM),
        pytest.param("cache import", "after", 0.7, marks=DRAFTS),
        ("cache import", "eacces", 0.0),
        pytest.param("manifest build", "after", 0.5, marks=DRAFTS),
        ("manifest build", "short", 0.0),
        pytest.param("align", "kill", 0.6, marks=AGAIN),
        pytest.param("align", "eio", 0.9, marks=AGAIN),
        pytest.param("train-head", "after", 0.5, marks=AGAIN),
        pytest.param("train-head", "enospc", 0.7, marks=AGAIN),
        ("train-top", "kill", 0.3),
        ("train-top", "after", 0.9),
        pytest.param("sweep", "after", 0.2, marks=BANKS),
        pytest.param("sweep --search optuna", "after", 0.1, marks=TRIAL),
        pytest.param("export", "after", 0.4, marks=DRAFTS),
        ("report --plot", "short", 0.0),
        pytest.param("predict --csv", "kill", 0.7, marks=DRAFTS),
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
@MEMORY
def test_a_shortage_of_memory_marks_no_image_invalid(
    place: Place, failures: Callable[[Trial], list[Failure]], mode: str
) -> None:
    assert failures(broken_decoding(place, "extract", mode)) == []
