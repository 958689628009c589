"""What an export takes from a run record: head, features, memory, temperature, history, images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from clinit.errors import CacheError, ClinitError, RecordError, StorageError
from clinit.extract.cache import Cache, CacheSplit, open_cache, open_split
from clinit.extract.dataset.manifest import Manifest
from clinit.extract.features import FeatureSet
from clinit.extract.fingerprint import Fingerprint
from clinit.extract.head import Head, Top1
from clinit.headtrain.export.change import Change, counted
from clinit.headtrain.export.memory import Memory, first_rows
from clinit.headtrain.record.format import RunRecord, final_head, find_records, read_record
from clinit.headtrain.record.info import SideInfo
from clinit.headtrain.record.measured_on import is_held_out
from clinit.headtrain.rows import never_wins
from clinit.headtrain.temperature import LEAST_ROWS, Temperature, temperature_of


def read_run(run: Path) -> RunRecord:
    """Read the record at `run`.

    Raises:
        RecordError: If there is none, or it is damaged; those below it are named.
    """
    if run.is_dir() and not (run / "run.json").exists() and (found := find_records(run)):
        names = ", ".join(str(folder.relative_to(run)) for folder in found[:5])
        raise RecordError(
            f"{run} is no run record, but holds {len(found)} of them:"
            f" {names}{', …' if len(found) > 5 else ''}",
            remedy=f"Give one: `clinit export {found[0]} --out FILE`.",
        )
    return read_record(run)


def learnt_head(run: Path, record: RunRecord) -> Head:
    """Return the head that a run ended with, its rows being the first classes of the record.

    Raises:
        RecordError: If the record holds no head, or one of other classes.
        HeadError: If the head is damaged, its training has diverged, or it is no linear one.
    """
    head = final_head(record)
    names, num_learnt = tuple(record.classes["name"]), _num_learnt(record)
    expected = {names, names[:num_learnt]}  # where it was stopped, a head may have rows beyond
    if head.class_names not in (None, *expected) or head.num_classes not in map(len, expected):
        raise RecordError(
            f"the head in {run} is not of the {len(names):,} classes of the record",
            remedy="The record is damaged: remove its folder and run `clinit train-head` again.",
        )
    return replace(
        head,
        weight=head.weight[:num_learnt],
        bias=head.bias[:num_learnt],
        class_names=None if head.class_names is None else names[:num_learnt],
    )


def _num_learnt(record: RunRecord) -> int:
    """Return the number of classes that the run has learnt, those of the base included."""
    last = max(task["task"] for task in record.info["tasks"])
    return int((record.classes["task"] <= last).sum())


def run_rows(
    record: RunRecord,
    num_classes: int,
    split: str,
    *,
    base: Path | None = None,
    new: Path | None = None,
) -> FeatureSet:
    """Return the rows of the classes of a run, of base and new ones.

    Args:
        record: Of a run with a frozen backbone; its caches are read again.
        num_classes: Classes of the model: the first ones of the record.
        split: `train`, or `val`, the rows that no head was trained on; a side that lacks it has
            none.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.

    Returns:
        Features with the rows of the head as labels.

    Raises:
        CacheError: If a cache is not there any more, is of another backbone, or holds other rows,
            as far as the record says which they were.
    """
    names = tuple(record.classes["name"])[:num_classes]
    num_base = int((record.classes["task"] == 0).sum())
    row_of = [
        {name: row for row, name in enumerate(names[:num_base])},
        {name: row for row, name in enumerate(names[num_base:], start=num_base)},
    ]
    sides = (record.info["base"], base), (record.info["new"], new)
    options = "--base", "--new"
    parts = [
        _in_rows(_rows(_cache(told, place, option, split), split), rows, names)
        for (told, place), option, rows in zip(sides, options, row_of, strict=True)
    ]
    return FeatureSet(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.labels for part in parts]),
        names,
    )


def _cache(told: SideInfo, place: Path | None, option: str, split: str) -> Cache:
    """Open a cache of a run, if it is the one of then."""
    path = Path(told["path"]) if place is None else place
    moved = f"Say where that one is with `{option} CACHE`."
    if place is None and not path.is_dir():
        raise CacheError(f"nothing is at {path}, where a cache of the run was", remedy=moved)
    cache = open_cache(path)
    found = cache.split("train").fingerprint.without_rows
    differing = [each.name for each in Fingerprint(told["fingerprint"]).differences(found)]
    if not differing and split in cache.splits and _are_others(told, cache.splits[split]):
        differing = [f"its {split} rows"]
    if differing:
        raise CacheError(
            f"the cache at {path} is not the one of the run: it differs in {', '.join(differing)}",
            remedy=moved,
        )
    return cache


def _are_others(told: SideInfo, split: CacheSplit) -> bool:
    """Return whether a split holds other rows than that of the run, by the digests of both.

    A record of an earlier version has none of imported files, and the trial of a search none of
    its test rows: what is not known is not compared.
    """
    prefix = "" if split.plan.split == "train" else "val_"
    then = [told.get(f"{prefix}{kind}_digest") for kind in ("manifest", "features")]
    now = split.fingerprint.manifest, split.fingerprint.features
    return any(
        isinstance(one, str) and not is_held_out(one) and one != other
        for one, other in zip(then, now, strict=True)
    )


def _rows(cache: Cache, split: str) -> FeatureSet:
    if split in cache.splits:
        return cache.splits[split].load()
    train = cache.split("train")
    empty = np.empty((0, train.dim), dtype=train.dtype)
    return FeatureSet(empty, np.empty(0, dtype=np.int64), train.class_names)


def _in_rows(rows: FeatureSet, row_of: Mapping[str, int], names: tuple[str, ...]) -> FeatureSet:
    places = np.array([row_of.get(name, -1) for name in rows.class_names], dtype=np.int64)
    labels = places[rows.labels]
    known = labels >= 0
    return FeatureSet(rows.features[known], labels[known], names)


HELD_OUT_PER_CLASS = 20
"""Validation features that are remembered of each class, to measure the model on later."""


def memory_of_run(
    record: RunRecord,
    num_classes: int,
    depends_on: Mapping[str, str],
    *,
    base: Path | None = None,
    new: Path | None = None,
) -> Memory:
    """Return the statistics of all training rows of the classes of a run, and held-out features.

    Args:
        record: Of a run with a frozen backbone; its caches are read again.
        num_classes: Classes of the model: the first ones of the record.
        depends_on: What the features depend on.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.

    Raises:
        CacheError: If a cache is not there any more, or is another one, as in `run_rows`.
    """
    train, val = (
        run_rows(record, num_classes, split, base=base, new=new) for split in ("train", "val")
    )
    held_out = first_rows(val, HELD_OUT_PER_CLASS)
    return Memory.of(train, depends_on, held_out=held_out)


NOT_DIVIDED = "the probabilities are those of the head as it was trained"


def temperature_of_run(
    record: RunRecord,
    head: Head,
    *,
    frozen: bool,
    base: Path | None = None,
    new: Path | None = None,
) -> tuple[Temperature | None, tuple[str, ...]]:
    """Return the temperature, or why there is none.

    Args:
        record: The run; its caches are read again.
        head: The head that it ended with.
        frozen: Whether its backbone is as it was: cached features are of no other.
        base: The feature cache of the base classes, where it is not where the record says.
        new: That of the classes that arrived.
    """
    if not frozen:
        why = "training has changed the backbone, so that cached features are not its own"
        return None, (f"{NOT_DIVIDED}: {why}",)
    try:
        rows = run_rows(record, head.num_classes, "val", base=base, new=new)
    except (CacheError, StorageError) as error:
        return None, (f"{NOT_DIVIDED}: {error}. {error.remedy}",)
    found = temperature_of(head, rows)
    if found is not None:
        return found, ()
    if (count := int((~never_wins(head))[rows.labels].sum())) < LEAST_ROWS:
        few = f"a temperature needs {LEAST_ROWS} held-out rows, the run has {count:,}"
        return None, (f"{NOT_DIVIDED}: {few}",)
    why = "no temperature has the least loss on its held-out rows: all are labelled right, or the"
    return None, (f"{NOT_DIVIDED}: {why} logits tell nothing of them",)


def accuracies(record: RunRecord) -> dict[str, Top1]:
    """Return what the run had right at its end: of all, base and new classes and by task."""
    last = record.evaluations.filter(pl.col("task") == pl.col("task").max())
    last = last.filter(pl.col("iteration") == pl.col("iteration").max())
    arrived = last.join(record.classes.select("row", arrival="task"), on="row", how="left")
    parts = {
        "all": last,
        "base": arrived.filter(pl.col("arrival") == 0),
        "new": arrived.filter(pl.col("arrival") > 0),
    }
    tasks = sorted(set(parts["new"]["arrival"]))
    for task in tasks if len(tasks) > 1 else ():
        parts[f"task {task}"] = arrived.filter(pl.col("arrival") == task)
    return {
        name: Top1(int(part["correct"].sum()), int(part["total"].sum()))
        for name, part in parts.items()
    }


def change_of(record: RunRecord, num_classes: int, ended: Mapping[str, Top1]) -> Change:
    """Return the run as the first change of the model that it gives."""
    info = record.info
    arrived = record.classes.head(num_classes).filter(pl.col("task") > 0)
    data: dict[str, Any] = {"run": info["id"], "command": info.get("command")}
    for name, side in (("base", info["base"]), ("new", info["new"])):
        data[name] = {
            "cache": side["path"],
            "manifest": side.get("manifest_digest"),
            "val_manifest": side.get("val_manifest_digest"),
        }
    groups = {"old": ended["base"], "new": ended["new"], "all": ended["all"]}
    groups |= {name: part for name, part in ended.items() if name.startswith("task ")}
    return Change(
        action="run",
        date=info.get("started", ""),
        clinit=str(info.get("versions", {}).get("clinit", "")),
        task=None,
        classes=tuple(arrived["name"]),
        images=dict(arrived.select("name", "train_rows").iter_rows()),
        data=data,
        settings=dict(info["config"]),
        accuracy=counted(groups),
    )


MOST = 64


def images_of(record: RunRecord) -> list[Path]:
    """Return at most `MOST` test images of a run, of old and new classes, evenly spread.

    They are looked for where the caches of the run were extracted from; none where these or their
    images are gone, and none where they lie in containers.
    """
    caches = _caches(record)
    return [path for cache in caches for path in _images(cache, MOST // len(caches))]


def in_containers(record: RunRecord) -> tuple[Path, ...]:
    """Return the caches of a run whose test images lie in tar or Parquet files."""
    told = ((cache, _test_images(cache)) for cache in _caches(record))
    return tuple(cache for cache, found in told if found is not None and found[1].is_contained)


def _caches(record: RunRecord) -> tuple[Path, ...]:
    return tuple(Path(record.info[side]["path"]) for side in ("base", "new"))


def _test_images(cache: Path) -> tuple[str | None, Manifest] | None:
    """Return the folder and the manifest of the test images; None where the cache is gone."""
    try:
        split = open_split(cache / "val")
        return split.summary.run.root, split.manifest
    except (ClinitError, OSError):
        return None


def _images(cache: Path, count: int) -> list[Path]:
    root, manifest = _test_images(cache) or (None, None)
    if root is None or manifest is None or manifest.table.is_empty():
        return []
    names = manifest.table["path"]
    rows = np.unique(np.linspace(0, len(names) - 1, num=count).astype(int))
    paths = (Path(root) / names[int(row)] for row in rows)
    return [path for path in paths if path.is_file()]
