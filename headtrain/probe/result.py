"""What a linear probe found, and how.

What heads label right: top-1, top-5, and the mean over classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int

from clinit.extract.cache.head import Head
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.rows import Rows
from clinit.headtrain.study.parts import Training
from clinit.headtrain.train.evaluate import blocks_of, count_correct, logits_of
from clinit.headtrain.train.heads import Bank
from clinit.headtrain.train.rows import LabelledRows

TOP = 5


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracies in percent; rows of a class that the head does not know count as wrong."""

    rows: int
    top1: float
    top5: float | None
    """None where there are no more than five classes."""
    per_class: float
    """Mean over the classes that have rows."""


def bank_of(heads: Sequence[Rows], device: torch.device) -> Bank:
    """Return heads of the same classes side by side."""
    bank = Bank(heads[0], [Training()] * len(heads), device)
    for index, rows in enumerate(heads):
        bank.write(index, 0, rows)
    return bank


def measure(
    head: Rows, test: LabelledRows, row_of_class: Int[np.ndarray, " classes"]
) -> Accuracy | None:
    """Measure one head; None where there is no row.

    Args:
        head: The head.
        test: Rows, labelled by class.
        row_of_class: The row of the head for each class, -1 where it has none.
    """
    if not len(test):
        return None
    totals = np.bincount(test.labels.cpu().numpy(), minlength=len(row_of_class))
    head_rows = torch.from_numpy(row_of_class).to(test.labels.device)[test.labels]
    known = (head_rows >= 0).nonzero()[:, 0]
    rows = LabelledRows(test.subset(known).features, head_rows[known])
    bank = bank_of([head], test.labels.device)
    correct = count_correct(bank, rows)[0]
    tested = totals > 0
    per_class = np.where(row_of_class >= 0, correct[row_of_class], 0)[tested] / totals[tested]
    return Accuracy(
        rows=len(test),
        top1=100 * int(correct.sum()) / len(test),
        top5=100 * count_in_top(bank, rows, TOP) / len(test) if bank.num_classes > TOP else None,
        per_class=100 * float(per_class.mean()),
    )


def count_in_top(bank: Bank, test: LabelledRows, top: int) -> int:
    """Count the rows whose label is among the `top` largest logits of the first head.

    Of equal logits the first ones are the larger.
    """
    found = torch.zeros((), dtype=torch.int64, device=bank.device)
    column = torch.arange(bank.num_classes, device=bank.device)
    for part, _ in blocks_of(bank, len(test)):
        label = test.labels[part, None]
        logits = logits_of(bank, test.widened(part), slice(0, 1))[:, 0]
        own = logits.gather(1, label)
        before = (logits > own) | ((logits == own) & (column < label))
        found += (before.sum(1) < top).sum()
    return int(found)


Choice = Literal["top1", "loss"]
"""What the best point of a grid has on the held-out rows: the largest top-1, or the least loss."""


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One combination of settings that was tried."""

    settings: Mapping[str, float]
    top1: float
    """On the held-out rows, in percent."""
    held_out_loss: float
    """Mean cross entropy on these."""
    loss: float
    """Mean cross entropy of the rows that it was trained on; not finite if it has diverged."""
    iterations: int | None = None
    """Of L-BFGS."""
    converged: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A linear probe: the head, its accuracy, and the grid that it was chosen from."""

    config: ProbeConfig
    """Resolved."""
    chosen_by: Choice
    grid: tuple[GridPoint, ...]
    """In the order of `config.grid`; empty where there was a single point, hence no choice."""
    chosen: Mapping[str, float]
    """The settings of the head."""
    held_out_rows: int
    """Training rows that the choice was made by; 0 without one."""
    train_rows: int
    """Rows that the head was trained on, the held-out ones included."""
    classes: int
    head: Head
    loss: float
    """Mean cross entropy of the training rows of the head."""
    val: Accuracy | None
    """On the validation rows; None where there is none."""
    notes: tuple[str, ...]
    """What the user should know about the data, the grid and the result."""
    seconds: Mapping[str, float]
    """Seconds of the grid, of the last training, and of all."""
    facts: Mapping[str, Any]
    """The data and the versions."""

    def __repr__(self) -> str:
        top1 = "not measured" if self.top1 is None else f"{self.top1:.2f} %"
        chosen = ", ".join(f"{name} {value:g}" for name, value in self.chosen.items())
        return f"<Probe: top-1 {top1}, {self.classes:,} classes, {self.config.by} with {chosen}>"

    @property
    def held_out_top1(self) -> float | None:
        """Top-1 of the chosen point on the rows it was chosen by; an upper estimate."""
        return next((point.top1 for point in self.grid if point.settings == self.chosen), None)

    @property
    def top1(self) -> float | None:
        """Top-1 on the validation rows, or else on the held-out ones."""
        return self.val.top1 if self.val is not None else self.held_out_top1

    @property
    def protocol(self) -> str:
        """How the number came about, in a paragraph."""
        config = self.config
        if config.by == "lbfgs":
            how = (
                "multinomial logistic regression with an L2 penalty, by L-BFGS"
                f" (at most {config.max_iterations:,} iterations)"
            )
        else:
            how = (
                f"cross entropy, AdamW, {config.epochs:,} epochs of batches of"
                f" {config.batch_size:,}, learning rate on a cosine to zero, weights from zero"
            )
        features = "standardised" if config.standardise else "as stored, not normalised"
        return f"{how}; features {features}, without augmentation; {self._choice}"

    @property
    def _choice(self) -> str:
        trained = f"trained on {self.train_rows:,} rows of {self.classes:,} classes"
        if not self.grid:
            return f"a single setting, hence no choice; {trained}"
        by = {"top1": "top-1", "loss": "loss"}[self.chosen_by]
        return (
            f"{len(self.grid)} settings chosen by {by} on {self.held_out_rows:,} held-out training"
            f" rows ({100 * self.config.held_out:g} % of each class, seed {self.config.seed}), the"
            f" best one {trained}, these included"
        )

    def content(self) -> dict[str, Any]:
        """Return plain values, all but the head."""
        return {
            "top1": self.top1,
            "measured_on": "val" if self.val is not None else "held-out training rows",
            "val": None if self.val is None else asdict(self.val),
            "held_out_top1": self.held_out_top1,
            "chosen": dict(self.chosen),
            "loss": self.loss,
            "grid": [{**asdict(point), "settings": dict(point.settings)} for point in self.grid],
            "config": asdict(self.config),
            "protocol": self.protocol,
            "train_rows": self.train_rows,
            "held_out_rows": self.held_out_rows,
            "classes": self.classes,
            "notes": list(self.notes),
            "seconds": dict(self.seconds),
            **self.facts,
        }
