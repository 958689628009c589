"""Dark experience replay: old rows are rehearsed with their labels and with former logits.

    loss = mean of l over new rows + beta (mean of l over old rows) + alpha (mean of d over them)

with d the squared difference between the logits of a row and those that its teacher gave it:

    snapshot   the network as it was when the task began (after its new rows were initialised), on
               the same old rows: the form that the authors of the paper use in related work
    stored     the logits of the row at the end of the task in which its class was learnt, for base
               classes before the first step; one draw of old rows for alpha, another one for beta.
               Eq. 6 of Buzzega et al., except that they store logits during the task, not at its
               end: here the rows of a buffer are those of a quota per class, not of a reservoir.

d runs over the classes that the teacher had seen: those before the task (snapshot), those up to
the end of the task of the row (stored). Later columns of a head that has grown have no partner,
and none is made up for them.

    distance mean   (1 / C') sum over the C' classes: what the authors' code of both forms computes
    distance sum    sum over the C' classes: the squared norm that Eq. 6 prints. With a thousand
                    classes, alpha = 0.1 then weighs like alpha = 100 does with `mean`.

The paper names Eq. 6: `stored` with `sum`. The defaults are `snapshot` with `mean`, the form of its
authors' related code, since that for the paper is not public; with a mean, alpha = 0.1 weighs the
same whatever the width of the head.

A task without old rows (an empty buffer, a base without training rows) is learnt with the mean
loss of new rows alone.

Source: P. Buzzega, M. Boschini, A. Porrello, D. Abati, S. Calderara, "Dark experience for general
continual learning: a strong, simple baseline", NeurIPS 2020, Eq. 6.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.study import DerppConfig
from clinit.headtrain.top.activations.batches import Batch, RowReader
from clinit.headtrain.top.methods.interface import TopModel
from clinit.headtrain.top.methods.sample_losses import sample_losses
from clinit.headtrain.top.methods.teachers import Said, SnapshotTeacher, StoredTeacher, Teacher
from clinit.headtrain.train.losses import loss_named


class Derpp:
    """Train on new and old rows, and hold on to the former logits of the old ones."""

    data_method = "rehearsal"
    base_sample = 0

    def __init__(self, config: DerppConfig, *, loss_name: str = "ce") -> None:
        loss_named(loss_name)
        self._config = config
        self._loss_name = loss_name
        self._teacher: Teacher | None = None
        if config.alpha:
            self._teacher = StoredTeacher() if config.teacher == "stored" else SnapshotTeacher()

    @property
    def draws(self) -> int:
        """Two where logits are stored: Eq. 6 has a draw of old rows for each of its terms."""
        return 2 if isinstance(self._teacher, StoredTeacher) else 1

    def begin(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Let the teacher look at the network before the first step."""
        if self._teacher is not None:
            self._teacher.begin(model, task, rows)

    def loss(
        self, model: TopModel, batch: Batch, second: Batch | None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " batch"]]:
        """Return the weighted sum of the three terms, and the loss of each row of `batch`.

        Raises:
            ValueError: If there are old rows, but no second draw although `draws` is 2.
        """
        if batch.num_old and second is None and self.draws == 2:
            raise ValueError(f"{batch.num_old} old rows without the second draw of eq. 6")
        read = [batch.activations] if second is None else [batch.activations, second.activations]
        logits = model.logits(model.features(torch.cat(read)))
        losses = sample_losses(self._loss_name, logits[: len(batch)], batch.labels)
        total = losses.new_zeros(())
        if batch.num_new:
            total = total + losses[: batch.num_new].mean()
        if batch.num_old:
            total = total + self._config.beta * losses[batch.num_new :].mean()
            if self._teacher is not None:
                old = second or batch.old()
                said = self._teacher.said(model, old)
                total = total + self._config.alpha * self._distance(logits[-len(old) :], said)
        return total, losses.detach()

    def end(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Let the teacher look at the network after the last step."""
        if self._teacher is not None:
            self._teacher.end(model, task, rows)

    def state(self) -> dict[str, Tensor]:
        """Return what the teacher remembers."""
        return {} if self._teacher is None else self._teacher.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what the teacher remembers."""
        if self._teacher is not None:
            self._teacher.restore(state)

    def _distance(self, logits: Float[Tensor, "old classes"], said: Said) -> Float[Tensor, ""]:
        """Return the mean of d over old rows."""
        parts = []
        for places, former in said:
            squares = (logits[places, : former.shape[1]] - former).square()
            parts.append(squares.mean(1) if self._config.distance == "mean" else squares.sum(1))
        return torch.cat(parts).mean()
