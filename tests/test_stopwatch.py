import pytest
import torch

from clinit.machine import Stopwatch


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands at the last value of a list."""
    times = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: times[-1])
    return times


def test_phases_of_one_name_add_up_and_the_total_counts_what_lies_between(
    clock: list[float],
) -> None:
    watch = Stopwatch()
    for name, until in (("read", 102.0), ("write", 103.0), ("read", 106.0)):
        with watch.phase(name):
            clock.append(until)
        clock.append(until + 0.5)
    assert watch.seconds == {"read": 2.0 + 2.5, "write": 0.5}
    assert (watch.total, watch.seconds["never"]) == (6.5, 0.0)


def test_work_queued_on_a_cuda_device_counts_in_its_phase(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    def synchronize(device: torch.device) -> None:
        waited.append(device)
        clock.append(107.0)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    watch = Stopwatch(torch.device("cuda:1"))
    with watch.phase("train"):
        clock.append(101.0)
    assert (watch.seconds["train"], waited) == (7.0, [torch.device("cuda:1")])
    with Stopwatch(torch.device("cpu")).phase("train"):
        pass
    with Stopwatch().phase("train"):
        pass
    assert len(waited) == 1
