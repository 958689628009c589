"""Plain training on the rows of the task and those of the buffer: the mean loss of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.top.activations.batches import Batch, RowReader
from clinit.headtrain.top.methods.interface import TopModel
from clinit.headtrain.top.methods.sample_losses import sample_losses
from clinit.headtrain.train.losses import loss_named

TRAINED_METHODS = ("rehearsal", "naive", "joint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Minimise the mean loss: rehearsal, and the baselines, which differ in their rows."""

    loss_name: str = "ce"
    """One of `clinit.headtrain.train.losses.LOSSES`."""
    data_method: str = "rehearsal"
    """`rehearsal`; `naive` is plain fine-tuning on new rows, `joint` reads all rows seen."""
    draws: int = 1
    base_sample: int = 0

    def __post_init__(self) -> None:
        loss_named(self.loss_name)
        if self.data_method not in TRAINED_METHODS:
            raise ValueError(
                f"data_method is {self.data_method!r}, expected one of {TRAINED_METHODS}"
            )

    def begin(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Do nothing."""

    def loss(
        self, model: TopModel, batch: Batch, second: Batch | None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " batch"]]:
        """Return the mean loss of new and old rows together, and the loss of each."""
        logits = model.logits(model.features(batch.activations))
        losses = sample_losses(self.loss_name, logits, batch.labels)
        return losses.mean(), losses.detach()

    def end(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Do nothing."""

    def state(self) -> dict[str, Tensor]:
        """Return nothing: the method learns nothing but the parameters."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Do nothing."""
