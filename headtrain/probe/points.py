"""Heads of a grid: one for each of its points, trained on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch

from clinit.headtrain.bank.epochs import train_epochs, unchanged
from clinit.headtrain.bank.heads import Bank
from clinit.headtrain.bank.rows import LabelledRows
from clinit.headtrain.probe.lbfgs import LogisticRegression
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.probe.standardise import Standard
from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Training

Point = Mapping[str, float]
"""Values of the settings that are tried, by name."""
Progress = Callable[[int, int], None]
"""Called with the units of work that are done, and with all there are: epochs or searches."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A head that was trained with the settings of one point."""

    rows: Rows
    """On the features as stored."""
    loss: float
    """Mean cross entropy of its training rows: over the last epoch, or at the end."""
    iterations: int | None = None
    """Of L-BFGS; None for batches."""
    converged: bool = True


def fit(
    train: LabelledRows,
    num_classes: int,
    points: Sequence[Point],
    config: ProbeConfig,
    progress: Progress,
) -> list[Fitted]:
    """Train a head for each point.

    Args:
        train: Rows, labelled 0 to `num_classes` - 1, each of which has one.
        num_classes: Rows of a head.
        points: Points of one grid, in its order.
        config: How to train; resolved.
        progress: Called with what is done of it.
    """
    standard = Standard.of(train) if config.standardise else Standard.none(train)
    if config.by == "lbfgs":
        return _by_lbfgs(train, num_classes, points, config, standard, progress)
    return _by_adamw(train, num_classes, points, config, standard, progress)


@torch.no_grad()
def _by_adamw(
    train: LabelledRows,
    num_classes: int,
    points: Sequence[Point],
    config: ProbeConfig,
    standard: Standard,
    progress: Progress,
) -> list[Fitted]:
    """Train a bank from zeros, where the loss is convex and every direction open."""
    assert config.epochs is not None
    assert config.batch_size is not None
    epochs, dim = config.epochs, train.features.shape[1]
    zeros = Rows(np.zeros((num_classes, dim)), np.zeros(num_classes))
    bank = Bank(zeros, [_training(point) for point in points], train.labels.device)
    losses = train_epochs(
        bank,
        repeat(train, epochs),
        [len(train)] * epochs,
        batch_size=min(config.batch_size, len(train)),
        seed=config.seed,
        on_epoch=lambda done, _: progress(done, epochs),
        prepare=standard.apply if config.standardise else unchanged,
    )
    return [
        Fitted(standard.folded(bank.weight[head], bank.bias[head]), float(losses[-1, head]))
        for head in range(bank.num_heads)
    ]


def _training(point: Point) -> Training:
    return Training(loss="ce", lr=point["lr"], weight_decay=point["weight_decay"])


def _by_lbfgs(
    train: LabelledRows,
    num_classes: int,
    points: Sequence[Point],
    config: ProbeConfig,
    standard: Standard,
    progress: Progress,
) -> list[Fitted]:
    """Search point after point; each search begins where the last one, more penalised, ended."""
    assert config.max_iterations is not None
    regression = LogisticRegression(train, num_classes, standard)
    fitted: list[Fitted] = []
    start = None
    for point in points:
        found = regression.minimum(point["c"], start, max_iterations=config.max_iterations)
        start = found.parameters
        rows = standard.folded(*regression.split(start))
        fitted.append(Fitted(rows, found.loss, found.iterations, found.converged))
        progress(len(fitted), len(points))
    return fitted
