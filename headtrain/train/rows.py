"""Features and labels where a bank reads them, and the feed of its steps.

A step gathers `features[batches[i]]` and `labels[batches[i]]`, both of which stay where they
are. Where the rows of the task are on the device, that is all. Where they are in host memory or on
disk, these tensors hold the rows of the next few steps, gathered by the CPU, and `batches` counts
through them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.extract.cache.features import StoredRows
from clinit.headtrain.array import FeatureRows, StreamedRows, as_array, placed
from clinit.headtrain.ram import is_resident


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """Rows labelled by head row.

    Labels are on the device of the bank; features are there too, in host memory, or on disk.
    """

    features: Float[Any, "rows dim"]
    """In their stored type: a tensor, or `StoredRows`."""
    labels: Int[Tensor, " rows"]

    @classmethod
    def on(
        cls,
        device: torch.device,
        features: Float[Any, "rows dim"],
        labels: Int[np.ndarray, " rows"],
    ) -> LabelledRows:
        """Move labels to `device`, and features too where they are in memory and fit."""
        moved = torch.from_numpy(labels).to(device)
        if isinstance(features, StoredRows):
            return cls(features, moved)
        place = device if is_resident(features.nbytes, device) else torch.device("cpu")
        return cls(torch.from_numpy(features).to(place), moved)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_resident(self) -> bool:
        """Whether features are where the labels are."""
        return not self.is_stored and self.features.device == self.labels.device

    @property
    def is_stored(self) -> bool:
        """Whether features are on disk."""
        return isinstance(self.features, StoredRows)

    def arrays(self) -> FeatureRows:
        """Return the features for array code: where they are, or streamed from there."""
        if self.is_resident:
            return as_array(self.features)
        host = self.features if self.is_stored else self.features.numpy()
        return StreamedRows(host, partial(placed, device=self.labels.device))

    def first(self, rows: int) -> LabelledRows:
        """Return the first `rows` rows, without a copy."""
        part = slice(0, rows)
        features = self.features.select(part) if self.is_stored else self.features[part]
        return LabelledRows(features, self.labels[part])

    def take(self, rows: Int[Tensor, " taken"]) -> LabelledRows:
        """Copy rows to the device of the labels."""
        device = self.labels.device
        return LabelledRows(self.gathered(rows).to(device), self.labels[rows.to(device)])

    def subset(self, rows: Int[Tensor, " taken"]) -> LabelledRows:
        """Choose rows; features stay where they are: on the device, in host memory or on disk."""
        chosen = self.features.select(rows.cpu().numpy()) if self.is_stored else self.gathered(rows)
        return LabelledRows(chosen, self.labels[rows.to(self.labels.device)])

    def gathered(self, rows: Int[Tensor, " taken"]) -> Float[Tensor, "taken dim"]:
        """Copy the features of rows where they are; those on disk into host memory."""
        if self.is_stored:
            return torch.from_numpy(self.features[rows.cpu().numpy()])
        found: Tensor = self.features[rows.to(self.features.device)]
        return found

    def widened(self, part: slice) -> Float[Tensor, "part dim"]:
        """Copy the features of a part of the rows to the device of the labels, as float32."""
        found = self.features[part]
        found = torch.from_numpy(found) if self.is_stored else found
        return found.to(self.labels.device).float()


class ResidentFeed:
    """All rows of the task, on the device."""

    def __init__(self, rows: LabelledRows, schedule: Int[Tensor, "iterations batch"]) -> None:
        self.features, self.labels = rows.features, rows.labels
        self.batches = schedule.to(rows.labels.device)

    def prepare(self, start: int, stop: int) -> None:
        """Do nothing: all steps are readable."""


class StreamedFeed:
    """The rows of as many steps as are announced at a time; all others are on host or disk."""

    def __init__(
        self, rows: LabelledRows, schedule: Int[Tensor, "iterations batch"], most_steps: int
    ) -> None:
        device, dim = rows.labels.device, rows.features.shape[1]
        stored = most_steps * schedule.shape[1]
        self._rows = rows
        self._schedule = schedule.cpu()
        dtype = rows.gathered(torch.empty(0, dtype=torch.int64)).dtype
        # From pinned memory a copy to the device needs no copy on the host before it.
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
        # Without waiting, the next block could overwrite what is still being copied.
        self.features[: len(rows)].copy_(gathered, non_blocking=False)
        self.labels[: len(rows)] = self._rows.labels[rows.to(device)]
        self.batches[start:stop] = torch.arange(len(rows), device=device).view(wanted.shape)


Feed = ResidentFeed | StreamedFeed
"""`features[batches[i]]` and `labels[batches[i]]` are what step i reads, once it is prepared."""


def feed_of(rows: LabelledRows, schedule: Int[Tensor, "iterations batch"], most_steps: int) -> Feed:
    """Return the feed for where the features are.

    Args:
        rows: Rows of the task.
        schedule: Indices into them, one line per step.
        most_steps: Most steps that are announced at a time.
    """
    if rows.is_resident:
        return ResidentFeed(rows, schedule)
    return StreamedFeed(rows, schedule, most_steps)
