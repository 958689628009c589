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

Rows whose logits are stored together have the same width and stay together: no row is filled up to
the width of a later head, so no fill value can enter an error.

Source: P. Buzzega, M. Boschini, A. Porrello, D. Abati, S. Calderara, "Dark experience for general
continual learning: a strong, simple baseline", NeurIPS 2020, Eq. 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.study.methods import DerppConfig
from clinit.headtrain.top.activations import Batch, RowReader, sent
from clinit.headtrain.top.method import TopMethod, TopModel, sample_losses
from clinit.headtrain.top.network import CLASSIFIER, CLASSIFIER_BIAS, CLASSIFIER_WEIGHT
from clinit.headtrain.train.losses import loss_named


class Derpp(TopMethod):
    """Train on new and old rows, and hold on to the former logits of the old ones."""

    def __init__(self, config: DerppConfig, *, loss_name: str = "ce") -> None:
        loss_named(loss_name)
        self._config = config
        self._loss_name = loss_name
        self._teacher: SnapshotTeacher | StoredTeacher | None = None
        if config.alpha:
            self._teacher = StoredTeacher() if config.teacher == "stored" else SnapshotTeacher()
        if isinstance(self._teacher, StoredTeacher):
            self.draws = 2  # Eq. 6 has a draw of old rows for each of its terms

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
                found = self._teacher.logits(model, old)
                total = total + self._config.alpha * self._distance(logits[-len(old) :], found)
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

    def _distance(
        self, logits: Float[Tensor, "old classes"], found: FormerLogits
    ) -> Float[Tensor, ""]:
        """Return the mean of d over old rows."""
        parts = []
        for places, former in found:
            squares = (logits[places, : former.shape[1]] - former).square()
            parts.append(squares.mean(1) if self._config.distance == "mean" else squares.sum(1))
        return torch.cat(parts).mean()


READ_ROWS = 256
"""Rows whose logits are computed at a time when they are stored."""

FormerLogits = list[tuple[slice | Int[Tensor, " _"], Float[Tensor, " _ _"]]]
"""Places in a batch, and the former logits (places, classes seen by then) of these rows."""


class SnapshotTeacher:
    """The network as it was when the task began, over the classes before the task.

    Only what is trained is copied: everything else is the same until the task is over.
    """

    def __init__(self) -> None:
        self._parameters: dict[str, Tensor] = {}

    def begin(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Copy what is trained; of the classifier, only the rows of earlier classes."""
        self._parameters = {}
        if len(rows.old):
            for name, values in model.trainable().items():
                kept = values[: task.start] if name in CLASSIFIER else values
                self._parameters[name] = kept.detach().clone()

    def end(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Forget the copy."""
        self._parameters = {}

    @torch.no_grad()
    def logits(self, model: TopModel, old: Batch) -> FormerLogits:
        """Return the logits of the copy."""
        assert self._parameters, "the task began without old rows"
        blocks = {name: v for name, v in self._parameters.items() if name not in CLASSIFIER}
        features = model.features_at(blocks, old.activations).float()
        weight, bias = (self._parameters[name] for name in (CLASSIFIER_WEIGHT, CLASSIFIER_BIAS))
        return [(slice(None), torch.addmm(bias, features, weight.t()))]

    def state(self) -> dict[str, Tensor]:
        """Return the copy."""
        return dict(self._parameters)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over a copy."""
        self._parameters = dict(state)


class StoredTeacher:
    """The logits of each row at the end of the task in which its class was learnt.

    Those of base rows are computed before the first step. In float32, 24,000 rows and 1,365
    classes take 131 MB on the device of the model.
    """

    def __init__(self) -> None:
        self._stored = StoredLogits()

    def begin(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Store the logits of the base, and forget rows that are no longer rehearsed."""
        if task.number == 1:
            self._stored.add(
                rows.old, _logits(model, rows.batches(rows.old, READ_ROWS), task.start)
            )
        self._stored.keep(rows.old)

    def end(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Store the logits of the rows that later tasks may rehearse."""
        self._stored.add(rows.kept, _logits(model, rows.batches(rows.kept, READ_ROWS), task.stop))

    def logits(self, model: TopModel, old: Batch) -> FormerLogits:
        """Return the stored logits of the rows."""
        return list(self._stored.find(old.rows))

    def state(self) -> dict[str, Tensor]:
        """Return rows and logits."""
        return self._stored.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over rows and logits."""
        self._stored.restore(state)


@torch.no_grad()
def _logits(
    model: TopModel, batches: Iterator[Batch], classes: int
) -> Float[Tensor, "rows classes"]:
    """Return the first `classes` logits of all rows, in float32."""
    parts = [model.logits(model.features(batch.activations))[:, :classes] for batch in batches]
    return torch.cat(parts).float() if parts else torch.empty(0, classes)


@dataclass(frozen=True, slots=True, eq=False)
class LogitBlock:
    """Rows that were stored together."""

    rows: Int[np.ndarray, " rows"]
    """Pool rows, sorted."""
    logits: Float[Tensor, "rows width"]

    @classmethod
    def of(cls, rows: Int[np.ndarray, " rows"], logits: Float[Tensor, "rows width"]) -> LogitBlock:
        """Return a block of these rows, sorted."""
        order = np.argsort(rows)
        return cls(rows[order], logits[_index(order, logits)])

    def only(self, kept: Int[np.ndarray, " kept"]) -> LogitBlock:
        """Return the block without the rows that are not in `kept`."""
        chosen = np.flatnonzero(np.isin(self.rows, kept))
        return LogitBlock(self.rows[chosen], self.logits[_index(chosen, self.logits)])


class StoredLogits:
    """Logits by pool row, on the device that they were computed on."""

    def __init__(self) -> None:
        self._blocks: list[LogitBlock] = []

    @property
    def rows(self) -> Int[np.ndarray, " rows"]:
        """The pool rows that have logits."""
        none = np.empty(0, dtype=np.int64)
        return np.concatenate([none, *(block.rows for block in self._blocks)])

    def add(self, rows: Int[np.ndarray, " rows"], logits: Float[Tensor, "rows width"]) -> None:
        """Store the logits of rows.

        Raises:
            ValueError: If one of them is there already.
        """
        twice = np.intersect1d(rows, self.rows)
        if len(twice):
            raise ValueError(f"{len(twice):,} rows have logits already, for example row {twice[0]}")
        if len(rows):
            self._blocks.append(LogitBlock.of(rows, logits))

    def keep(self, rows: Int[np.ndarray, " rows"]) -> None:
        """Forget all rows but these.

        Raises:
            ValueError: If one of them has no stored logits.
        """
        _refuse_missing(np.setdiff1d(rows, self.rows))
        blocks = [block.only(rows) for block in self._blocks]
        self._blocks = [block for block in blocks if len(block.rows)]

    def find(
        self, rows: Int[np.ndarray, " batch"]
    ) -> list[tuple[Int[Tensor, " _"], Float[Tensor, " _ _"]]]:
        """Return places in `rows` and the logits (places, width) stored there, per block.

        Raises:
            ValueError: If one of the rows has no stored logits.
        """
        parts = []
        missing = np.ones(len(rows), dtype=bool)
        for block in self._blocks:
            place = np.searchsorted(block.rows, rows).clip(max=len(block.rows) - 1)
            hit = block.rows[place] == rows
            missing &= ~hit
            if hit.any():
                found = _index(np.flatnonzero(hit), block.logits)
                parts.append((found, block.logits[_index(place[hit], block.logits)]))
        _refuse_missing(rows[missing])
        return parts

    def state(self) -> dict[str, Tensor]:
        """Return rows and logits of each block."""
        tensors = {}
        for number, block in enumerate(self._blocks):
            tensors[f"rows.{number}"] = torch.from_numpy(block.rows)
            tensors[f"logits.{number}"] = block.logits
        return tensors

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over a `state()`."""
        self._blocks = [
            LogitBlock(state[f"rows.{number}"].cpu().numpy(), state[f"logits.{number}"])
            for number in range(len(state) // 2)
        ]


def _index(places: Int[np.ndarray, " places"], values: Tensor) -> Int[Tensor, " places"]:
    return sent(torch.from_numpy(places), values.device)


def _refuse_missing(rows: Int[np.ndarray, " rows"]) -> None:
    if len(rows):
        raise ValueError(f"{len(rows):,} rows have no stored logits, for example row {rows[0]}")
