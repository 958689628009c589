"""The bank on tensors that say they are on a CUDA device and hold no numbers.

torch's FakeTensorMode raises where tensors of two devices meet and where a value is read back to
the host: what runs here mixes no devices and waits for nothing inside a step.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.protocol.stream.task_plan import Schedule
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train import heads as heads_module
from clinit.headtrain.protocol.train import loop as loop_module
from clinit.headtrain.protocol.train.anchor import Anchor
from clinit.headtrain.protocol.train.evaluate import (
    best_rivals,
    blocks_of,
    compared,
    logits_of,
    mean_losses,
)
from clinit.headtrain.protocol.train.feeds import ResidentFeed, StreamedFeed
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.headtrain.protocol.train.loop import TaskSteps
from clinit.headtrain.protocol.train.old_classes import OldClasses
from clinit.headtrain.protocol.train.step import Updates

CUDA = torch.device("cuda")
DIM, CLASSES, ROWS, BATCH, STEPS = 10, 6, 50, 8, 12
HEADS = [*(Training(lr=lr) for lr in (1e-3, 1e-2)), Training(loss="sqen", lr=1e-3)]


@pytest.fixture(autouse=True)
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device whose memory is large, whose steps are not captured, and which computes in all."""
    monkeypatch.setattr(loop_module, "Replayed", lambda: lambda step: step())
    monkeypatch.setattr(heads_module, "is_resident", lambda size, device: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield


def make_bank(precision: Any = "float32") -> Bank:
    head = Rows(np.zeros((CLASSES - 2, DIM)), np.zeros(CLASSES - 2))
    bank = Bank(head, [replace(each, precision=precision) for each in HEADS], CUDA)
    bank.grow(Rows(np.ones((2, DIM)), np.ones(2)))
    return bank


def make_rows() -> LabelledRows:
    features = np.zeros((ROWS, DIM), dtype=np.float16)
    return LabelledRows.on(CUDA, features, np.zeros(ROWS, dtype=np.int64))


def make_schedule() -> Schedule:
    return Schedule(np.zeros((STEPS, BATCH), dtype=np.int64), np.full(STEPS, BATCH // 2))


def on_cuda(*tensors: torch.Tensor) -> bool:
    return all(tensor.device.type == "cuda" for tensor in tensors)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_rows_are_written_and_a_step_is_done_on_the_device(precision: str) -> None:
    bank = make_bank(precision)
    bank.write(1, CLASSES - 2, Rows(np.ones((2, DIM)), np.ones(2)))
    there = torch.ones(2, DIM, dtype=torch.float64, device=CUDA)
    bank.write(2, CLASSES - 2, Rows(there, there[:, 0]))
    known = OldClasses(np.arange(1), np.ones((1, DIM)), np.eye(DIM), np.eye(DIM))
    training = Updates(bank, BATCH, [None, Anchor(0.1), Anchor(0.1, known)])
    rows = make_rows()
    losses = training.step(rows.features[:BATCH], rows.labels[:BATCH])
    assert on_cuda(losses, bank.weight, bank.bias, training.features)
    assert losses.shape == (BATCH, len(HEADS))


@pytest.mark.parametrize("resident", [True, False])
def test_the_steps_of_a_task_wait_for_nothing(
    monkeypatch: pytest.MonkeyPatch, resident: bool
) -> None:
    monkeypatch.setattr(heads_module, "is_resident", lambda size, device: resident)
    # Pinning needs the runtime of CUDA.
    empty: Any = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options)
    )
    rows, schedule = make_rows(), make_schedule()
    assert rows.features.device.type == ("cuda" if resident else "cpu")
    batches = torch.from_numpy(schedule.batches)
    feed = ResidentFeed(rows, batches) if resident else StreamedFeed(rows, batches, most_steps=5)
    steps = TaskSteps(Updates(make_bank(), BATCH), feed, schedule)
    steps.run(0, 5)
    steps.run(5, STEPS - 2)
    assert on_cuda(steps._losses, feed.features, feed.labels, feed.batches)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_an_evaluation_stays_on_the_device_until_its_counts_come_back(precision: str) -> None:
    bank, test = make_bank(precision), make_rows()
    half = bank.num_classes // 2
    for part, blocks in blocks_of(bank, len(test)):
        rows = part.stop - part.start
        groups = [
            (slice(0, rows // 2), slice(0, half)),
            (slice(rows // 2, rows), slice(half, bank.num_classes)),
        ]
        for heads in blocks:
            logits = logits_of(bank, test.widened(part), heads)
            assert on_cuda(*compared(logits, test.labels[part], groups))
    assert on_cuda(best_rivals(bank, 0, test, torch.arange(4)))
    with pytest.raises(RuntimeError, match=r"numpy\(\)|FakeTensor"):
        mean_losses(bank, test)  # all but the numbers themselves, which a fake does not have
