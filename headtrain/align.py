"""Loss alignment: fine-tune the base head with the loss of the coming training.

A head that was trained with cross entropy has logits of another scale than squared error aims
at; the paper therefore starts its MSE runs from a head fine-tuned on the base classes, with
AdamW, a cosine schedule (here a value an update, down to zero) and augmented images. This reads
the features of a cache, which are those of the plain images: `views` is 0 in what is reported.

Source: M. Y. Harun, C. Kanan, "A good start matters: enhancing continual learning with
data-driven weight initialization", 2025, "Loss Alignment".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from clinit.errors import HeadError
from clinit.extract.device import choose_device
from clinit.extract.head import Head
from clinit.headtrain.bank import Bank
from clinit.headtrain.base_head import head_digest
from clinit.headtrain.class_map import check_head, map_to_head
from clinit.headtrain.config import DEVICES, HeadConfig
from clinit.headtrain.evaluation import LabelledRows, count_correct
from clinit.headtrain.init import Rows
from clinit.headtrain.provenance import git_commit, versions
from clinit.headtrain.seeds import MAX_SEED, Draw, generator
from clinit.headtrain.source import Source
from clinit.headtrain.training import Training

FORMAT = "clinit-alignment/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignConfig:
    """The training of an alignment; the defaults are the paper's."""

    loss: str = "mse"
    """Training loss."""
    epochs: int = 50
    """Passes over the training rows; >= 1."""
    batch_size: int = 512
    """Rows a batch, at most all; the rest of an epoch, less than a batch, is left out."""
    lr: float = 1e-3
    """Learning rate of the first update; > 0."""
    weight_decay: float = 0.05
    """Decoupled weight decay; >= 0."""
    seed: int = 0
    """Of the order of the rows."""
    device: str = "auto"
    """`auto` takes a CUDA device where there is one."""

    def __post_init__(self) -> None:
        self.head_config()
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed must lie in [0, {MAX_SEED}], got {self.seed}")
        if self.device not in DEVICES:
            raise ValueError(f"device must be one of {DEVICES}, got {self.device!r}")

    def head_config(self) -> HeadConfig:
        """Return the part that is the optimizer's."""
        return HeadConfig(init="random", loss=self.loss, lr=self.lr, weight_decay=self.weight_decay)


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """An aligned head, and how it came about."""

    head: Head
    facts: dict[str, Any]
    """Plain values: settings, accuracies before and after (percent), loss by epoch, data."""


def align(
    base: Source,
    head: Head,
    config: AlignConfig,
    *,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Alignment:
    """Fine-tune `head` on the training rows of `base`.

    Args:
        base: Features of the classes of the head; its validation rows are only evaluated.
        head: Where to start.
        config: Loss and optimizer.
        on_epoch: Told the number of finished epochs and the mean loss of the last one.

    Raises:
        HeadError: If the head does not read these features, or its loss stops being a number.
        ExperimentError: If the head's classes are unknown.
        DeviceError: If there is no such device.
    """
    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    check_head(head, base, base)
    row_of_class = map_to_head(base, head)
    device = choose_device(config.device)
    start = Rows(head.weight.astype(np.float64), head.bias.astype(np.float64))
    bank = Bank(start, [config.head_config()], device)
    train = LabelledRows.on(device, base.train.features, row_of_class[base.train.labels])
    test = LabelledRows.on(device, base.val.features, row_of_class[base.val.labels])
    with torch.no_grad():
        before = _top1(bank, test)
        losses = _train(bank, train, config, on_epoch)
        after = _top1(bank, test)
    rows = bank.rows(0)
    aligned = Head(
        weight=rows.weight.astype(np.float32),
        bias=rows.bias.astype(np.float32),
        class_names=head.class_names,
        fingerprint=head.fingerprint,
    )
    facts = {
        "format": FORMAT,
        **asdict(config),
        "schedule": "cosine to zero, by update",
        "views": 0,
        "augmentation": "none: the features of the plain images",
        "top1_before": before,
        "top1_after": after,
        "train_rows": len(train),
        "val_rows": len(test),
        "loss_by_epoch": losses,
        "base": base.description,
        "started_from": head_digest(head),
        "digest": head_digest(aligned),
        "seconds": time.perf_counter() - clock,
        "started": started,
        "versions": versions(),
        "git_commit": git_commit(),
    }
    return Alignment(aligned, facts)


def _train(
    bank: Bank,
    rows: LabelledRows,
    config: AlignConfig,
    on_epoch: Callable[[int, float], None],
) -> list[float]:
    batch_size = min(config.batch_size, len(rows))
    updates = len(rows) // batch_size
    training = Training(bank, batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        training.optimizer, T_max=config.epochs * updates
    )
    losses: list[float] = []
    for epoch in range(config.epochs):
        order = generator(config.seed, Draw.ALIGNMENT, epoch).permutation(len(rows))
        batches = torch.from_numpy(order[: updates * batch_size].reshape(updates, batch_size))
        total = torch.zeros((), dtype=torch.float64, device=bank.device)
        for batch in batches.to(bank.device):
            total += training.step(rows.features[batch], rows.labels[batch]).double().mean()
            schedule.step()
        losses.append(float(total) / updates)
        if not math.isfinite(losses[-1]):
            raise HeadError(
                f"the alignment has diverged: its loss is {losses[-1]} in epoch {epoch + 1}",
                remedy="Use a smaller --lr.",
            )
        on_epoch(epoch + 1, losses[-1])
    return losses


def _top1(bank: Bank, test: LabelledRows) -> float | None:
    """Return the accuracy in percent; None without a row."""
    return 100 * int(count_correct(bank, test).sum()) / len(test) if len(test) else None
