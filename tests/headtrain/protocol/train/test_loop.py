"""The steps of a task: what they read, what they write down, and their capture."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch

from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.protocol.stream.task_plan import Schedule
from clinit.headtrain.protocol.study.parts import RateSchedule, Training
from clinit.headtrain.protocol.train import loop
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.headtrain.protocol.train.step import Updates

CPU = torch.device("cpu")
DIM, CLASSES, ROWS, BATCH, STEPS = 10, 6, 50, 8, 12
HEADS = [Training(lr=1e-2), Training(lr=1e-3, loss="sqen")]


def make_rows() -> LabelledRows:
    random = np.random.default_rng(0)
    features = random.normal(size=(ROWS, DIM)).astype(np.float16)
    return LabelledRows.on(CPU, features, random.integers(CLASSES, size=ROWS))


def make_schedule() -> Schedule:
    random = np.random.default_rng(1)
    batches = random.integers(ROWS, size=(STEPS, BATCH))
    num_new = random.integers(BATCH + 1, size=STEPS)
    num_new[:2] = 0, BATCH
    return Schedule(batches, num_new)


def make_steps(
    feed: Callable[[LabelledRows, torch.Tensor], loop.Feed] = loop.ResidentFeed,
    rate: RateSchedule = "constant",
) -> tuple[Bank, loop.TaskSteps]:
    random = np.random.default_rng(2)
    head = Rows(random.normal(size=(CLASSES, DIM)), random.normal(size=CLASSES))
    bank, schedule = Bank(head, HEADS, CPU), make_schedule()
    batches, shares = torch.from_numpy(schedule.batches), loop.rate_shares(rate, STEPS)
    return bank, loop.TaskSteps(Updates(bank, BATCH), feed(make_rows(), batches), schedule, shares)


def naive_share(rate: RateSchedule, step: int) -> float:
    """Falling by equal steps; or up and down by half a cosine each."""
    done = (step + 1) / (STEPS + 1)
    if rate == "one-cycle":
        angle = done / 0.3 if done < 0.3 else (1 - done) / 0.7
        return (1 - math.cos(math.pi * angle)) / 2
    return 1.0 if rate == "constant" else 1 - done


@pytest.mark.parametrize("rate", get_args(RateSchedule))
@torch.no_grad()
def test_steps_are_those_of_a_loop_over_batches_and_their_losses_are_written_down(
    rate: RateSchedule,
) -> None:
    bank, steps = make_steps(rate=rate)
    steps.run(0, 7)
    steps.run(7, STEPS)
    other, _ = make_steps()
    training, rows, schedule = Updates(other, BATCH), make_rows(), make_schedule()
    for step, (batch, new) in enumerate(zip(schedule.batches, schedule.num_new, strict=True)):
        share = naive_share(rate, step)
        losses = training.step(rows.features[batch], rows.labels[batch], share).numpy()
        expected = np.full((2, 2), np.nan)
        if new:
            expected[:, 0] = losses[:new].mean(0)
        if new < BATCH:
            expected[:, 1] = losses[new:].mean(0)
        np.testing.assert_allclose(steps.losses[step], expected, rtol=1e-5)
    torch.testing.assert_close(bank.weight, other.weight)
    assert rate != "constant" or torch.equal(bank.weight, other.weight)
    assert np.isnan(steps.losses[0, :, 0]).all()
    assert np.isnan(steps.losses[1, :, 1]).all()


@torch.no_grad()
def test_rows_copied_block_by_block_are_those_that_lie_on_the_device() -> None:
    bank, steps = make_steps()
    steps.run(0, STEPS)
    other, others = make_steps(partial(loop.StreamedFeed, most_steps=5))
    for start, stop in ((0, 5), (5, 6), (6, 10), (10, STEPS)):
        others.run(start, stop)
    assert torch.equal(bank.weight, other.weight)
    np.testing.assert_array_equal(steps.losses, others.losses)


@pytest.mark.parametrize("error", [None, RuntimeError("not permitted when stream is capturing")])
def test_a_step_is_captured_once_and_a_failed_capture_is_said(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        did.append("captured")
        if error is not None:
            raise error
        return lambda: did.append("replayed")

    monkeypatch.setattr(loop.Replayed, "_warm_up", lambda replayed, step: step())
    monkeypatch.setattr(loop, "_capture", capture)
    replayed = loop.Replayed()
    said = nullcontext() if error is None else pytest.warns(UserWarning, match="not permitted")
    with said:
        for _ in range(20):
            replayed(lambda: did.append("launched"))
    after = "replayed" if error is None else "launched"
    expected = (
        ["launched"] * loop.WARM_UP_STEPS + ["captured"] + [after] * (20 - loop.WARM_UP_STEPS)
    )
    assert did == expected
