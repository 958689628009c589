"""How far each row's label leads its best rival, as far as the precision of a bank can tell.

With unit roundoff r, a logit u = x w + b of rounded operands whose result is rounded as well is
off by at most

    (2 r + r^2) |x| |w| + r |b| + r |result|

(Cauchy-Schwarz), and sums of d terms in float32 add d 2^-24 |x| |w| at most. A label whose own
logit, in float32, leads or trails the best rounded rival by more than that is decided. In
float32 there is no doubt but at equal logits, where the order of the classes decides.

Source of the error of a sum: N. J. Higham, "Accuracy and stability of numerical algorithms",
2nd edition, SIAM 2002, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clinit.headtrain.train.heads import ROUNDOFF, Bank, products_in

_SLACK = 1.01
"""For what the bound leaves out: terms of higher order, and its own rounding."""

Group = tuple[slice, slice]
"""Rows, and the classes of the task that their labels are of."""


@dataclass(frozen=True, slots=True, eq=False)
class Lead:
    """How far labels lead their best rivals, among all classes and among those of their task."""

    overall: Float[Tensor, "rows heads"]
    """Logit of the label minus that of its best rival."""
    doubt: Float[Tensor, "rows heads"]
    """By how much that may be off."""
    in_task: Float[Tensor, "rows heads"]
    doubt_in_task: Float[Tensor, "rows heads"]

    @property
    def is_close(self) -> Bool[Tensor, "rows heads"]:
        """Whether one of the two is undecided."""
        close = self.overall.abs() <= self.doubt
        return close | (self.in_task.abs() <= self.doubt_in_task)


FirstLook = Callable[[Tensor, Tensor, slice, Sequence[Group]], Lead]
"""Takes float32 features (rows, dim), labels (rows,), the heads that look and the groups of all
rows."""


def first_look(bank: Bank) -> FirstLook:
    """Return the look of a bank in its precision; its weights must stay as they are."""
    return _InFull(bank) if bank.precision == "float32" else _Rounded(bank)


class _InFull:
    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._space = bank.weight.new_empty(0)

    def __call__(
        self,
        features: Float[Tensor, "rows dim"],
        labels: Int[Tensor, " rows"],
        heads: slice,
        groups: Sequence[Group],
    ) -> Lead:
        shape = (len(labels), heads.stop - heads.start, self._bank.num_classes)
        self._space.resize_(shape)
        with products_in("float32"):
            logits = self._bank.logits(features, self._space, heads)
        own = logits.gather(2, _index(logits, labels))[..., 0]
        rival, in_task = _best_rivals(logits, labels, groups)
        none = torch.zeros_like(own)
        return Lead(own - rival, none, own - in_task, none)


class _Rounded:
    def __init__(self, bank: Bank) -> None:
        # CUDA multiplies float32 as TF32; bfloat16 there may round its partial sums as well.
        self._precision = "bf16" if bank.device.type == "cpu" else "tf32"
        dtype = torch.bfloat16 if self._precision == "bf16" else torch.float32
        self._bank = bank
        self._weight, self._bias = bank.weight.to(dtype), bank.bias.to(dtype)
        self._space = self._weight.new_empty(0)
        self._roundoff = ROUNDOFF[self._precision]
        per_norm = 2 * self._roundoff + self._roundoff**2 + bank.dim * 2.0**-23
        self._per_row = per_norm * torch.linalg.vector_norm(bank.weight, dim=2).amax(1)
        self._always = self._roundoff * bank.bias.abs().amax(1)

    def __call__(
        self,
        features: Float[Tensor, "rows dim"],
        labels: Int[Tensor, " rows"],
        heads: slice,
        groups: Sequence[Group],
    ) -> Lead:
        rivals = _best_rivals(self._logits(features, heads), labels, groups)
        norms = torch.linalg.vector_norm(features, dim=1)[:, None]
        margin = norms * self._per_row[heads] + self._always[heads]
        own = self._own(features, labels, heads)
        rival, in_task = (each.float() for each in rivals)
        doubts = (_SLACK * (margin + self._roundoff * _size(each)) for each in (rival, in_task))
        doubt, doubt_in_task = doubts
        return Lead(own - rival, doubt, own - in_task, doubt_in_task)

    def _logits(
        self, features: Float[Tensor, "rows dim"], heads: slice
    ) -> Float[Tensor, "rows heads classes"]:
        weight, bias = self._weight[heads], self._bias[heads]
        self._space.resize_((len(features), *bias.shape))
        with products_in(self._precision):
            torch.addmm(
                bias.view(-1),
                features.to(weight.dtype),
                weight.view(-1, weight.shape[2]).t(),
                out=self._space.view(len(features), -1),
            )
        return self._space

    def _own(
        self, features: Float[Tensor, "rows dim"], labels: Int[Tensor, " rows"], heads: slice
    ) -> Float[Tensor, "rows heads"]:
        """Return the logit of each row's label, in float32."""
        own = []
        for head in range(heads.start, heads.stop):
            weight, bias = self._bank.weight[head], self._bank.bias[head]
            own.append((weight[labels] * features).sum(1) + bias[labels])
        return torch.stack(own, dim=1)


def _best_rivals(
    logits: Float[Tensor, "rows heads classes"],
    labels: Int[Tensor, " rows"],
    groups: Sequence[Group],
) -> tuple[Float[Tensor, "rows heads"], Float[Tensor, "rows heads"]]:
    """Return the largest logit of another class, of all and of those of the task.

    That of the label is overwritten. Each logit is looked at once.
    """
    none = logits.new_full((), -torch.inf)
    index = _index(logits, labels)
    logits.scatter_(2, index, none.expand(index.shape))
    overall = torch.empty_like(logits[..., 0])
    in_task = torch.empty_like(overall)
    for rows, classes in groups:
        inside = logits[rows, :, classes].amax(2)
        in_task[rows] = inside
        for others in (slice(0, classes.start), slice(classes.stop, None)):
            if len(range(*others.indices(logits.shape[2]))):
                inside = torch.maximum(inside, logits[rows, :, others].amax(2))
        overall[rows] = inside
    return overall, in_task


def _size(rival: Float[Tensor, "rows heads"]) -> Float[Tensor, "rows heads"]:
    """Return the size of a logit; 0 where there is no rival."""
    return torch.where(rival == -torch.inf, 0.0, rival.abs())


def _index(
    logits: Float[Tensor, "rows heads classes"], labels: Int[Tensor, " rows"]
) -> Int[Tensor, "rows heads 1"]:
    return labels[:, None, None].expand(*logits.shape[:2], 1)
