"""Dark experience replay: old rows are rehearsed with their labels and with former logits.

    loss = mean of l over new rows + beta (mean of l over old rows) + alpha (mean of d over them)

with d the squared difference between the logits of a row and its former logits, from a *teacher*:

    snapshot   the network when the task began (after its new rows were initialised), on the same
               old rows: the form that the authors of the paper use in related work
    stored     the logits of the row at the end of the task in which its class was learnt; for base
               classes, before the first step. One draw of old rows is for alpha, another for beta.
               Eq. 6 of Buzzega et al., except that they store logits during the task, not at its
               end: here a buffer has a quota of rows per class, and is not a reservoir.

d is computed over the classes that the teacher had seen: before the task (snapshot), or up to the
end of the task of the row (stored). Later classes do not enter d.

    distance mean   (1 / C') sum over the C' classes: as in the authors' code of both forms
    distance sum    sum over the C' classes: the squared norm that Eq. 6 prints. With a thousand
                    classes, alpha = 0.1 then weighs like alpha = 100 does with `mean`.

The paper cites Eq. 6: `stored` with `sum`. Its code is not public; the defaults, `snapshot` with
`mean`, follow related code of its authors. With `mean`, the weight of alpha = 0.1 does not depend
on the number of classes.

A task without old rows (an empty buffer, a base without training rows) is learnt with the mean
loss of new rows only.

Logits are stored in blocks of equal width, one per task. They are not padded to the width of later
heads, so that no padding can enter the loss.

Source: P. Buzzega, M. Boschini, A. Porrello, D. Abati, S. Calderara, "Dark experience for general
continual learning: a strong, simple baseline", NeurIPS 2020, Eq. 6.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.heads.losses import loss_named
from clinit.headtrain.protocol.stream.scenario import Task
from clinit.headtrain.protocol.study.methods import DerppConfig
from clinit.headtrain.top.activations import Batch, TaskReader, sent
from clinit.headtrain.top.network import (
    CLASSIFIER,
    CLASSIFIER_BIAS,
    CLASSIFIER_WEIGHT,
    PlasticModel,
)
from clinit.headtrain.top.training import TopMethod, sample_losses

FormerLogits = list[tuple[slice | Int[Tensor, " _"], Float[Tensor, " _ _"]]]
"""Places in a batch, and the former logits (places, classes seen by then) of these rows."""


class Derpp(TopMethod):
    """Train on weighted new and old rows; `alpha` adds the distance to former logits."""

    def __init__(self, config: DerppConfig, loss_name: str) -> None:
        loss_named(loss_name)
        self._config = config
        self._loss_name = loss_name

    @classmethod
    def of(cls, config: DerppConfig, loss_name: str = "ce") -> Derpp:
        """Return the method with the configured teacher."""
        kind = StoredTeacher if config.teacher == "stored" else SnapshotTeacher
        return (kind if config.alpha else cls)(config, loss_name)

    def former(self, model: PlasticModel, old: Batch) -> FormerLogits:
        """Return the former logits of old rows."""
        return []

    def loss(
        self, model: PlasticModel, batch: Batch, second: Batch | None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " batch"]]:
        """Return the weighted sum of the three terms, and the loss of each row of `batch`."""
        read = [batch.activations] if second is None else [batch.activations, second.activations]
        logits = model.logits(model.features(torch.cat(read)))
        losses = sample_losses(self._loss_name, logits[: len(batch)], batch.labels)
        total = losses.new_zeros(())
        if batch.num_new:
            total = total + losses[: batch.num_new].mean()
        if batch.num_old:
            total = total + self._config.beta * losses[batch.num_new :].mean()
            old = second or batch.old()
            distances = []
            for places, former in self.former(model, old):
                squares = (logits[-len(old) :][places, : former.shape[1]] - former).square()
                mean = self._config.distance == "mean"
                distances.append(squares.mean(1) if mean else squares.sum(1))
            if distances:
                total = total + self._config.alpha * torch.cat(distances).mean()
        return total, losses.detach()


READ_ROWS = 256
"""Rows whose logits are computed at a time when they are stored."""


class SnapshotTeacher(Derpp):
    """The network when the task began, over the classes before the task.

    Only trained parameters are copied, because nothing else changes during the task.
    """

    def __init__(self, config: DerppConfig, loss_name: str) -> None:
        super().__init__(config, loss_name)
        self.memory: dict[str, Tensor] = {}

    def begin(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Copy the trained parameters; of the classifier, only the rows of earlier classes."""
        self.memory = {}
        if len(rows.old):
            for name, values in model.trainable().items():
                kept = values[: task.start] if name in CLASSIFIER else values
                self.memory[name] = kept.detach().clone()

    def end(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Delete the copy."""
        self.memory = {}

    @torch.no_grad()
    def former(self, model: PlasticModel, old: Batch) -> FormerLogits:
        """Return the logits of the copy."""
        assert self.memory, "the task began without old rows"
        blocks = {name: v for name, v in self.memory.items() if name not in CLASSIFIER}
        features = model.features_at(blocks, old.activations).float()
        weight, bias = (self.memory[name] for name in (CLASSIFIER_WEIGHT, CLASSIFIER_BIAS))
        return [(slice(None), torch.addmm(bias, features, weight.t()))]


class StoredTeacher(Derpp):
    """The logits of each row at the end of the task in which its class was learnt.

    Logits of base rows are computed before the first step. In float32, 24,000 rows and 1,365
    classes take 131 MB on the device of the model.
    """

    draws = 2  # Eq. 6 has separate draws of old rows for its two terms

    def __init__(self, config: DerppConfig, loss_name: str) -> None:
        super().__init__(config, loss_name)
        self.memory: list[tuple[np.ndarray, Tensor]] = []
        """Pool rows that were stored together, sorted, and their logits (rows, width)."""

    def begin(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Store the logits of the base, and delete rows that are no longer rehearsed."""
        if task.number == 1:
            self._store(model, rows, rows.old, task.start)
        blocks = []
        for stored, logits in self.memory:
            kept = np.flatnonzero(np.isin(stored, rows.old))
            if len(kept):
                blocks.append((stored[kept], logits[_index(kept, logits)]))
        self.memory = blocks

    def end(self, model: PlasticModel, task: Task, rows: TaskReader) -> None:
        """Store the logits of the rows that later tasks may rehearse."""
        self._store(model, rows, rows.kept, task.stop)

    @torch.no_grad()
    def _store(
        self, model: PlasticModel, rows: TaskReader, chosen: Int[np.ndarray, " _"], classes: int
    ) -> None:
        parts = [
            model.logits(model.features(batch.activations))[:, :classes]
            for batch in rows.batches(chosen, READ_ROWS)
        ]
        if parts:
            logits, order = torch.cat(parts).float(), np.argsort(chosen)
            self.memory.append((chosen[order], logits[_index(order, logits)]))

    def former(self, model: PlasticModel, old: Batch) -> FormerLogits:
        """Return the stored logits of the rows."""
        found: FormerLogits = []
        for rows, logits in self.memory:
            place = np.searchsorted(rows, old.rows).clip(max=len(rows) - 1)
            hit = np.flatnonzero(rows[place] == old.rows)
            if len(hit):
                found.append((_index(hit, logits), logits[_index(place[hit], logits)]))
        assert sum(len(logits) for _, logits in found) == len(old), "a row was never stored"
        return found


def _index(places: Int[np.ndarray, " places"], values: Tensor) -> Int[Tensor, " places"]:
    return sent(torch.from_numpy(places), values.device)
