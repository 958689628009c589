"""Heads from Python: store them, read them, measure them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clinit.analysis.metrics.diagnosis import Diagnosis, diagnose_split
from clinit.api.caches import Cache, loaded
from clinit.errors import ExperimentError
from clinit.extract.cache.head import Head, read_head, write_head
from clinit.extract.cache.read import open_cache
from clinit.extract.dataset.known import is_text
from clinit.headtrain.array import as_array, to_numpy
from clinit.headtrain.probe.protocol import Probe
from clinit.headtrain.probe.protocol import probe as probe_source
from clinit.headtrain.probe.settings import ProbeConfig
from clinit.headtrain.setting import fields_of
from clinit.headtrain.stream.source import Source
from clinit.machine import choose_device

SUFFIXES = (".safetensors", ".npz")


def save_head(
    path: str | Path,
    weight: Any,
    bias: Any,
    class_names: Sequence[str],
) -> Head:
    """Write a linear head to a file that every command with `--head` reads.

    Args:
        path: The file, .safetensors or .npz; what is there is replaced.
        weight: An array (classes, dim) of NumPy, torch or CuPy, of any float type; stored in
            float32.
        bias: An array (classes,) of the same; None for zeros.
        class_names: One per row, all different: the names of the classes in the base cache.

    Raises:
        ValueError: If an array has a wrong shape or type, or holds what is not finite, or the names
            do not tell the rows apart.
        ClinitError: If the file cannot be written.
    """
    place = Path(path)
    if place.suffix not in SUFFIXES:
        raise ValueError(f"a head is written as .safetensors or .npz, got {place.name!r}")
    rows = to_numpy(as_array(weight))
    if rows.ndim != 2 or rows.dtype.kind != "f" or not rows.size:
        raise ValueError(f"weight is {rows.dtype} {rows.shape}, expected floats (classes, dim)")
    biases = np.zeros(len(rows), np.float32) if bias is None else to_numpy(as_array(bias))
    if biases.shape != rows.shape[:1] or biases.dtype.kind != "f":
        raise ValueError(f"bias is {biases.dtype} {biases.shape}, expected floats ({len(rows)},)")
    with np.errstate(over="ignore"):
        rows, biases = rows.astype(np.float32), biases.astype(np.float32)
    if not (np.isfinite(rows).all() and np.isfinite(biases).all()):
        raise ValueError("weight or bias holds values that are not finite in float32")
    head = Head(rows, biases, _names(class_names, len(rows)))
    write_head(head, place)
    return head


def load_head(path: str | Path) -> Head:
    """Read a head file: of clinit, or from elsewhere with `weight` and `bias`.

    Raises:
        HeadError: If there is none, or it is damaged.
    """
    return read_head(Path(path))


def diagnose(
    cache: Cache,
    head: Head | str | Path | None = None,
    *,
    split: str = "val",
    lam: float = 0.05,
    per_class: bool = False,
    device: str = "auto",
) -> Diagnosis:
    """Measure neural collapse (NC1 to NC4) and D_LS of a head on a split of a cache.

    Args:
        cache: Features with their classes, or their folder; they are read from there.
        head: The head, matched with the classes by name; default: the one in the cache.
        split: `train` or `val`.
        lam: Ridge of the least squares that D_LS compares with, >= 0.
        per_class: Whether to also measure each class.
        device: `auto`, `cuda` or `cpu`.

    Raises:
        CacheError: If the cache lacks the split, or is damaged.
        ExperimentError: If there is no head.
        HeadError: If the width of the head differs, or it has no class of the split.
    """
    folder = cache.path if isinstance(cache, Source) else cache
    opened = open_cache(Path(folder))
    if head is None:
        head = cache.head if isinstance(cache, Source) else opened.head
    if head is None:
        raise ExperimentError(
            f"{folder} holds no pretrained head",
            remedy="Extract the classes with a backbone that has a classifier, or give a head.",
        )
    chosen = head if isinstance(head, Head) else read_head(Path(head))
    return diagnose_split(
        opened.split(split), chosen, lam=lam, per_class=per_class, device=choose_device(device)
    )


def probe(cache: Cache, **settings: Any) -> Probe:
    """Measure how well a linear head tells the classes of a cache apart: the linear probe.

    Args:
        cache: Features with their classes, or their folder.
        settings: Those of `clinit probe`, by name: `by`, `lr`, `weight_decay`, `epochs`,
            `batch_size`, `c`, `max_iterations`, `held_out`, `standardise`, `seed`, `device`. `lr`,
            `weight_decay` and `c` are lists of what is tried.

    Raises:
        ValueError: If a setting is unknown or wrong.
        ClinitError: If there is nothing to tell apart or to hold out, or every head diverges.
    """
    every = fields_of(ProbeConfig)
    if unknown := [name for name in settings if name not in every]:
        raise ValueError(f"there is no setting {unknown[0]!r}")
    taken = {name: every[name].taken(value) for name, value in settings.items()}
    return probe_source(loaded(cache), ProbeConfig(**taken))


def _names(names: Sequence[str], count: int) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) and name and is_text(name) for name in found):
        raise ValueError("class_names must be texts, one per row")
    if len(found) != count or len(set(found)) != count:
        raise ValueError(
            f"{len(found)} class names, {len(set(found))} of them different, for {count} rows"
        )
    return found
