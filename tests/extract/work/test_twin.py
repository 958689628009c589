"""The pipeline of extraction on a device that executes late (`tests.twin`)."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from clinit.errors import ImageError
from clinit.extract.work.pipeline import HALVED, ImageBatch, Timing, overlapped
from tests.twin import CUDA, Event, Machine, Stream, twin

__all__ = ["twin"]
SIZES = [8] * 5 + [3]


def batches() -> Iterator[ImageBatch]:
    random = torch.Generator().manual_seed(0)
    for size in SIZES:
        pixels = torch.randint(0, 255, (size, 3, 4, 4), dtype=torch.uint8, generator=random)
        yield ImageBatch(range(size), pixels, {}, 0.0, 0.0)


def means(pixels: Tensor) -> Tensor:
    return pixels.float().mean((1, 2, 3))


EXPECTED = [means(batch.pixels) for batch in batches()]


@pytest.mark.parametrize("where", ["batches", "compute", "finish", "consumer"])
def test_nothing_is_left_in_flight_by_an_error(twin: Machine, where: str) -> None:
    calls = dict.fromkeys(["batches", "compute", "finish", "consumer"], 0)

    def step(name: str) -> None:
        calls[name] += 1
        if name == where and calls[name] == 3:
            raise ImageError("broken", remedy="")

    def coming() -> Iterator[ImageBatch]:
        for batch in batches():
            step("batches")
            yield replace(batch, finish=lambda pixels: step("finish"))

    def computed(pixels: Tensor) -> Tensor:
        step("compute")
        return means(pixels)

    def consume() -> None:
        with closing(overlapped(coming(), computed, CUDA, Timing())) as flight:
            for _ in flight:
                assert calls["batches"] <= calls["consumer"] + 3  # which bounds the memory
                step("consumer")

    with twin, pytest.raises(ImageError, match="broken"):
        consume()
    assert twin.idle
    assert not [each for each in threading.enumerate() if each.name.startswith("send")]


def found(twin: Machine) -> list[Tensor]:
    with twin:
        return [kept.clone() for _, kept in overlapped(batches(), means, CUDA, Timing())]


def test_copies_that_overlap_give_what_each_batch_gives(twin: Machine) -> None:
    for one, other in zip(found(twin), EXPECTED, strict=True):
        torch.testing.assert_close(one, other)
    late = ("late copy to device", "late copy to host")
    assert [twin.counts[each] for each in late] == [len(SIZES)] * 2
    assert not [each for each in twin.counts if "cpu" in each or each.startswith("copy")]


@pytest.mark.parametrize(
    ("where", "name"), [(Stream, "wait_event"), (Event, "synchronize")], ids=["there", "back"]
)
def test_the_device_notices_a_stream_that_nobody_waits_for(
    twin: Machine, monkeypatch: pytest.MonkeyPatch, where: type, name: str
) -> None:
    monkeypatch.setattr(where, name, lambda *args: None)
    assert not all(torch.equal(one, two) for one, two in zip(found(twin), EXPECTED, strict=True))


def test_a_batch_that_does_not_fit_is_computed_in_halves_and_counted(twin: Machine) -> None:
    def small(pixels: Tensor) -> Tensor:
        if len(pixels) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return means(pixels)

    timing = Timing()
    with twin:
        halves = [kept.clone() for _, kept in overlapped(batches(), small, CUDA, timing)]
    for one, other in zip(halves, EXPECTED, strict=True):
        torch.testing.assert_close(one, other)
    assert timing.retreats == {HALVED: 5 * 3 + 1}
