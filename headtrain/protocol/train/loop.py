"""The updates of one task in order, with evaluations in between.

Each update makes the same calls on the same tensors, and its number is a tensor on the device, too.
A step therefore depends on device memory only: on a CUDA device it is captured in a graph once and
then replayed, with one launch instead of some thirty.

A step reads `features[batches[i]]` and `labels[batches[i]]`, which a feed provides.

Input of the steps of a task: rows on the device, streamed rows, or drawn rows.

Step i reads `features[batches[i]]` and `labels[batches[i]]`, tensors that never move. If the rows
of the task are on the device, these tensors contain all of them. If rows are in host memory or on
disk, or if old rows are drawn from statistics, the tensors contain the rows of the next few steps,
and `batches` numbers these rows in order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.protocol.stream.buffer import STEPS_AT_ONCE
from clinit.headtrain.protocol.stream.task_plan import Lesson, Schedule
from clinit.headtrain.protocol.study.parts import RateSchedule
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.headtrain.protocol.train.past import Anchors, OldClasses
from clinit.headtrain.protocol.train.step import Updates

Batches = Int[Tensor, "iterations batch"]
"""Numbers of the rows of each batch."""


class ResidentFeed:
    """All rows of the task, on the device."""

    def __init__(self, rows: LabelledRows, schedule: Batches) -> None:
        self.features, self.labels = rows.features, rows.labels
        self.batches = schedule.to(rows.labels.device)

    def prepare(self, start: int, stop: int) -> None:
        """Do nothing, because all steps can be read."""


class StreamedFeed:
    """The rows of prepared steps on the device; other rows stay in host memory or on disk."""

    def __init__(self, rows: LabelledRows, schedule: Batches, most_steps: int) -> None:
        device, dim = rows.labels.device, rows.features.shape[1]
        stored = most_steps * schedule.shape[1]
        self._rows = rows
        self._schedule = schedule.cpu()
        dtype = rows.gathered(torch.empty(0, dtype=torch.int64)).dtype
        # Pinned memory is copied to the device without an extra copy on the host.
        self._gathered = torch.empty(stored, dim, dtype=dtype, pin_memory=device.type == "cuda")
        self.features = torch.empty_like(self._gathered, device=device, pin_memory=False)
        self.labels = torch.empty(stored, dtype=torch.int64, device=device)
        self.batches = torch.zeros_like(schedule, device=device)

    def prepare(self, start: int, stop: int) -> None:
        """Gather the rows of these steps and copy them to the device."""
        wanted = self._schedule[start:stop]
        rows = wanted.reshape(-1)
        gathered = self._gathered[: len(rows)]
        if self._rows.is_stored:
            gathered.copy_(self._rows.gathered(rows))
        else:
            torch.index_select(self._rows.features, 0, rows, out=gathered)
        device = self.labels.device
        # Blocking: the next block must not overwrite memory that is still being copied.
        self.features[: len(rows)].copy_(gathered, non_blocking=False)
        self.labels[: len(rows)] = self._rows.labels[rows.to(device)]
        self.batches[start:stop] = torch.arange(len(rows), device=device).view(wanted.shape)


class DrawnFeed:
    """Stored new rows, and old rows that are drawn when their steps are prepared.

    A row number below the number of old classes means a drawn row of this class, mu + A z, with a
    new z at each place of a batch. Each step has its own draw, so that results do not depend on the
    number of steps that are prepared at a time.
    """

    def __init__(
        self, rows: LabelledRows, schedule: Batches, most_steps: int, old: OldClasses, seed: int
    ) -> None:
        """Store the new rows, and the statistics of old classes.

        Args:
            rows: Features and labels of the new rows.
            schedule: Row numbers; new rows are numbered after the old classes.
            most_steps: Maximum number of steps that are prepared at a time.
            old: The old classes.
            seed: Seed of the draws, which also depend on the kind of device.
        """
        device, places = rows.labels.device, most_steps * schedule.shape[1]
        self._rows, self._schedule = rows, schedule.cpu()
        self._labels = torch.from_numpy(old.labels).to(device)
        self._means, self._root = (
            torch.from_numpy(each).to(device, torch.float32) for each in (old.means, old.root)
        )
        self._random = torch.Generator(device).manual_seed(seed)
        self.features = self._means.new_empty(places, self._means.shape[1])
        self.labels = torch.empty(places, dtype=torch.int64, device=device)
        self.batches = torch.zeros_like(schedule, device=device)

    def prepare(self, start: int, stop: int) -> None:
        """Gather the new rows of these steps, and draw the old rows."""
        wanted, classes = self._schedule[start:stop], len(self._means)
        flat, device = wanted.reshape(-1), self.labels.device
        is_old = flat < classes
        old, new = (which.nonzero()[:, 0].to(device) for which in (is_old, ~is_old))
        stored = self._rows.take(flat[~is_old] - classes)
        self.features[new], self.labels[new] = stored.features.float(), stored.labels
        chosen = flat[is_old].to(device)
        noise = [
            self._means.new_empty(rows, len(self._root)).normal_(generator=self._random)
            for rows in (wanted < classes).sum(1).tolist()
        ]
        self.labels[old] = self._labels[chosen]
        self.features[old] = self._means[chosen] + torch.cat([z @ self._root for z in noise])
        self.batches[start:stop] = torch.arange(len(flat), device=device).view(wanted.shape)


Feed = ResidentFeed | StreamedFeed | DrawnFeed
"""Once step i is prepared, it reads `features[batches[i]]` and `labels[batches[i]]`."""


WARM_UP_STEPS = 3
"""Steps before the capture, in which libraries and the optimizer create their state, which a
capture cannot do."""


class Replayed:
    """Does a step a few times, then captures it and replays the capture.

    Each call must pass the same step, which must read and write the same device memory and must not
    wait for the device. The step is not stored: its owner refers to this object, and a reference
    cycle would keep the rows of a task in memory during the next task. Every call, before the
    capture too, does exactly one step, so that no state has to be restored.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._replay: Callable[[], None] | None = None

    def __call__(self, step: Callable[[], None]) -> None:
        """Do one step."""
        if self._steps < WARM_UP_STEPS:
            self._warm_up(step)
        else:
            if self._steps == WARM_UP_STEPS:
                self._replay = self._captured(step)
            (self._replay or step)()
        self._steps += 1

    def _warm_up(self, step: Callable[[], None]) -> None:
        """Do a step on a separate stream, as a capture does."""
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            step()
        current.wait_stream(stream)

    def _captured(self, step: Callable[[], None]) -> Callable[[], None] | None:
        """Return a function that replays a step; None if it cannot be captured."""
        try:
            return _capture(step)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warnings.warn(
                "the update of the heads could not be captured in a CUDA graph and is launched"
                f" call by call, which is slower: {error}",
                stacklevel=2,
            )
            return None


def _capture(step: Callable[[], None]) -> Callable[[], None]:
    """Record the launches of `step` without doing them; return a function that does them all."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


REPORT_STEPS = STEPS_AT_ONCE
"""Maximum number of steps between two reports of progress."""


RateShares = Float[Tensor, " iterations"] | None
"""Share of the learning rate at each step of a task, above 0; None: always 1."""


def rate_shares(schedule: RateSchedule, steps: int) -> RateShares:
    """Return the shares of a schedule over a task of some `steps`."""
    done = np.arange(1, steps + 1) / (steps + 1)
    if schedule == "constant":
        return None
    if schedule == "linear":
        return torch.from_numpy(1 - done).float()
    turn = np.interp(done, (0, 0.3, 1), (-np.pi, 0, np.pi))
    return torch.from_numpy((1 + np.cos(turn)) / 2).float()


class TaskSteps:
    """The updates of one task, done in order; captured on a CUDA device, plain on a CPU."""

    def __init__(self, updates: Updates, feed: Feed, schedule: Schedule, rates: RateShares) -> None:
        device = updates.labels.device
        iterations, batch = schedule.batches.shape
        heads = updates.losses.shape[1]
        self._updates, self._feed, self._done = updates, feed, 0
        self._stored = feed.features.new_empty(batch, feed.features.shape[1])
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        is_new = torch.from_numpy(np.arange(batch) < schedule.num_new[:, None])
        self._kinds = torch.stack([is_new, ~is_new], dim=1)[..., None].to(device)
        self._kind_rows = self._kinds.sum(2, dtype=torch.float32)
        self._zero = torch.zeros((), device=device)
        self._losses = torch.zeros(iterations, 2, heads, device=device)
        self._shares = None if rates is None else rates.to(device)
        is_captured = device.type == "cuda" and not updates.runs_own_code
        self._replayed = Replayed() if is_captured else None

    @property
    def losses(self) -> Float[np.ndarray, "iterations heads 2"]:
        """Mean losses of new and old rows before each update; NaN without a row."""
        return np.asarray(self._losses.transpose(1, 2).cpu().numpy())

    @classmethod
    def of(
        cls, bank: Bank, rows: LabelledRows, lesson: Lesson, holds: Anchors, old: OldClasses | None
    ) -> TaskSteps:
        """Return the updates of a bank on a task.

        Args:
            bank: Heads with the rows of the new classes initialised.
            rows: Features and labels of old and new rows; only of new rows if old rows are drawn.
            lesson: Numbers and labels of these rows, and the batches.
            holds: The penalty that holds each head near its present state.
            old: Statistics that old rows are drawn from; None: old rows are stored.
        """
        schedule, stream = lesson.schedule, lesson.stream
        batches, number = torch.from_numpy(schedule.batches), lesson.task.number
        feed: Feed
        if old is not None:
            seed = int(generator(stream.seed, Draw.OLD_ROWS, number).integers(2**63))
            feed = DrawnFeed(rows, batches, REPORT_STEPS, old, seed)
        elif rows.is_resident:
            feed = ResidentFeed(rows, batches)
        else:
            feed = StreamedFeed(rows, batches, REPORT_STEPS)
        updates = Updates(bank, stream.rows_per_batch, holds, lesson.task)
        shares = rate_shares(bank.heads[0].schedule or "constant", stream.iterations)
        return cls(updates, feed, schedule, shares)

    def until(self, stop: int) -> Iterator[int]:
        """Do the steps that are left before step `stop`; yield numbers of finished steps."""
        while self._done < stop:
            first, last = self._done, min(self._done + REPORT_STEPS, stop)
            self.run(first, last)
            yield last - first

    def run(self, start: int, stop: int) -> None:
        """Do the steps `start` to `stop` - 1; calls must follow each other without gaps."""
        self._feed.prepare(start, stop)
        self._done = stop
        for _ in range(start, stop):
            if self._replayed is None:
                self._advance()
            else:
                self._replayed(self._advance)

    def _advance(self) -> None:
        feed, updates, number = self._feed, self._updates, self._number
        batch = torch.index_select(feed.batches, 0, number).view(-1)
        torch.index_select(feed.features, 0, batch, out=self._stored)
        torch.index_select(feed.labels, 0, batch, out=updates.labels)
        updates.features.copy_(self._stored)
        shares = self._shares
        updates.update(1.0 if shares is None else torch.index_select(shares, 0, number)[0])
        # The mean loss of new and of old rows is recorded; NaN (0 / 0) without rows.
        kinds = torch.index_select(self._kinds, 0, number)[0]
        sums = torch.where(kinds, updates.losses, self._zero).sum(1)
        means = sums / torch.index_select(self._kind_rows, 0, number)[0]
        self._losses.index_copy_(0, number, means[None])
        number.add_(1)
