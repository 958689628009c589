"""Input of the steps of a task: rows on the device, streamed rows, or drawn rows.

Step i reads `features[batches[i]]` and `labels[batches[i]]`, tensors that never move. If the rows
of the task are on the device, these tensors contain all of them. If rows are in host memory or on
disk, or if old rows are drawn from statistics, the tensors contain the rows of the next few steps,
and `batches` numbers these rows in order.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from clinit.headtrain.protocol.train.heads import LabelledRows
from clinit.headtrain.protocol.train.old_classes import OldClasses


class ResidentFeed:
    """All rows of the task, on the device."""

    def __init__(self, rows: LabelledRows, schedule: Int[Tensor, "iterations batch"]) -> None:
        self.features, self.labels = rows.features, rows.labels
        self.batches = schedule.to(rows.labels.device)

    def prepare(self, start: int, stop: int) -> None:
        """Do nothing, because all steps can be read."""


class StreamedFeed:
    """The rows of prepared steps on the device; other rows stay in host memory or on disk."""

    def __init__(
        self, rows: LabelledRows, schedule: Int[Tensor, "iterations batch"], most_steps: int
    ) -> None:
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
        self,
        rows: LabelledRows,
        schedule: Int[Tensor, "iterations batch"],
        most_steps: int,
        old: OldClasses,
        seed: int,
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
