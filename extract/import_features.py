"""Features that somebody else computed become a cache.

Any extractor serves (CLIP, DINO, audio, text): what counts is a row of numbers and a label a
sample. Rows are put into the order of a manifest, by label and then as they came; the path of
a row in the manifest is its number in the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from clinit.errors import CacheError, HeadError
from clinit.extract.cache import CacheSplit, open_split
from clinit.extract.class_names import read_class_names
from clinit.extract.dataset import SPLITS
from clinit.extract.head import Head, read_head, write_head
from clinit.extract.lock import only_writer
from clinit.extract.manifest import Manifest, read_manifest, write_manifest
from clinit.extract.plan import Plan, backbone_identifier, read_plan, settle_plan, shard_name
from clinit.extract.readable import check_readable
from clinit.extract.shard import assemble, write_shard
from clinit.extract.summary import write_summary

SHARD_ROWS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """What the files do not say."""

    split: str = "train"
    dataset: str = "imported"
    backbone: str = "imported"
    """Name of the extractor. Caches are mixed in one experiment only where it is equal."""
    classes: Path | None = None
    """A file with a class name a line; default: the labels themselves."""
    head: Path | None = None
    """A head file, to be stored as the pretrained head."""

    def __post_init__(self) -> None:
        if self.split not in ("train", "val"):
            raise ValueError(f"split is {self.split!r}, expected train or val")


def import_features(
    features_path: Path,
    labels_path: Path,
    out: Path,
    config: ImportConfig,
    *,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
) -> CacheSplit:
    """Write one split of a cache from two `.npy` files; the features are never all in memory.

    Args:
        features_path: (rows, dim) of float16 or float32, kept as they are; float64 becomes
            float32. Rows that are not finite are marked invalid.
        labels_path: (rows,) of integers from 0, or of text.
        out: The folder of the cache.
        config: Names.
        on_rows: Called with the rows written so far and their number, after every shard.

    Raises:
        CacheError: If a file is not as described, or the split is there already.
        HeadError: If the head does not fit the features.
    """
    features = _read_features(features_path)
    labels, names = _read_labels(labels_path, len(features), config.classes)
    dtype = "float16" if features.dtype == np.float16 else "float32"
    order = np.argsort(labels, kind="stable")
    manifest = _manifest(order, labels, names, features, config)
    fingerprint = {"backbone": config.backbone, "imported": "npy", "dtype": dtype}
    stored = out / "head.safetensors"
    head = _read_head(
        config.head or (stored if stored.is_file() else None), features.shape[1], fingerprint
    )
    head, head_classes = _named(head, names)
    _refuse_other_head(head, stored)
    _refuse_other_classes(out, config.split, names)
    folder = out / config.split
    plan = Plan(
        dataset=config.dataset,
        split=config.split,
        num_rows=len(features),
        dim=features.shape[1],
        dtype=dtype,
        shard_rows=SHARD_ROWS,
        batch_size=SHARD_ROWS,
        fingerprint={**fingerprint, "manifest": manifest.digest},
    )
    _refuse_other_backbone(out, plan)
    with only_writer(folder):
        if (folder / "cache.json").exists():
            raise CacheError(
                f"{folder} holds a complete split already",
                remedy="Import into another folder with `--out`, or delete this one first.",
            )
        settle_plan(plan, folder)
        write_manifest(manifest, folder / "manifest.parquet")
        if head is not None:
            write_head(head, stored)
        for shard in range(plan.num_shards):
            rows = plan.rows(shard)
            picked = order[rows.start : rows.stop]
            with np.errstate(over="ignore"):  # float64 beyond float32: infinite, so invalid
                wide = features[picked].astype(np.float32)
            content = assemble(wide, labels[picked], {}, dtype=dtype)
            write_shard(content, folder / shard_name(shard), plan_identifier=plan.identifier)
            on_rows(rows.stop, plan.num_rows)
        write_summary(
            folder,
            plan,
            manifest,
            head=head,
            head_classes=head_classes,
            run=_facts(features_path, labels_path),
        )
    return open_split(folder)


def _named(head: Head | None, names: tuple[str, ...]) -> tuple[Head | None, str]:
    """Give a head without names those of the classes, where it has a row for each of them."""
    if head is None or head.class_names is not None:
        return head, "stored with the head" if head is not None else "unknown"
    if head.num_classes != len(names):
        return head, "unknown"
    return replace(head, class_names=names), "the classes of the data set"


def _refuse_other_head(head: Head | None, stored: Path) -> None:
    if head is None or not stored.is_file():
        return
    other = read_head(stored)
    same = (
        other.class_names == head.class_names
        and np.array_equal(other.weight, head.weight)
        and np.array_equal(other.bias, head.bias)
    )
    if not same:
        raise HeadError(
            f"{stored} holds another head than the one given",
            remedy="Leave out `--head` for the second split, or import into another folder.",
        )


def _refuse_other_classes(out: Path, split: str, names: tuple[str, ...]) -> None:
    for name in SPLITS:
        path = out / name / "manifest.parquet"
        if name != split and path.is_file() and read_manifest(path).class_names != names:
            raise CacheError(
                f"the classes of this split are not those of {out / name}",
                remedy="Import both splits with the same `--classes FILE`.",
            )


def _refuse_other_backbone(out: Path, plan: Plan) -> None:
    for name in SPLITS:
        if name == plan.split or not (out / name / "plan.json").is_file():
            continue
        other = read_plan(out / name)
        if (other.dim, backbone_identifier(other.fingerprint)) != (
            plan.dim,
            backbone_identifier(plan.fingerprint),
        ):
            raise CacheError(
                f"{out / name} holds features of another backbone ({_origin(other)}) than this"
                f" import ({_origin(plan)})",
                remedy="Give both splits the same `--backbone` and type, or use another folder.",
            )


def _origin(plan: Plan) -> str:
    return f"{plan.fingerprint.get('backbone')}, {plan.dim} x {plan.fingerprint.get('dtype')}"


def _read_features(path: Path) -> Float[np.ndarray, "rows dim"]:
    array = _load(path, mmap=True)
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise CacheError(
            f"{path} holds {array.dtype} of shape {array.shape}, expected floats (rows, dim)",
            remedy="Save one feature vector a row: `numpy.save(path, features)`.",
        )
    return array


def _read_labels(
    path: Path, rows: int, classes: Path | None
) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    array = _load(path, mmap=False)
    if array.shape != (rows,) or array.dtype.kind not in "iuU":
        raise CacheError(
            f"{path} holds {array.dtype} of shape {array.shape},"
            f" expected integers or text of shape ({rows},)",
            remedy="Save one label a feature vector, in the same order.",
        )
    names = None if classes is None else read_class_names(classes)
    if array.dtype.kind == "U":
        known = names if names is not None else tuple(sorted(set(array.tolist())))
        return _by_name(array, known, path), known
    labels = array.astype(np.int64)
    if names is None and labels.max() >= len(labels):
        raise CacheError(
            f"{path} holds the label {labels.max():,}, but only {len(labels):,} rows",
            remedy="Number the classes from 0 without gaps, or name them with `--classes`.",
        )
    if names is None:
        names = tuple(map(str, range(int(labels.max()) + 1)))
    if labels.min() < 0 or labels.max() >= len(names):
        raise CacheError(
            f"{path} holds labels from {labels.min()} to {labels.max()},"
            f" expected 0 to {len(names) - 1}",
            remedy="Number the classes from 0, and name all of them in the file of `--classes`.",
        )
    return labels, names


def _by_name(array: np.ndarray, names: tuple[str, ...], path: Path) -> Int[np.ndarray, " rows"]:
    number = {name: label for label, name in enumerate(names)}
    unknown = sorted(set(array.tolist()) - set(number))
    if unknown:
        raise CacheError(
            f"{path} holds {len(unknown):,} labels that are not among the {len(names):,} class"
            f" names: {', '.join(unknown[:3])}",
            remedy="Name all classes in the file of `--classes`, one a line.",
        )
    return np.array([number[name] for name in array.tolist()], dtype=np.int64)


def _read_head(path: Path | None, dim: int, fingerprint: dict[str, str]) -> Head | None:
    if path is None:
        return None
    head = read_head(path)
    if head.dim != dim:
        raise HeadError(
            f"{path} reads features of width {head.dim}, these have width {dim}",
            remedy="Give the head that belongs to these features, or none.",
        )
    return replace(head, fingerprint=backbone_identifier(fingerprint))


def _manifest(
    order: np.ndarray,
    labels: np.ndarray,
    names: tuple[str, ...],
    features: np.ndarray,
    config: ImportConfig,
) -> Manifest:
    digits = len(str(len(order)))
    label = pl.Series(labels[order], dtype=pl.Int64)
    table = pl.DataFrame(
        {
            "path": pl.Series(order, dtype=pl.Int64).cast(pl.String).str.zfill(digits),
            "label": label,
            "class_name": pl.Series(names, dtype=pl.String).gather(label),
            "size_bytes": pl.Series([features[:1].nbytes], dtype=pl.Int64).new_from_index(
                0, len(order)
            ),
        }
    )
    return Manifest(config.dataset, config.split, names, table)


def _facts(features_path: Path, labels_path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"clinit": version("clinit")},
    }
    for name, path in (("features", features_path), ("labels", labels_path)):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        facts[name] = {"path": str(path), "sha256": digest}
    return facts


def _load(path: Path, *, mmap: bool) -> np.ndarray:
    check_readable(path, CacheError)
    try:
        return np.asarray(np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise CacheError(
            f"cannot read {path}: {error}",
            remedy="Write it with `numpy.save(path, array)`; pickled objects are not read.",
        ) from error
