"""What a linear probe found, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from clinit.extract.head import Head
from clinit.headtrain.probe.accuracy import Accuracy
from clinit.headtrain.probe.settings import ProbeConfig

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
