from collections.abc import Iterator

import pytest

from clinit.extract.work.pipeline import PHASES, Timing


@pytest.fixture
def timing() -> Timing:
    return Timing()


def test_waiting_is_split_in_proportion_to_the_work_behind_it(timing: Timing) -> None:
    timing.add_wait(10.0, transfer=1.0, forward=4.0)
    timing.add_wait(4.0, read=1.0, decode=3.0)
    assert timing.seconds == {
        **{"read": 1.0, "decode": 3.0},
        **{"transfer": 2.0, "forward": 8.0, "write": 0.0},
    }


def test_waiting_without_work_behind_it_counts_once(timing: Timing) -> None:
    timing.add_wait(3.0, read=0.0, decode=0.0)
    assert (timing.seconds["decode"], timing.busy) == (3.0, 3.0)


def test_the_shares_are_of_what_the_phases_took_and_sum_to_one(timing: Timing) -> None:
    assert timing.shares() == dict.fromkeys(PHASES, 0.0)
    timing.add_wait(3.0, read=1.0, decode=2.0)
    timing.add_wait(1.0, transfer=0.0, forward=1.0)
    assert timing.shares() == pytest.approx(
        {"read": 0.25, "decode": 0.5, "transfer": 0.0, "forward": 0.25, "write": 0.0}
    )


def test_the_phase_with_the_largest_share_bounds_the_rate(
    timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing.add_wait(1.0, transfer=0.0, forward=1.0)
    assert timing.bound == "forward"
    ticks: Iterator[float] = iter([0.0, 5.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    with timing.phase("write"):
        pass
    assert timing.bound == "write"
