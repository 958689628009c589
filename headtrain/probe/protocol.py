"""A head for the classes of a cache: a linear probe, or a head that training starts from.

It is fitted by multinomial logistic regression, its penalty chosen from a grid.

Some training rows are held out. Each penalty trains a head on the remaining rows. The best penalty
has the least mean loss on the held-out rows. A head with this penalty is trained on all training
rows and measured once on the validation rows, which do not influence the choice.

The loss and not the accuracy chooses, because new rows are scaled to match the logits of this head,
and training continues with cross entropy. Many penalties label the held-out rows equally well, and
the strongest of them makes all probabilities nearly equal.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from clinit.errors import CacheError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads import temperature
from clinit.headtrain.heads.groups import Mask, PerClass, held_out_rows, repeating
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.heads.statistics.solve import least_squares_head, leave_one_out_curve
from clinit.headtrain.probe.fit import Fitted, Tell, fit
from clinit.headtrain.probe.settings import HELD_OUT, ProbeConfig
from clinit.headtrain.protocol.record.info import provenance
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train.evaluate import blocks_of, evaluate, logits_of, mean_losses
from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
from clinit.machine import Stopwatch, choose_device, device_name, now
from clinit.observer import Observer, Progressed, ignore

TOP = 5
FEW_ROWS = 30
"""Held-out rows below which the scale of the logits is a guess."""


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
    """Result of one penalty."""

    c: float
    top1: float
    """Accuracy on the held-out rows, in percent."""
    held_out_loss: float
    """Mean cross entropy on the held-out rows."""
    loss: float
    """Mean cross entropy of the rows that the head was trained on."""
    iterations: int
    converged: bool


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """A linear probe: the head, its accuracy, and the grid that it was chosen from."""

    config: ProbeConfig
    grid: tuple[GridPoint, ...]
    """In the order of `config.grid`; empty if that has a single value."""
    chosen: Mapping[str, float]
    """The setting of the head."""
    held_out_rows: int
    """Number of held-out training rows, on which the penalty was chosen."""
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
        return f"<Probe: top-1 {top1}, {self.classes:,} classes, c {self.chosen['c']:g}>"

    @property
    def held_out_top1(self) -> float | None:
        """Top-1 of the chosen point on the rows that it was chosen on: an upper estimate."""
        return next((point.top1 for point in self.grid if point.c == self.chosen.get("c")), None)

    @property
    def top1(self) -> float | None:
        """Top-1 on the validation rows, or else on the held-out rows."""
        return self.val.top1 if self.val is not None else self.held_out_top1

    @property
    def protocol(self) -> str:
        """Description of the protocol, in a paragraph."""
        config = self.config
        features = "standardised" if config.standardise else "as stored, not normalised"
        share = f"({100 * config.held_out:g} % of each class, seed {config.seed})"
        choice = "a single penalty, hence no choice"
        if self.grid:
            choice = (
                f"the best of {len(self.grid)} penalties by loss on {self.held_out_rows:,} held-out"
                f" training rows {share}"
            )
        return (
            "multinomial logistic regression with an L2 penalty, by L-BFGS (at most"
            f" {config.max_iterations:,} iterations); features {features}, without augmentation;"
            f" {choice}, trained on all {self.train_rows:,} rows of {self.classes:,} classes"
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
    source: Source, config: ProbeConfig | None = None, *, observer: Observer = ignore
) -> Probe:
    """Fit a head to the training rows of a cache, with a row per class that has training rows.

    Args:
        source: Features with their classes; without validation rows the accuracy on the
            held-out rows is reported.
        config: How the head is fitted, and the values to try.
        observer: Called with each event as it happens.

    Raises:
        CacheError: If fewer than two classes have rows, or if no row can be held out to choose from
            a grid.
        DeviceError: If the device is absent.
    """
    started, config = now(), config or ProbeConfig()
    device = choose_device(config.device)
    watch = Stopwatch(device)
    rows, row_of_class = present_rows(source)
    train, classes = LabelledRows.on(device, rows.features, rows.labels), len(rows.class_names)
    held, c = np.zeros(len(rows.labels), dtype=bool), config.grid[0]
    grid: tuple[GridPoint, ...] = ()

    def progress(what: str) -> Tell:
        return lambda done, total: observer(Progressed(what, done, total, "searches"))

    if len(config.grid) > 1:
        random = generator(config.seed, Draw.HELD_OUT)
        held = held_out_rows(rows.labels, groups_of(source.train), config.held_out, random)
        with watch.phase("grid"):
            grid = _tried(train, held, classes, config, progress("Trying penalties"))
        c = min(grid, key=lambda point: point.held_out_loss).c
    with watch.phase("refit"):
        (fitted,) = fit(train, classes, [c], config, progress("Training on all rows"))
    head, notes = fitted.rows.as_head(rows.class_names), [*_grid_notes(grid, fitted, c)]
    facts = {"c": c, "converged": all(point.converged for point in grid or (fitted,))}
    if 0 < (count := int(held.sum())) < FEW_ROWS:
        notes.append(
            f"the scale of the logits is fitted to {count:,} held-out rows alone: a rough guess"
        )
    with torch.no_grad():
        test = LabelledRows.on(device, source.val.features, source.val.labels)
        val = measure(Rows.of_head(head), test, row_of_class)
    origin = {"fitted": "logistic", **facts, "rows": len(rows.labels)}
    about = {"cache": source.description, "device": device_name(device), "started": started}
    return Probe(
        config=config,
        grid=grid,
        chosen={"c": c},
        held_out_rows=count,
        train_rows=len(rows.labels),
        classes=head.num_classes,
        head=replace(head, origin=origin, fingerprint=source.fingerprint.backbone_identifier),
        loss=fitted.loss,
        val=val,
        notes=(*source.notes, *notes),
        seconds={**watch.seconds, "total": source.load_s + watch.total},
        facts=about | provenance(),
    )


def first_head(source: Source) -> Head:
    """Solve for the first head of a model: W_LS with class-balanced averages.

    With 3 to 50 classes of 1 to 20 images, it is up to 3 points more accurate than logistic
    regression, which also needs two images of a class. The leave-one-out error chooses lambda.
    Scores are divided by a temperature, fitted to held-out rows with a second head that is solved
    without them. Labels are smoothed, so that a temperature exists even if all of these rows are
    classified correctly; there is none if every class has a single row.

    Args:
        source: Features with their classes.

    Raises:
        CacheError: If fewer than two classes have rows.
    """
    (rows, _), groups = present_rows(source), groups_of(source.train)
    held = held_out_rows(rows.labels, groups, HELD_OUT, generator(0, Draw.HELD_OUT))
    statistics = _statistics(rows)
    curve = leave_one_out_curve(rows.features, rows.labels, statistics, groups=repeating(groups))
    head = least_squares_head(statistics, curve.best).as_head(rows.class_names)
    origin: dict[str, Any] = {"fitted": "ridge", "lam": curve.best}
    if count := int(held.sum()):
        others, aside = (
            replace(part, features=part.features[:]) for part in (rows.part(~held), rows.part(held))
        )
        solved = least_squares_head(_statistics(others), curve.best).as_head(rows.class_names)
        logits = temperature.logits_of(solved, aside, np.arange(count))
        found = temperature.fit_temperature(logits, aside.labels, smoothed=True)
        if found is not None:
            origin |= {"temperature": found, "temperature_rows": count}
            scale = temperature.Temperature(value=found, fitted_rows=count, measured_rows=0)
            head = scale.divided(head)
    origin["rows"] = len(rows.labels)
    return replace(head, origin=origin, fingerprint=source.fingerprint.backbone_identifier)


def _statistics(rows: FeatureSet) -> ClassStatistics:
    return ClassStatistics.of(rows.features, rows.labels, num_classes=len(rows.class_names))


def present_rows(source: Source) -> tuple[FeatureSet, PerClass]:
    """Return the training rows, labelled by head row, and the head row of each class or -1."""
    present = np.flatnonzero(source.train.counts())
    if len(present) < 2:
        raise CacheError(
            f"{source.path or 'the data'}: {len(present)} of its classes have training rows, and a"
            " head needs at least two",
            remedy="Look at it with `clinit cache show`.",
        )
    row_of_class = np.full(len(source.class_names), -1, dtype=np.int64)
    row_of_class[present] = np.arange(len(present))
    names = tuple(source.class_names[label] for label in present)
    labels = row_of_class[source.train.labels]
    return FeatureSet(source.train.features, labels, names), row_of_class


def _tried(
    train: LabelledRows, held: Mask, num_classes: int, config: ProbeConfig, tell: Tell
) -> tuple[GridPoint, ...]:
    """Train a head per penalty on rows that are not held out; measure it on the held-out rows."""
    if not held.any():
        raise CacheError(
            "every class has a single training row: no row can be held out to choose a penalty",
            remedy="Give a single penalty (--c 1), or more images of each class.",
        )
    part, aside = (train.subset(torch.from_numpy(np.flatnonzero(rows))) for rows in (~held, held))
    fitted = fit(part, num_classes, config.grid, config, tell)
    with torch.no_grad():
        bank = _bank([each.rows for each in fitted], train.labels.device)
        right, losses = evaluate(bank, aside).correct.sum(1), mean_losses(bank, aside)
    return tuple(
        GridPoint(
            c, 100 * int(hits) / len(aside), float(loss), each.loss, each.iterations, each.converged
        )
        for c, each, hits, loss in zip(config.grid, fitted, right, losses, strict=True)
    )


def _bank(heads: Sequence[Rows], device: torch.device) -> Bank:
    bank = Bank(heads[0], [Training()] * len(heads), device)
    for index, rows in enumerate(heads):
        bank.write(index, 0, rows)
    return bank


def measure(head: Rows, test: LabelledRows, row_of_class: PerClass) -> Accuracy | None:
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
    correct = evaluate(bank, rows).correct[0]
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


def _grid_notes(grid: Sequence[GridPoint], fitted: Fitted, chosen: float) -> Iterator[str]:
    """Yield notes on grids or searches that should be extended."""
    if grid and chosen in (grid[0].c, grid[-1].c):
        beyond = [chosen * step for step in ((10, 100) if chosen == grid[-1].c else (0.1, 0.01))]
        more = " ".join(f"--c {each:g}" for each in (chosen, *beyond))
        yield f"the best --c, {chosen:g}, is at the end of its grid: try {more}, too"
    if not fitted.converged or not all(point.converged for point in grid):
        yield "L-BFGS stopped before the minimum: raise --max-iterations"
