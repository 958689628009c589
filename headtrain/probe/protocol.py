"""The protocol of a linear probe.

Each combination of a grid trains a head on a part of the training rows, the best one by top-1 on
the held-out part (for a head that training starts from: by its mean loss there) is trained anew on
all training rows, and measured once on the validation rows, which nothing is chosen by. Of equal
points the first one of the grid wins: the smallest learning rate with the largest weight decay, or
the smallest C.

What the field does: L-BFGS over a grid of C with a held-out part of the training rows (CLIP;
DINOv2, `eval/log_regression.py`); SGD with a cosine over a grid of learning rates, without weight
decay, on augmented images, and chosen on the validation rows (DINO, DINOv2 `eval/linear.py`);
AdamW with a cosine on cached, L2-normalised features (CLIP_benchmark). Only CLIP_benchmark
normalises. Choosing on the validation rows makes the number an upper estimate: it is not done here.

Sources: A. Radford et al., "Learning transferable visual models from natural language
supervision", ICML 2021, Appendix A; M. Caron et al., "Emerging properties in self-supervised vision
transformers", ICCV 2021; M. Oquab et al., "DINOv2: learning robust visual features without
supervision", TMLR 2024.

What the user of a linear probe should know about its data, its grid and its searches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import numpy as np
import torch
from jaxtyping import Int

from clinit.errors import CacheError, HeadError
from clinit.headtrain.groups import groups_of, held_out_rows
from clinit.headtrain.probe.fit import Fitted, Point, Progress, fit
from clinit.headtrain.probe.result import Choice, GridPoint, Probe, bank_of, measure
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.record.info import provenance
from clinit.headtrain.stream.seeds import Draw, generator
from clinit.headtrain.stream.source import Source
from clinit.headtrain.train.evaluate import count_correct, mean_losses
from clinit.headtrain.train.rows import LabelledRows
from clinit.machine import choose_device, device_name
from clinit.stopwatch import Stopwatch
from clinit.words import examples


def probe(
    source: Source,
    config: ProbeConfig | None = None,
    *,
    choose_by: Choice = "top1",
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Probe:
    """Measure how well a linear head tells the classes of `source` apart.

    Args:
        source: Features with their classes; without validation rows the number is that of the
            held-out rows.
        config: How heads are trained and what is tried.
        choose_by: By what on the held-out rows the best point is chosen.
        progress: Called with the stage, `grid` or `refit`, the units of work that are done of it,
            and all there are.

    Raises:
        CacheError: If there is no class to tell from another, or nothing can be held out.
        HeadError: If the loss of every head stops being a number.
        DeviceError: If there is no such device.
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
        facts={
            "cache": source.description,
            "device": device_name(device),
            "started": started,
            **provenance(),
        },
    )


def present_classes(
    source: Source,
) -> tuple[Int[np.ndarray, " present"], Int[np.ndarray, " classes"]]:
    """Return the classes that have training rows, and the head row of each class or -1."""
    present = np.flatnonzero(source.train.counts())
    if len(present) < 2:
        raise CacheError(
            f"{source.path or 'the data'}: {len(present)} of its classes have training rows, and a"
            " head tells at least two apart",
            remedy="Look at it with `clinit cache show`.",
        )
    row_of_class = np.full(len(source.class_names), -1, dtype=np.int64)
    row_of_class[present] = np.arange(len(present))
    return present, row_of_class


def _tried(
    train: LabelledRows,
    held: np.ndarray,
    num_classes: int,
    config: ProbeConfig,
    progress: Progress,
) -> tuple[GridPoint, ...]:
    """Train a head per point on what is not held out, and measure it on what is."""
    if not held.any():
        raise CacheError(
            "every class has a single training row: nothing can be held out to choose settings by",
            remedy="Give one value of each setting, such as --lr 1e-3 --weight-decay 0.",
        )
    part, aside = (train.subset(torch.from_numpy(np.flatnonzero(rows))) for rows in (~held, held))
    fitted = fit(part, num_classes, config.grid, config, progress)
    with torch.no_grad():
        bank = bank_of([each.rows for each in fitted], train.labels.device)
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
    """Return the settings of the first of the best points."""
    finite = [point for point in grid if np.isfinite(point.loss)]
    if not finite:
        raise HeadError(
            "every head of the grid has diverged: no loss is a number", remedy="Use a smaller --lr."
        )
    if by == "loss":
        return dict(min(finite, key=lambda point: point.held_out_loss).settings)
    return dict(max(finite, key=lambda point: point.top1).settings)


def _notes(source: Source, grid: Sequence[GridPoint], fitted: Fitted, chosen: Point) -> list[str]:
    """Return what the data lack, and what another grid or search may find."""
    notes, counts = [*source.notes], source.train.counts()
    if empty := [source.class_names[label] for label in np.flatnonzero(counts == 0)]:
        notes.append(
            f"{len(empty):,} classes have no training image ({examples(empty)}): the head has no"
            " row for them, and their validation images count as wrong"
        )
    if not len(source.val.labels):
        notes.append(
            "there is no validation row: the accuracy is that of the chosen settings on the rows"
            " that they were chosen by, an upper estimate"
            if grid
            else "there is no validation row, and no grid to choose from: nothing is measured"
        )
    for name, value in chosen.items():
        tried = sorted({point.settings[name] for point in grid})
        if len(tried) > 1 and value in (tried[0], tried[-1]) and value:
            end = "smallest" if value == tried[0] else "largest"
            notes.append(
                f"the best --{name.replace('_', '-')}, {value:g}, is the {end} one that was tried:"
                " one beyond may be better still"
            )
    if diverged := sum(not np.isfinite(point.loss) for point in grid):
        notes.append(f"{diverged:,} of {len(grid):,} heads of the grid have diverged")
    if short := [point.converged for point in grid].count(False) + (not fitted.converged):
        notes.append(
            f"{short:,} of {len(grid) + 1:,} searches ended before the minimum:"
            " more --max-iterations go on"
        )
    return notes
