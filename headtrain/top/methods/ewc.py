"""Elastic weight consolidation: what mattered for earlier classes is held by springs.

    loss = mean of l over the batch + (lambda / 2) sum_k F_k (theta_k - theta*_k)^2

with theta* the parameters at the end of an earlier task and F the diagonal of the empirical
Fisher information there (`clinit.headtrain.top.methods.fisher`: true labels, the training loss,
mean over samples of squared gradients of single samples).

There are no old rows in a batch. The Fisher information of a task is measured at its end, on
`samples` of its training rows, drawn by the seed without replacement; that of the base before the
first step, on `samples` rows of base classes, with the logits of base classes only. Where the
base has no training row, it has no anchor, and nothing holds it.

    task      every task has its anchor, and the penalties add up (Kirkpatrick et al., 2017)
    online    one anchor, the latest; F <- gamma F + F_task (Schwarz et al., 2018)

Rows of the classifier whose classes had not been seen at an anchor are free of it, also where
`head_width` is `full` and they were there: a spring would hold them at random numbers.

Source: J. Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS
114(13), 2017, Eq. 3; J. Schwarz et al., "Progress & compress: a scalable framework for continual
learning", ICML 2018.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.errors import ExperimentError
from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.study import EwcConfig
from clinit.headtrain.top.activations.batches import Batch, RowReader
from clinit.headtrain.top.methods.fisher import chunk_size, diagonal_fisher
from clinit.headtrain.top.methods.interface import TopModel
from clinit.headtrain.top.methods.quadratic import Quadratic
from clinit.headtrain.top.methods.rehearsal import Rehearsal


class Ewc:
    """Train on new rows, and pull what mattered back to where it was."""

    data_method = "naive"
    draws = 1

    def __init__(self, config: EwcConfig, *, loss_name: str = "ce", seed: int = 0) -> None:
        self._config = config
        self._plain = Rehearsal(loss_name=loss_name, data_method=self.data_method)
        self._seed = seed
        self._springs: Quadratic | None = None

    @property
    def base_sample(self) -> int:
        """Rows of base classes for the first anchor; none are needed where lambda is 0."""
        return self._config.samples if self._config.lam else 0

    def begin(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Anchor the base, before the first task.

        Raises:
            ExperimentError: If low-rank parts are trained: they are drawn anew at each task.
        """
        low_rank = [name for name in model.trainable() if "parametrizations" in name]
        if low_rank and self._config.lam:
            raise ExperimentError(
                f"EWC holds parameters from task to task, but {low_rank[0]} is low-rank and lives"
                " for one task",
                remedy="Train the blocks themselves with --full-rank.",
            )
        if task.number == 1 and len(rows.old):
            self._anchor(model, rows, rows.old, classes=task.start, number=0)

    def loss(
        self, model: TopModel, batch: Batch, second: Batch | None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " batch"]]:
        """Return mean loss plus penalty, and the losses alone."""
        loss, losses = self._plain.loss(model, batch, second)
        if self._springs is not None:
            loss = loss + self._config.lam / 2 * self._springs.value(model.trainable())
        return loss, losses

    def end(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Anchor the task."""
        self._anchor(model, rows, rows.new, classes=task.stop, number=task.number)

    def state(self) -> dict[str, Tensor]:
        """Return the springs."""
        if self._springs is None:
            return {}
        return {
            "constant": self._springs.constant,
            **{f"fisher.{name}": values for name, values in self._springs.fisher.items()},
            **{f"centre.{name}": values for name, values in self._springs.centre.items()},
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over the springs of a checkpoint."""
        if not state:
            self._springs = None
            return
        fisher, centre = (
            {
                name.removeprefix(prefix): values
                for name, values in state.items()
                if name.startswith(prefix)
            }
            for prefix in ("fisher.", "centre.")
        )
        self._springs = Quadratic(fisher, centre, state["constant"])

    def _anchor(
        self,
        model: TopModel,
        rows: RowReader,
        candidates: Int[np.ndarray, " rows"],
        *,
        classes: int,
        number: int,
    ) -> None:
        """Measure the Fisher information on a sample of the rows, and add the springs."""
        if not self._config.lam:
            return
        random = generator(self._seed, Draw.FISHER, number)
        sample = np.sort(random.permutation(candidates)[: self._config.samples])
        fisher = diagonal_fisher(
            model,
            rows.batches(sample, chunk_size(model)),
            classes=classes,
            loss_name=self._plain.loss_name,
        )
        with torch.no_grad():
            added = Quadratic.around(fisher, model.trainable())
            if self._springs is None:
                self._springs = added
            elif self._config.mode == "task":
                self._springs = self._springs + added
            else:
                self._springs = self._springs.online(added, self._config.gamma)
