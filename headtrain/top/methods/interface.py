"""What a method of the top-block path decides: the loss of a batch, and what it remembers.

The learner owns the network, the optimizer and the rows. Around each task it calls

    begin    once the rows of the new classes are initialised, before the first step
    loss     at each step
    end      after the last step; low-rank parts are merged by then

and between any two steps it may store `state()` in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from clinit.headtrain.stream.scenario import Task
from clinit.headtrain.top.activations.batches import Batch, RowReader


@runtime_checkable
class TopModel(Protocol):
    """The plastic part of a network: activations to features to logits."""

    @property
    def num_classes(self) -> int:
        """Number of rows of the classifier as it is now."""
        ...

    def features(self, activations: Float[Tensor, " batch *shape"]) -> Float[Tensor, "batch dim"]:
        """Return what the classifier reads; differentiable."""
        ...

    def features_at(
        self, parameters: Mapping[str, Tensor], activations: Float[Tensor, " batch *shape"]
    ) -> Float[Tensor, "batch dim"]:
        """Return the features with `parameters` in place of the model's own.

        Names are those of `trainable`; what is not named keeps its value, and the classifier is
        not read. Differentiable in `parameters` and usable with `torch.func` (no in-place writes,
        no branches on values): `torch.func.functional_call` does it.
        """
        ...

    def full_precision(self) -> AbstractContextManager[None]:
        """Compute in float32 inside, where the model otherwise mixes precisions."""
        ...

    def logits(self, features: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Return `features @ weight.T + bias` with the parameters of the classifier."""
        ...

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained now, those of the classifier as CLASSIFIER."""
        ...


@runtime_checkable
class TopMethod(Protocol):
    """A way to learn one task after another with a backbone that changes."""

    @property
    def data_method(self) -> str:
        """Name of the method that chooses the rows of a task, see `stream.old_rows`."""
        ...

    @property
    def draws(self) -> int:
        """Draws from the old rows at each step: 2 if `loss` wants a second one, else 1."""
        ...

    @property
    def base_sample(self) -> int:
        """Rows of base classes for `begin` of the first task where `data_method` gives none."""
        ...

    def begin(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Prepare for a task; the rows of its classes are initialised, nothing is trained yet."""
        ...

    def loss(
        self, model: TopModel, batch: Batch, second: Batch | None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " batch"]]:
        """Return what to minimise, and the detached loss of each row of `batch` for the record.

        `second` holds as many old rows as `batch`, drawn apart from them, where `draws` is 2 and
        there are old rows; otherwise it is None.
        """
        ...

    def end(self, model: TopModel, task: Task, rows: RowReader) -> None:
        """Remember what later tasks need of this one."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return all that `begin` and `end` have left behind: tensors of this method, by name."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over a `state()`, its tensors on the device of the model."""
        ...
