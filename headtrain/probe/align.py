"""Loss alignment: fine-tune the base head with the loss of the coming training.

A head that was trained with cross entropy has logits of a scale that differs from the targets of
squared error; the paper therefore starts its MSE runs from a head fine-tuned on the base classes,
with AdamW, a cosine schedule (here stepped per update, down to zero) and augmented images. Epoch e
trains on view e mod K, of K random views of the training images that a cache may hold; without
views it trains on the features of the plain images. `views` is K in what is reported.

Source: M. Y. Harun, C. Kanan, "A good start matters: enhancing continual learning with
data-driven weight initialization", 2025, "Loss Alignment".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.extract.cache.read import Cache, CacheSplit
from clinit.extract.cache.shard_rows import stored_features
from clinit.headtrain.array import torch_stream
from clinit.headtrain.probe.settings import AlignConfig
from clinit.headtrain.record.info import provenance
from clinit.headtrain.rows import Rows
from clinit.headtrain.stream.base_head import check_head, head_digest, map_to_head
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study.parts import Training
from clinit.headtrain.train.evaluate import count_correct
from clinit.headtrain.train.heads import Bank, check_precision
from clinit.headtrain.train.loop import train_epochs
from clinit.headtrain.train.rows import LabelledRows
from clinit.machine import choose_device
from clinit.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """An aligned head, and how it was aligned."""

    head: Head
    """The head, which carries its facts, so that both are stored together."""
    facts: dict[str, Any]
    """Plain values: settings, accuracies before and after (percent), loss by epoch, data."""


def choose_views(cache: Cache, number: int | None) -> tuple[CacheSplit, ...]:
    """Return the first `number` views of a cache; all of them where `number` is None.

    Raises:
        CacheError: If there are fewer, or one is incomplete or belongs to another backbone.
    """
    if number == 0:
        return ()
    if number is not None and len(cache.views) < number:
        raise CacheError(
            f"{cache.path} holds {len(cache.views)} of the {number} views that were asked for",
            remedy=f"Add `--views {number}` to its `clinit extract` command: it keeps what is there"
            " and computes the views that are missing.",
        )
    return cache.views[:number]


def align(
    base: Source,
    head: Head,
    config: AlignConfig,
    views: Sequence[CacheSplit] = (),
    *,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Alignment:
    """Fine-tune `head` on the training rows of `base`.

    Args:
        base: Features of the classes of the head; its validation rows are only evaluated.
        head: The head to start from.
        config: Loss and optimizer.
        views: Views of the training rows, used in turn for one epoch each instead of the plain
            features; only one at a time is in memory, and none where the plain features are not.
        on_epoch: Called with the number of finished epochs and the mean loss of the last one.

    Raises:
        HeadError: If the head does not read these features, or its loss stops being a number.
        CacheError: If a view is damaged, or there is no row to train on.
        ExperimentError: If the head's classes are unknown.
        DeviceError: If there is no such device, or it does not compute in that precision.
    """
    started, watch = datetime.now(UTC).isoformat(timespec="seconds"), Stopwatch()
    check_head(head, base, base)
    row_of_class = map_to_head(base, head)
    device = choose_device(config.device)
    check_precision(config.precision, device)
    bank = Bank(Rows.of_head(head), [_training(config)], device)
    epochs = _Epochs(base.train, tuple(views[: config.epochs]), row_of_class, device)
    test = LabelledRows.on(device, base.val.features, row_of_class[base.val.labels])
    with torch.no_grad():
        before = _top1(bank, test)
        losses = _train(bank, epochs, config, on_epoch)
        after = _top1(bank, test)
    with torch_stream(device):
        aligned = bank.rows(0).as_head(head.class_names, head.fingerprint)
    facts = {
        **asdict(config),
        "schedule": "cosine to zero, by update",
        **epochs.facts(),
        "top1_before": before,
        "top1_after": after,
        "val_rows": len(test),
        "loss_by_epoch": losses,
        "base": base.description,
        "started_from": head_digest(head),
        "digest": head_digest(aligned),
        "seconds": watch.total,
        "started": started,
        **provenance(),
    }
    return Alignment(replace(aligned, alignment=facts), facts)


@dataclass(frozen=True, slots=True, eq=False)
class _Epochs:
    """The rows of each epoch: the views in turn, or the plain features where there is none."""

    plain: FeatureSet
    views: tuple[CacheSplit, ...]
    row_of_class: Int[np.ndarray, " classes"]
    device: torch.device

    def sizes(self, epochs: int) -> list[int]:
        """Return the number of rows of each epoch, without reading a view."""
        sizes = [view.num_valid for view in self.views] or [len(self.plain.labels)]
        if not all(sizes):
            raise CacheError(
                "there is no row of features to align with",
                remedy="Look for bad images with `clinit cache show`, and extract them again.",
            )
        return [sizes[epoch % len(sizes)] for epoch in range(epochs)]

    def rows(self, epochs: int) -> Iterator[LabelledRows]:
        """Yield the rows of each epoch."""
        if len(self.views) > 1:
            for epoch in range(epochs):
                yield self._on_device(self._view(epoch % len(self.views)))
        else:
            always = self._on_device(self._view(0) if self.views else self.plain)
            yield from itertools.repeat(always, epochs)

    def _view(self, index: int) -> FeatureSet:
        """Read a view into memory, or open it where it stays on disk like the plain features."""
        view = self.views[index]
        return view.load() if self.plain.is_loaded else stored_features(view)

    def facts(self) -> dict[str, Any]:
        """Return the facts about the rows."""
        rows = {"views": len(self.views), "train_rows": self.sizes(1)[0]}
        if not self.views:
            return {**rows, "view_seed": None, "augmentation": "none: the plain images"}
        fingerprint = self.views[0].fingerprint
        assert fingerprint.view_seed is not None, "a view has been checked to have one"
        return {
            **rows,
            "view_seed": int(fingerprint.view_seed),
            "augmentation": fingerprint.augmentation,
        }

    def _on_device(self, data: FeatureSet) -> LabelledRows:
        return LabelledRows.on(self.device, data.features, self.row_of_class[data.labels])


def _train(
    bank: Bank, epochs: _Epochs, config: AlignConfig, on_epoch: Callable[[int, float], None]
) -> list[float]:
    def told(done: int, losses: Float[np.ndarray, " heads"]) -> None:
        loss = float(losses[0])
        if not math.isfinite(loss):
            raise HeadError(
                f"the alignment has diverged: its loss is {loss} in epoch {done}",
                remedy="Use a smaller --lr.",
            )
        on_epoch(done, loss)

    sizes = epochs.sizes(config.epochs)
    losses = train_epochs(
        bank,
        epochs.rows(config.epochs),
        sizes,
        batch_size=min(config.batch_size, *sizes),
        seed=config.seed,
        on_epoch=told,
    )
    return [float(loss) for loss in losses[:, 0]]


def _training(config: AlignConfig) -> Training:
    return Training(
        loss=config.loss,
        lr=config.lr,
        weight_decay=config.weight_decay,
        precision=config.precision,
    )


def _top1(bank: Bank, test: LabelledRows) -> float | None:
    """Return the accuracy in percent; None where there is no row."""
    return 100 * int(count_correct(bank, test).sum()) / len(test) if len(test) else None
