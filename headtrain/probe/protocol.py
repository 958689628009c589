"""The protocol of a linear probe, and its result.

Some training rows are held out. Each combination of a grid trains a head on the remaining rows. The
best combination has the highest top-1 on the held-out rows (for a head that training starts from:
the least mean loss). A head with these settings is trained on all training rows and measured once
on the validation rows, which do not influence the choice. Of equally good combinations the first in
the grid wins: the smallest learning rate with the largest weight decay, or the smallest C.

Practice of the field: L-BFGS over a grid of C with a held-out part of the training rows (CLIP;
DINOv2, `eval/log_regression.py`); SGD with a cosine over a grid of learning rates, without weight
decay, on augmented images, and chosen on the validation rows (DINO, DINOv2 `eval/linear.py`);
AdamW with a cosine on cached, L2-normalised features (CLIP_benchmark). Only CLIP_benchmark
normalises. Choosing on the validation rows would make the number an upper estimate, and is not done
here.

Sources: A. Radford et al., "Learning transferable visual models from natural language
supervision", ICML 2021, Appendix A; M. Caron et al., "Emerging properties in self-supervised vision
transformers", ICCV 2021; M. Oquab et al., "DINOv2: learning robust visual features without
supervision", TMLR 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.groups import held_out_rows
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.probe.fit import Fitted, Point, Progress, fit
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.protocol.record.info import provenance
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train.evaluate import (
    blocks_of,
    count_correct,
    logits_of,
    mean_losses,
)
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.machine import choose_device, device_name
from clinit.stopwatch import Stopwatch

TOP = 5
Choice = Literal["top1", "loss"]
"""Criterion of the best point of a grid on held-out rows: the largest top-1, or the least loss."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracies in percent; features of classes without a row in the head count as wrong."""

    rows: int
    top1: float
    top5: float | None
    """None if there are no more than five classes."""
    per_class: float
    """Mean over the classes that have rows."""


@dataclass(frozen=True, slots=True)
class GridPoint:
    """Result of one combination of settings."""

    settings: Point
    top1: float
    """Accuracy on the held-out rows, in percent."""
    held_out_loss: float
    """Mean cross entropy on the held-out rows."""
    loss: float
    """Mean cross entropy of the rows that the head was trained on; not finite if it diverged."""
    iterations: int | None = None
    """Iterations of L-BFGS."""
    converged: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A linear probe: the head, its accuracy, and the grid that it was chosen from."""

    config: ProbeConfig
    """The settings, resolved."""
    chosen_by: Choice
    grid: tuple[GridPoint, ...]
    """In the order of `config.grid`; empty if the grid has a single point."""
    chosen: Point
    """The settings of the head."""
    held_out_rows: int
    """Number of held-out training rows, on which settings were chosen; 0 for a single point."""
    train_rows: int
    """Number of rows that the head was trained on, including held-out rows."""
    classes: int
    head: Head
    loss: float
    """Mean cross entropy of the training rows of the head."""
    val: Accuracy | None
    """Accuracy on the validation rows; None without such rows."""
    notes: tuple[str, ...]
    """Remarks for the user about the data, the grid and the result."""
    seconds: Mapping[str, float]
    """Seconds of the grid, of the last training, and in total."""
    facts: Mapping[str, Any]
    """The data and the versions."""

    def __repr__(self) -> str:
        top1 = "not measured" if self.top1 is None else f"{self.top1:.2f} %"
        chosen = ", ".join(f"{name} {value:g}" for name, value in self.chosen.items())
        return f"<Probe: top-1 {top1}, {self.classes:,} classes, {self.config.by} with {chosen}>"

    @property
    def held_out_top1(self) -> float | None:
        """Top-1 of the chosen point on the rows that it was chosen on: an upper estimate."""
        return next((point.top1 for point in self.grid if point.settings == self.chosen), None)

    @property
    def top1(self) -> float | None:
        """Top-1 on the validation rows, or else on the held-out rows."""
        return self.val.top1 if self.val is not None else self.held_out_top1

    @property
    def protocol(self) -> str:
        """Description of the protocol, in a paragraph."""
        config = self.config
        how = (
            f"cross entropy, AdamW, {config.epochs:,} epochs of batches of {config.batch_size:,},"
            " learning rate on a cosine to zero, weights from zero"
            if config.by == "adamw"
            else "multinomial logistic regression with an L2 penalty, by L-BFGS (at most"
            f" {config.max_iterations:,} iterations)"
        )
        features = "standardised" if config.standardise else "as stored, not normalised"
        choice = "a single setting, hence no choice"
        if self.grid:
            by = {"top1": "top-1", "loss": "loss"}[self.chosen_by]
            choice = (
                f"the best of {len(self.grid)} settings by {by} on {self.held_out_rows:,} held-out"
                f" training rows ({100 * config.held_out:g} % of each class, seed {config.seed})"
            )
        return (
            f"{how}; features {features}, without augmentation; {choice}, trained on all"
            f" {self.train_rows:,} rows of {self.classes:,} classes"
        )

    def content(self) -> dict[str, Any]:
        """Return all fields but the head, as plain values."""
        names = ("chosen", "loss", "train_rows", "held_out_rows", "classes", "notes", "seconds")
        return {
            "top1": self.top1,
            "measured_on": "val" if self.val is not None else "held-out training rows",
            "val": None if self.val is None else asdict(self.val),
            "held_out_top1": self.held_out_top1,
            "grid": [asdict(point) for point in self.grid],
            "config": asdict(self.config),
            "protocol": self.protocol,
            **{name: getattr(self, name) for name in names},
            **self.facts,
        }


def probe(
    source: Source,
    config: ProbeConfig | None = None,
    *,
    choose_by: Choice = "top1",
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Probe:
    """Measure how well a linear head separates the classes of `source`.

    Args:
        source: Features with their classes; without validation rows the accuracy on the
            held-out rows is reported.
        config: Training of the heads, and the values to try.
        choose_by: Criterion of the best point, measured on the held-out rows.
        progress: Called with the stage (`grid` or `refit`), its finished units and all its units.

    Raises:
        CacheError: If fewer than two classes have rows, or no row can be held out.
        HeadError: If the loss of every head stops being a number.
        DeviceError: If the device is absent.
    """
    started, config = datetime.now(UTC).isoformat(timespec="seconds"), config or ProbeConfig()
    config, device = config.resolved(), choose_device(config.device)
    watch = Stopwatch(device)
    present, row_of_class = present_classes(source)
    labels = row_of_class[source.train.labels]
    train = LabelledRows.on(device, source.train.features, labels)
    grid: tuple[GridPoint, ...] = ()
    chosen, held = config.grid[0], np.zeros(len(labels), dtype=bool)
    if len(config.grid) > 1:
        groups = groups_of(source.train)
        held = held_out_rows(labels, groups, config.held_out, generator(config.seed, Draw.HELD_OUT))
        with watch.phase("grid"):
            grid = _tried(train, held, len(present), config, partial(progress, "grid"))
        chosen = _best(grid, choose_by)
    with watch.phase("refit"):
        (fitted,) = fit(train, len(present), [chosen], config, partial(progress, "refit"))
    if not np.isfinite(fitted.loss):
        raise HeadError(
            f"the probe has diverged: its loss is {fitted.loss}", remedy="Use a smaller --lr."
        )
    with torch.no_grad():
        test = LabelledRows.on(device, source.val.features, source.val.labels)
        val = measure(fitted.rows, test, row_of_class)
    names = tuple(source.class_names[label] for label in present)
    facts = {"cache": source.description, "device": device_name(device), "started": started}
    return Probe(
        config=config,
        chosen_by=choose_by,
        grid=grid,
        chosen=chosen,
        held_out_rows=int(held.sum()),
        train_rows=len(train),
        classes=len(present),
        head=fitted.rows.as_head(names, source.fingerprint.backbone_identifier),
        loss=fitted.loss,
        val=val,
        notes=tuple(_notes(source, grid, fitted, chosen)),
        seconds={**watch.seconds, "total": source.load_s + watch.total},
        facts=facts | provenance(),
    )


def present_classes(
    source: Source,
) -> tuple[Int[np.ndarray, " present"], Int[np.ndarray, " classes"]]:
    """Return the classes with training rows, and for each class its row in the head or -1."""
    present = np.flatnonzero(source.train.counts())
    if len(present) < 2:
        raise CacheError(
            f"{source.path or 'the data'}: {len(present)} of its classes have training rows, and a"
            " head needs at least two",
            remedy="Look at it with `clinit cache show`.",
        )
    row_of_class = np.full(len(source.class_names), -1, dtype=np.int64)
    row_of_class[present] = np.arange(len(present))
    return present, row_of_class


def _tried(
    train: LabelledRows,
    held: Bool[np.ndarray, " rows"],
    num_classes: int,
    config: ProbeConfig,
    progress: Progress,
) -> tuple[GridPoint, ...]:
    """Train a head per point on rows that are not held out; measure it on the held-out rows."""
    if not held.any():
        raise CacheError(
            "every class has a single training row: no row can be held out to choose settings",
            remedy="Give one value of each setting, such as --lr 1e-3 --weight-decay 0.",
        )
    part, aside = (train.subset(torch.from_numpy(np.flatnonzero(rows))) for rows in (~held, held))
    fitted = fit(part, num_classes, config.grid, config, progress)
    with torch.no_grad():
        bank = _bank([each.rows for each in fitted], train.labels.device)
        right, losses = count_correct(bank, aside).sum(1), mean_losses(bank, aside)
    return tuple(
        GridPoint(
            settings=point,
            top1=100 * int(correct) / len(aside),
            held_out_loss=float(loss),
            loss=each.loss,
            iterations=each.iterations,
            converged=each.converged,
        )
        for point, each, correct, loss in zip(config.grid, fitted, right, losses, strict=True)
    )


def _best(grid: Sequence[GridPoint], by: Choice) -> dict[str, float]:
    """Return the settings of the first of the best points; any point if all have diverged."""
    finite = [point for point in grid if np.isfinite(point.loss)] or grid
    if by == "loss":
        return dict(min(finite, key=lambda point: point.held_out_loss).settings)
    return dict(max(finite, key=lambda point: point.top1).settings)


def _bank(heads: Sequence[Rows], device: torch.device) -> Bank:
    bank = Bank(heads[0], [Training()] * len(heads), device)
    for index, rows in enumerate(heads):
        bank.write(index, 0, rows)
    return bank


def measure(
    head: Rows, test: LabelledRows, row_of_class: Int[np.ndarray, " classes"]
) -> Accuracy | None:
    """Measure one head; return None if `test` is empty.

    Args:
        head: The head.
        test: Rows, labelled by class.
        row_of_class: The head row of each class, or -1 for a class without one.
    """
    if not len(test):
        return None
    totals = np.bincount(test.labels.cpu().numpy(), minlength=len(row_of_class))
    head_rows = torch.from_numpy(row_of_class).to(test.labels.device)[test.labels]
    known = (head_rows >= 0).nonzero()[:, 0]
    rows = LabelledRows(test.subset(known).features, head_rows[known])
    bank = _bank([head], test.labels.device)
    correct = count_correct(bank, rows)[0]
    tested = totals > 0
    per_class = np.where(row_of_class >= 0, correct[row_of_class], 0)[tested] / totals[tested]
    return Accuracy(
        rows=len(test),
        top1=100 * int(correct.sum()) / len(test),
        top5=100 * _count_in_top(bank, rows) / len(test) if bank.num_classes > TOP else None,
        per_class=100 * float(per_class.mean()),
    )


def _count_in_top(bank: Bank, test: LabelledRows) -> int:
    """Count the rows whose class has one of the `TOP` largest logits; ties go to the first."""
    found = torch.zeros((), dtype=torch.int64, device=bank.device)
    column = torch.arange(bank.num_classes, device=bank.device)
    for part, _ in blocks_of(bank, len(test)):
        label = test.labels[part, None]
        logits = logits_of(bank, test.widened(part), slice(0, 1))[:, 0]
        own = logits.gather(1, label)
        before = (logits > own) | ((logits == own) & (column < label))
        found += (before.sum(1) < TOP).sum()
    return int(found)


def _notes(
    source: Source, grid: Sequence[GridPoint], fitted: Fitted, chosen: Point
) -> Iterator[str]:
    """Yield notes on the data, and on grids or searches that should be extended."""
    yield from source.notes
    for name, value in chosen.items():
        tried = sorted({point.settings[name] for point in grid})
        if len(tried) > 1 and value in (tried[0], tried[-1]) and value:
            yield (
                f"the best --{name.replace('_', '-')}, {value:g}, is at the end of its grid: a"
                " value beyond may be better"
            )
    if not fitted.converged or not all(point.converged for point in grid):
        yield "L-BFGS stopped before the minimum: raise --max-iterations"
