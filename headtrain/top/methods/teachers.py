"""Former logits of a row: from a copy of the network, or stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.top.activations.batches import Batch, RowReader
from clinit.headtrain.top.methods.interface import TopModel
from clinit.headtrain.top.methods.stored_logits import StoredLogits
from clinit.headtrain.top.network.plastic import CLASSIFIER, CLASSIFIER_BIAS, CLASSIFIER_WEIGHT

READ_ROWS = 256
"""Rows whose logits are computed at a time when they are stored."""

Said = list[tuple[slice | Int[Tensor, " _"], Float[Tensor, " _ _"]]]
"""Places in a batch, and the former logits (places, classes seen by then) of these rows."""


class Teacher(Protocol):
    """Gives the former logits of old rows."""

    def begin(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Prepare for a task; nothing is trained yet."""
        ...

    def end(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Remember what later tasks need of this one."""
        ...

    def said(self, model: TopModel, old: Batch) -> Said:
        """Return former logits; together the places are all rows of `old`, each once."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return all that it remembers."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over a `state()`."""
        ...


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
    def said(self, model: TopModel, old: Batch) -> Said:
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

    def said(self, model: TopModel, old: Batch) -> Said:
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
