"""Runs from Python: train heads, measure heads and features.

All settings of a study as keyword arguments, for editors and type checkers.

A list in place of a value means one run per value; several lists mean all combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex, TypeAlias, TypedDict, TypeVar, Unpack

import numpy as np

from clinit.analysis.metrics.diagnosis import Diagnosis, diagnose_splits
from clinit.analysis.runs import Runs, load_runs, runs_of
from clinit.arrays import Features, head_of, in_bytes, load_cache
from clinit.errors import ExperimentError
from clinit.extract.cache.head import Head, read_head
from clinit.extract.cache.read import open_cache
from clinit.files.lock import claim_folder
from clinit.headtrain.heads.start.settings import PAPER_INITS, Init, NewShare, Scale, Weighting
from clinit.headtrain.probe.protocol import Probe, probe as probe_source
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.protocol import runs
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.stream.source import Source, read_sources
from clinit.headtrain.protocol.study import parts
from clinit.headtrain.protocol.study.rules import refusals, settings_of
from clinit.headtrain.protocol.study.study import Study
from clinit.machine import choose_device
from clinit.observer import Observer, warn
from clinit.setting import check_known, fields_of

T = TypeVar("T")
Many: TypeAlias = T | Sequence[T]


class HeadSettings(TypedDict, total=False):
    """Settings of runs that train heads, as the options of `clinit train-head`."""

    method: Many[parts.MethodName]
    tasks: Many[int]
    stop_after: Many[int]
    iterations: Many[int]
    buffer: Many[int]
    old_rows: Many[str]
    mix: Many[str]
    batch_size: Many[int]
    shots: Many[int]
    eval_every: Many[int | str]
    mistakes: Many[str]
    class_order: Sequence[str]
    seed: Many[int]
    init: Many[Init | Callable[..., Any]]
    scale: Many[Scale]
    calibration: Many[str]
    new_share: Many[NewShare]
    lam: Many[float | str]
    fit_ridge: Many[float]
    max_old_loss: Many[float]
    weighting: Many[Weighting]
    class_mean: Many[str]
    bias: Many[str]
    init_rows: Many[str]
    head_width: Many[str]
    protocol: Many[parts.Protocol]
    loss: Many[parts.Loss | Callable[..., Any]]
    step: Many[str | Callable[..., Any]]
    lr: Many[float]
    schedule: Many[parts.RateSchedule]
    weight_decay: Many[float]
    anchor: Many[parts.AnchorKind]
    anchor_strength: Many[float | str]
    precision: Many[parts.Precision]
    device: Many[str]
    slda_shrinkage: Many[float]
    ranpac_width: Many[int]
    ranpac_lam: Many[float | str]


GivenCache = Source | str | Path
"""Features, or the folder of a feature cache."""
Caches = GivenCache | Sequence[str | Path]
"""One cache, or the folders of several caches of one backbone."""
GivenHead = Head | str | Path | tuple[Any, Any] | Any
"""A head, its file, its weight (classes, dim) and bias (classes,) as arrays, or a fitted linear
classifier of scikit-learn."""
Variant = Mapping[str, Any]
"""Settings of one run, by name."""


def train(
    base: Caches | None,
    new: Caches,
    *variants: Variant | Sequence[Variant],
    head: GivenHead | None = None,
    seeds: SupportsIndex | Iterable[SupportsIndex] | None = None,
    out: str | Path | None = None,
    memory: int | str | None = None,
    overwrite: bool = False,
    observer: Observer = warn,
    **settings: Unpack[HeadSettings],
) -> Runs:
    """Train linear heads on new classes that arrive in tasks, on features.

        runs = clinit.train(base, new, tasks=5, init=["random", "least-square"], seeds=range(3))

    Runs with the same stream (they differ only in their heads) are trained side by side, on the
    same batches; seeds are trained one after another. The results equal `clinit train-head`'s. Runs
    that `out` already contains, under any name, are not trained again.

    Args:
        base: Features of the classes of the pretrained head. None means a stream without base
            classes, whose first task makes the head.
        new: Features of the classes that arrive in tasks.
        variants: Further settings of single runs, by name, such as `{"init": "lda", "lr": 0.01}`.
        head: The pretrained head: a `Head`, its file, a fitted linear classifier of scikit-learn,
            or weight and bias, a row per class of `base`. None takes the head in the base cache.
        seeds: Seeds for every run, such as `range(5)` or 5.
        out: Folder to record each run in; None writes nothing.
        memory: Maximum memory for the features of caches that are given as folders, in bytes or as
            `8GB`. Larger features stay on disk, with the same results. None means free memory.
        overwrite: Whether to replace existing records, of these or other runs.
        observer: Called with each event as it happens; by default, warnings become Python's.
        settings: Options of `clinit train-head`, with underscores; `--lambda` is `lam`. A list
            means a run per value, several lists all combinations. Without `init`, the starts of the
            paper: random, class means, least squares.

    Raises:
        ValueError: If a setting is unknown or wrong, or no run reads it.
        ClinitError: If the data do not fit together, or a record cannot be written.
    """
    studies = _studies(variants, settings, _listed(seeds))
    old, came = _opened(base, new, memory)
    data = RunData.of(old, came, {"": _head(head, old)})
    if out is None:
        records = runs.train_heads(data, studies, observer=observer)
        return runs_of([records[each] for each in studies])
    with claim_folder(Path(out)):
        places = runs.places_of(studies, Path(out), overwrite=overwrite)
        left = runs.left_of(places, data, overwrite=overwrite)
        runs.train_heads(data, studies, left, observer=observer, overwrite=overwrite)
    return load_runs(*places.values())


def _listed(seeds: Any) -> Iterable[int] | None:
    if seeds is None:
        return None
    try:
        is_count = hasattr(seeds, "__index__") and not np.ndim(seeds)  # arrays have it, too
        return range(index(seeds)) if is_count else [*map(index, seeds)]
    except TypeError:
        raise ValueError(f"seeds takes a count or integers as range(3), got {seeds!r}") from None


def _studies(
    variants: Sequence[Variant | Sequence[Variant]],
    settings: Mapping[str, Any],
    seeds: Iterable[int] | None,
) -> list[Study]:
    """Return one resolved study per variant, combination of settings and seed.

    Raises:
        ValueError: If there is none, a setting is wrong or none reads it.
    """
    flat = [one for each in variants for one in ([each] if isinstance(each, Mapping) else each)]
    if variants and not flat:
        raise ValueError("there is no study: give at least one")
    inits = {} if "init" in settings or flat else {"init": PAPER_INITS}
    every, grid = settings_of(), {**settings, **inits}
    grid = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in grid.items()}
    lists = [
        list(value)
        if isinstance(value, list | tuple | range) and not (name in every and every[name].items)
        else [value]
        for name, value in grid.items()
    ]
    if empty := [name for name, values in zip(grid, lists, strict=True) if not values]:
        raise ValueError(f"{empty[0]} is an empty list: no run has a value of it")
    found, asked = [], dict.fromkeys(settings)
    for seed in [{}] if seeds is None else [{"seed": seed} for seed in seeds]:
        for variant in flat or [{}]:
            asked |= dict.fromkeys(variant)
            for values in product(*lists):
                found.append(Study.of({**dict(zip(grid, values, strict=True)), **variant, **seed}))
    if not found:
        raise ValueError("seeds is empty: give at least one")
    if asked and (unread := refusals(asked, found)):
        raise ValueError(unread[0])
    return list(dict.fromkeys(study.resolved() for study in found))


def _opened(
    base: Caches | None, new: Caches, memory: int | str | None
) -> tuple[Source | None, Source]:
    """Open those caches that are folders, so that together they need at most `memory`."""
    if new is None:
        raise ValueError("new is None: give the classes that arrive")
    if isinstance(base, tuple) and np.ndim(base[0]):  # features and labels
        base = Features(*base)
    if isinstance(new, tuple) and np.ndim(new[0]):
        new = Features(*new)
    folders = [
        [Path(path) for path in ([each] if isinstance(each, str | Path) else each)]
        for each in (base, new)
        if each is not None and not isinstance(each, Source)
    ]
    if memory is not None and not folders:
        raise ValueError("both caches are loaded already: give folders, or load them with memory=")
    read = iter(read_sources(*folders, memory=in_bytes(memory)))
    old = base if base is None or isinstance(base, Source) else next(read)
    return old, new if isinstance(new, Source) else next(read)


def _head(given: Any, base: Source | None) -> Head | Path | None:
    if hasattr(given, "coef_"):  # a fitted classifier of scikit-learn
        return head_of(given.coef_, given.intercept_, [*map(str, given.classes_)])
    if isinstance(given, tuple):
        if base is None:
            raise ValueError("a head was given as arrays, but no base classes, which name its rows")
        weight, bias = given
        rows, classes = np.size(weight, 0) if np.ndim(weight) else 0, len(base.class_names)
        if rows != classes and (rows, classes) != (1, 2):
            raise ValueError(f"the head has {rows:,} rows, and the base has {classes:,} classes")
        return head_of(weight, bias, base.class_names)
    if not isinstance(given, Head | Path | str | None):
        raise ValueError(f"head is {type(given).__name__}, expected a pair: weight and bias")
    return Path(given) if isinstance(given, str) else given


def diagnose(
    cache: GivenCache | Sequence[GivenCache],
    head: Head | str | Path | None = None,
    *,
    split: str | None = None,
    lam: float = 0.05,
    device: str = "auto",
) -> Diagnosis:
    """Measure neural collapse (NC1 to NC4) and D_LS of a head on a split of a cache.

    Args:
        cache: A cache, whose features are read from its folder, or several of one backbone, whose
            rows are measured together.
        head: The head, whose rows are matched with the classes by name; None takes the head in the
            first cache.
        split: `train` or `val`; None means train or, without it, val.
        lam: Ridge of the least-squares head that D_LS compares with, >= 0.
        device: `auto`, `cuda` or `cpu`.

    Raises:
        CacheError: If the cache lacks the split, or is damaged.
        ExperimentError: If `head` is None and the cache contains no head.
        HeadError: If the width of the head differs from the features', or the head has no class of
            the split.
    """
    caches = cache if isinstance(cache, Sequence) and not isinstance(cache, str) else [cache]
    if any(isinstance(each, Source) and not each.path for each in caches):
        raise ExperimentError(
            "features in memory are no feature cache",
            remedy="Write them as an array file, and give the folder of `clinit cache import`.",
        )
    folders = [Path(each.path if isinstance(each, Source) else each) for each in caches]
    opened = [open_cache(folder) for folder in folders]
    if head is None:
        head = caches[0].head if isinstance(caches[0], Source) else opened[0].head
    if head is None:
        raise ExperimentError(
            f"{folders[0]} contains no pretrained head",
            remedy="Extract the classes with a backbone that has a classifier, or give a head.",
        )
    chosen = head if isinstance(head, Head) else read_head(Path(head))
    splits = [each.split(split or next(iter(each.splits))) for each in opened]
    return diagnose_splits(splits, chosen, lam=lam, device=choose_device(device))


def probe(cache: GivenCache, **settings: Any) -> Probe:
    """Measure how well a linear head separates the classes of a cache: the linear probe.

    Args:
        cache: A cache, or its folder.
        settings: Options of `clinit head fit`, by name: `c`, a list of values to try,
            `max_iterations`, `standardise`, `held_out`, `seed`, `device`.

    Raises:
        ValueError: If a setting is unknown or wrong.
        ClinitError: If there are too few classes or rows.
    """
    every = fields_of(ProbeConfig)
    check_known(settings, every)
    taken = {name: every[name].taken(value) for name, value in settings.items()}
    source = cache if isinstance(cache, Source) else load_cache(cache)
    return probe_source(source, ProbeConfig(**taken))
