"""Loss alignment: fine-tune the base head with the loss of the coming training.

The logits of a head that was trained with cross entropy differ in scale from the targets of squared
error. The paper therefore starts its MSE runs from a head that was fine-tuned on the base classes
with AdamW, a cosine schedule (here stepped per update, down to zero) and augmented images. If the
cache contains K random views of its training images, epoch e trains on view e mod K; without views,
every epoch trains on the plain images. The head records K as `views`.

Source: M. Y. Harun, C. Kanan, "A good start matters: enhancing continual learning with
data-driven weight initialization", 2025, "Loss Alignment".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

import numpy as np
import torch

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.extract.cache.read import Cache, CacheSplit, stored_features
from clinit.headtrain.heads.array import torch_stream
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.probe.settings import AlignConfig
from clinit.headtrain.protocol.record.info import provenance
from clinit.headtrain.protocol.stream.scenario import check_head, map_to_head
from clinit.headtrain.protocol.stream.source import Source, head_digest
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train.evaluate import evaluate
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows, check_precision
from clinit.headtrain.protocol.train.step import Updates
from clinit.machine import Stopwatch, choose_device, now
from clinit.observer import Observer, Progressed, ignore

_OF_TRAINING = ("loss", "lr", "weight_decay", "precision")


def choose_views(cache: Cache, number: int | None) -> tuple[CacheSplit, ...]:
    """Return the first `number` views of a cache; all of them if `number` is None.

    Raises:
        CacheError: If the cache has fewer views, or a view is incomplete or of another backbone.
    """
    if number == 0:
        return ()
    if number is not None and len(cache.views) < number:
        raise CacheError(
            f"{cache.path} contains {len(cache.views)} of the {number} requested views",
            remedy=f"Add `--views {number}` to its `clinit extract` command: it keeps existing"
            " views and computes missing views.",
        )
    return cache.views[:number]


def align(
    base: Source,
    head: Head,
    config: AlignConfig,
    views: Sequence[CacheSplit] = (),
    *,
    observer: Observer = ignore,
) -> Head:
    """Fine-tune `head` on the training rows of `base`.

    Args:
        base: Features of the classes of the head; its validation rows are only evaluated.
        head: The head to start from.
        config: Loss and optimizer.
        views: Views of the training rows, used in turn for one epoch each instead of the plain
            features. At most one view is in memory at a time. If the plain features stay on disk,
            views do too.
        observer: Called with the number of finished epochs.

    Returns:
        The aligned head. Its `alignment` contains the settings, the accuracies before and after
        (percent), the loss of each epoch, and a description of the data.

    Raises:
        HeadError: If the head does not fit these features, or its loss stops being a number.
        CacheError: If a view is damaged, or no row is available for training.
        ExperimentError: If the head's classes are unknown.
        DeviceError: If the device is absent, or does not support the precision.
    """
    started, watch = now(), Stopwatch()
    check_head(head, base)
    row_of_class = map_to_head(base, head)
    device = choose_device(config.device)
    check_precision(config.precision, device)
    of_config = {name: getattr(config, name) for name in _OF_TRAINING}
    bank = Bank(Rows.of_head(head), [Training(**of_config)], device)
    views = views[: config.epochs]
    sizes = [view.num_valid for view in views] or [len(base.train.labels)]
    if not all(sizes):
        raise CacheError(
            "no row of features is available for the alignment",
            remedy="Look for bad images with `clinit cache show`, and extract them again.",
        )

    def on_device(data: FeatureSet) -> LabelledRows:
        return LabelledRows.on(device, data.features, row_of_class[data.labels])

    test = on_device(base.val)
    with torch.no_grad():
        before = _top1(bank, test)
        rows = _epochs(base.train, views, config.epochs, on_device)
        losses: list[float] = []
        for loss in _trained(bank, rows, sizes, config):
            losses.append(loss)
            what = f"Aligning, {config.loss} loss {loss:.4g}"
            observer(Progressed(what, len(losses), config.epochs, "epochs"))
        after = _top1(bank, test)
    with torch_stream(device):
        aligned = bank.rows(0).as_head(head.class_names, head.fingerprint)
    of_views = views[0].fingerprint if views else None
    facts = {
        **asdict(config),
        "schedule": "cosine to zero, by update",
        "views": len(views),
        "train_rows": sizes[0],
        "view_seed": int(of_views.view_seed or 0) if of_views else None,
        "augmentation": of_views.augmentation if of_views else "none: the plain images",
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
    return replace(aligned, alignment=facts)


def _trained(
    bank: Bank, epochs: Iterator[LabelledRows], sizes: Sequence[int], config: AlignConfig
) -> Iterator[float]:
    """Train a head on shuffled batches of epochs; yield the mean loss of each.

    Rows that do not fill a batch are left out of the epoch. A cosine lowers the learning rate to
    zero.

    Raises:
        HeadError: If a loss is not finite.
    """
    batch_size = min(config.batch_size, *sizes)
    steps = sum(sizes[epoch % len(sizes)] // batch_size for epoch in range(config.epochs))
    shares = iter(np.cos(np.linspace(0, np.pi, steps, endpoint=False)) / 2 + 0.5)
    updates = Updates(bank, batch_size)

    def train_on(rows: LabelledRows, epoch: int) -> float:
        count = len(rows) // batch_size
        order = generator(config.seed, Draw.ALIGNMENT, epoch).permutation(len(rows))
        batches = torch.from_numpy(order[: count * batch_size].reshape(count, batch_size))
        total = torch.zeros(1, dtype=torch.float64, device=bank.device)
        for batch in batches.to(bank.device):
            taken = rows.take(batch)
            found = updates.step(taken.features, taken.labels, float(next(shares)))
            total += found.double().mean(0)
        return float(total / count)

    for epoch in range(config.epochs):
        # No name for the rows here: it would keep a view in memory while the next is read.
        loss = train_on(next(epochs), epoch)
        if not np.isfinite(loss):
            raise HeadError(
                f"the alignment has diverged: its loss is {loss} in epoch {epoch + 1}",
                remedy="Use a smaller --lr.",
            )
        yield loss


def _epochs(
    plain: FeatureSet,
    views: Sequence[CacheSplit],
    epochs: int,
    on_device: Callable[[FeatureSet], LabelledRows],
) -> Iterator[LabelledRows]:
    """Yield the rows of each epoch: the views in turn, or the plain features without views."""

    def read(view: CacheSplit) -> LabelledRows:
        """Load a view, or only open it if the plain features stay on disk."""
        return on_device(view.load() if plain.is_loaded else stored_features(view))

    if len(views) > 1:
        for epoch in range(epochs):
            yield read(views[epoch % len(views)])
    else:
        yield from itertools.repeat(read(views[0]) if views else on_device(plain), epochs)


def _top1(bank: Bank, test: LabelledRows) -> float | None:
    return 100 * int(evaluate(bank, test).correct.sum()) / len(test) if len(test) else None
