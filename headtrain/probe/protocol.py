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

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import torch
from jaxtyping import Int

from clinit.errors import CacheError, HeadError
from clinit.headtrain.groups import groups_of, held_out_rows
from clinit.headtrain.probe.fit import Fitted, Progress, fit
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
            grid = _tried(train, held, len(present), config, _of_stage(progress, "grid"))
        chosen = _best(grid, choose_by)
    with watch.phase("refit"):
        (fitted,) = fit(train, len(present), [chosen], config, _of_stage(progress, "refit"))
    _check(fitted)
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
        notes=(
            *data_notes(source, has_choice=bool(grid)),
            *edge_notes(grid, chosen),
            *search_notes(grid, fitted),
        ),
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


def _check(fitted: Fitted) -> None:
    if not np.isfinite(fitted.loss):
        raise HeadError(
            f"the probe has diverged: its loss is {fitted.loss}", remedy="Use a smaller --lr."
        )


def _of_stage(progress: Callable[[str, int, int], None], stage: str) -> Progress:
    return lambda done, total: progress(stage, done, total)


_OPTIONS = {"lr": "--lr", "weight_decay": "--weight-decay", "c": "--c"}


def data_notes(source: Source, *, has_choice: bool) -> list[str]:
    """Return what the data lack."""
    counts = source.train.counts()
    empty = [source.class_names[label] for label in np.flatnonzero(counts == 0)]
    single = int((counts == 1).sum())
    notes = [*source.notes]
    if empty:
        notes.append(
            f"{len(empty):,} classes have no training image ({examples(empty)}): the head has no"
            " row for them, and their validation images count as wrong"
        )
    if single and has_choice:
        notes.append(f"{single:,} classes have a single training image: none is held out of these")
    if not len(source.val.labels):
        notes.append(
            "there is no validation row: the accuracy is that of the chosen settings on the rows"
            " that they were chosen by, an upper estimate"
            if has_choice
            else "there is no validation row, and no grid to choose from: nothing is measured"
        )
    return notes


def edge_notes(grid: Sequence[GridPoint], chosen: Mapping[str, float]) -> list[str]:
    """Return a note for each setting whose best value is the first or last one that was tried."""
    notes = []
    for name, value in chosen.items():
        tried = sorted({point.settings[name] for point in grid})
        if len(tried) < 2 or value not in (tried[0], tried[-1]) or value == 0:
            continue
        end, more = ("smallest", "smaller") if value == tried[0] else ("largest", "larger")
        notes.append(
            f"the best {_OPTIONS[name]}, {value:g}, is the {end} one that was tried: a {more} one"
            " may be better still"
        )
    return notes


def search_notes(grid: Sequence[GridPoint], refit: Fitted) -> list[str]:
    """Return a note on heads that have diverged, and one on searches that were cut short."""
    notes = []
    diverged = sum(not np.isfinite(point.loss) for point in grid)
    if diverged:
        notes.append(f"{diverged:,} of {len(grid):,} heads of the grid have diverged")
    short = sum(not point.converged for point in grid) + (not refit.converged)
    if short:
        notes.append(
            f"{short:,} of {len(grid) + 1:,} searches ended before the minimum:"
            " more --max-iterations go on"
        )
    return notes
