"""Features and labels where a bank reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.array import as_array, placed
from clinit.headtrain.feature_rows import FeatureRows, StreamedRows
from clinit.headtrain.residency import is_resident


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """Rows labelled by head row.

    Labels are on the device of the bank; features are there too, or in host memory.
    """

    features: Float[Tensor, "rows dim"]
    """In their stored type."""
    labels: Int[Tensor, " rows"]

    @classmethod
    def on(
        cls,
        device: torch.device,
        features: Float[np.ndarray, "rows dim"],
        labels: Int[np.ndarray, " rows"],
    ) -> LabelledRows:
        """Move labels to `device`, and features too where they fit."""
        place = device if is_resident(features.nbytes, device) else torch.device("cpu")
        return cls(torch.from_numpy(features).to(place), torch.from_numpy(labels).to(device))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_resident(self) -> bool:
        """Whether features are where the labels are."""
        return self.features.device == self.labels.device

    def arrays(self) -> FeatureRows:
        """Return the features for array code: where they are, or streamed from host memory."""
        if self.is_resident:
            return as_array(self.features)
        return StreamedRows(self.features.numpy(), partial(placed, device=self.labels.device))

    def first(self, rows: int) -> LabelledRows:
        """Return the first `rows` rows, without a copy."""
        return LabelledRows(self.features[:rows], self.labels[:rows])

    def take(self, rows: Int[Tensor, " taken"]) -> LabelledRows:
        """Copy rows to the device of the labels."""
        features = self.features[rows.to(self.features.device)]
        device = self.labels.device
        return LabelledRows(features.to(device), self.labels[rows.to(device)])

    def widened(self, part: slice) -> Float[Tensor, "part dim"]:
        """Copy the features of a part of the rows to the device of the labels, as float32."""
        return self.features[part].to(self.labels.device).float()
