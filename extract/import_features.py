"""Features that somebody else computed become a cache.

Any extractor serves (CLIP, DINO, audio, text): what counts is a row of numbers and a label per
sample. Rows are put into the order of a manifest, by label and then as they came; the path of
a row in the manifest is its number in the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int

from clinit.errors import CacheError, HeadError
from clinit.extract.cache import HEAD_FILE, CacheSplit, open_split, shard_problem, verify_shard
from clinit.extract.class_names import MAX_NAME, is_text, read_class_names
from clinit.extract.dataset import SPLITS
from clinit.extract.fingerprint import IMPORTED, Fingerprint
from clinit.extract.head import Head, read_head, store_head, tensors_sha256
from clinit.extract.lock import claim_folder
from clinit.extract.manifest import Manifest, read_manifest, write_manifest
from clinit.extract.npy import NpyHeader, open_npy, read_npy_header
from clinit.extract.plan import Plan, read_plan, settle_plan, shard_name
from clinit.extract.shard import assemble, file_sha256, write_shard
from clinit.extract.summary import FILE as SUMMARY_FILE
from clinit.extract.summary import UNKNOWN, FileFacts, RunFacts, write_summary

SHARD_ROWS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """What the files do not say."""

    backbone: str
    """Name of the extractor. Caches are mixed in one experiment only where it is equal, so there
    is no default: it would be equal for all extractors that nobody has named."""
    split: str = "train"
    dataset: str = "imported"
    classes: Path | None = None
    """A file with one class name per line; default: the labels themselves."""
    head: Path | None = None
    """A head file, to be stored as the pretrained head."""

    def __post_init__(self) -> None:
        if self.split not in ("train", "val"):
            raise ValueError(f"split is {self.split!r}, expected train or val")
        if self.backbone in ("", IMPORTED):
            raise ValueError(f"backbone is {self.backbone!r}, expected the name of an extractor")


def import_features(
    features_path: Path,
    labels_path: Path,
    out: Path,
    config: ImportConfig,
    *,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> CacheSplit:
    """Write one split of a cache from two `.npy` files; the features are never all in memory.

    An import that was killed goes on: shards that are there and whole are kept. What another
    import has left unfinished is removed.

    Args:
        features_path: (rows, dim) of float16 or float32, kept as they are; float64 becomes
            float32. Rows that are not finite are marked invalid.
        labels_path: (rows,) of integers from 0, or of text.
        out: The folder of the cache.
        config: Names.
        on_rows: Called with the rows written so far and their number, after every shard.
        on_note: Called with what the user may want to know of the storage.

    Raises:
        CacheError: If a file is not as described, or the split is there already.
        HeadError: If the head does not fit the features.
        StorageError: If a file cannot be read.
    """
    header = _features_header(features_path)
    rows, dim = header.shape
    labels, names = _read_labels(labels_path, rows, config.classes)
    dtype = "float16" if header.dtype == np.float16 else "float32"
    order = np.argsort(labels, kind="stable")
    manifest = _manifest(order, labels, names, dim * header.dtype.itemsize, config)
    fingerprint = Fingerprint.of_import(backbone=config.backbone, dtype=dtype)
    stored, folder = out / HEAD_FILE, out / config.split
    head = _read_head(config.head or (stored if stored.is_file() else None), dim, fingerprint)
    head, head_classes = _named(head, names)
    _refuse_other_head(head, out)
    _refuse_other_classes(out, config.split, names)
    facts = _facts(features_path, labels_path)
    assert facts.features is not None
    plan = Plan(
        dataset=config.dataset,
        split=config.split,
        num_rows=rows,
        dim=dim,
        dtype=dtype,
        shard_rows=SHARD_ROWS,
        batch_size=SHARD_ROWS,
        fingerprint=fingerprint.of_rows(manifest.digest, features=facts.features.sha256),
    )
    _refuse_other_backbone(out, plan)
    with claim_folder(folder, within=out, on_unlocked=on_note):
        _refuse_complete(folder, plan, stored)
        _remove_unfinished(folder, plan)
        settle_plan(plan, folder)
        write_manifest(manifest, folder / "manifest.parquet")
        if head is not None:
            store_head(head, stored)
        features = open_npy(features_path, mmap=True)
        for shard in range(plan.num_shards):
            place, chosen = folder / shard_name(shard), plan.rows(shard)
            if shard_problem(place, plan, shard) is not None:
                picked = order[chosen.start : chosen.stop]
                with np.errstate(over="ignore"):  # float64 beyond float32: infinite, so invalid
                    wide = features[picked].astype(np.float32)
                content = assemble(wide, labels[picked], {}, dtype=dtype)
                write_shard(content, place, plan=plan, index=shard)
            on_rows(chosen.stop, plan.num_rows)
        write_summary(folder, plan, manifest, head=head, head_classes=head_classes, run=facts)
    return open_split(folder)


def _refuse_complete(folder: Path, plan: Plan, head: Path) -> None:
    """Refuse to write a split again, unless this very one or its head has been damaged."""
    try:
        found = open_split(folder)
    except CacheError:
        return
    if found.plan != plan or _is_whole(found, head):
        raise CacheError(
            f"{folder} holds a complete split already",
            remedy="Import into another folder with `--out`, or delete this one first.",
        )


def _is_whole(split: CacheSplit, head: Path) -> bool:
    tensors = split.summary.head.tensors
    try:
        if tensors is not None and tensors_sha256(read_head(head)) != tensors:
            return False
    except HeadError:
        return False
    return all(verify_shard(split, shard) is None for shard in range(split.plan.num_shards))


def _remove_unfinished(folder: Path, plan: Plan) -> None:
    """Remove what an import of something else left when it was killed: copies of its files."""
    if not (folder / "plan.json").is_file() or (folder / SUMMARY_FILE).is_file():
        return
    found = read_plan(folder)
    if found != plan and found.fingerprint.is_imported:
        for shard in folder.glob("shard-*.h5"):
            shard.unlink()
        (folder / "plan.json").unlink()


def _named(head: Head | None, names: tuple[str, ...]) -> tuple[Head | None, str]:
    """Give a head without names those of the classes, where it has a row for each of them."""
    if head is None or head.class_names is not None:
        return head, "stored with the head" if head is not None else UNKNOWN
    if head.num_classes != len(names):
        return head, UNKNOWN
    return replace(head, class_names=names), "the classes of the data set"


def _refuse_other_head(head: Head | None, out: Path) -> None:
    """Refuse a head that is not the one of the splits that are there, or none where they have one.

    A stored head that has been damaged is written anew: the splits know which one it was.
    """
    stored = out / HEAD_FILE
    judged = {_judged_head(out / name) for name in SPLITS} - {None}
    if head is None:
        if judged:
            raise HeadError(
                f"{stored}, the head that was stored with the features in {out}, is missing",
                remedy="Give it with `--head FILE`.",
            )
        return
    try:
        other = read_head(stored)
        same = other.class_names == head.class_names
        judged |= {tensors_sha256(other)}
    except HeadError:
        same = True
    if not same or judged - {tensors_sha256(head)}:
        raise HeadError(
            f"{stored} holds another head than the one given",
            remedy="Leave out `--head` for the second split, or import into another folder.",
        )


def _judged_head(folder: Path) -> str | None:
    try:
        return open_split(folder).summary.head.tensors
    except CacheError:
        return None


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
        here, there = plan.fingerprint.without_rows, other.fingerprint.without_rows
        if other.dim != plan.dim or here.differences(there):
            raise CacheError(
                f"{out / name} holds features of another backbone ({_origin(other)}) than this"
                f" import ({_origin(plan)})",
                remedy="Give both splits the same `--backbone` and type, or use another folder.",
            )


def _origin(plan: Plan) -> str:
    return f"{plan.fingerprint.backbone}, {plan.dim} x {plan.fingerprint.dtype}"


def _features_header(path: Path) -> NpyHeader:
    header = read_npy_header(path)
    if len(header.shape) != 2 or header.dtype.kind != "f" or 0 in header.shape:
        raise CacheError(
            f"{path} holds {header.dtype} of shape {header.shape}, expected floats (rows, dim)",
            remedy="Save one feature vector per row: `numpy.save(path, features)`.",
        )
    return header


def _read_labels(
    path: Path, rows: int, classes: Path | None
) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    header = read_npy_header(path)
    if header.shape != (rows,) or header.dtype.kind not in "iuU":
        raise CacheError(
            f"{path} holds {header.dtype} of shape {header.shape},"
            f" expected integers or text of shape ({rows},)",
            remedy="Save one label per feature vector, in the same order.",
        )
    array = open_npy(path, mmap=False)
    names = None if classes is None else read_class_names(classes)
    if array.dtype.kind == "U":
        texts = _texts(array, path)
        known = names if names is not None else tuple(sorted(set(texts)))
        return _by_name(texts, known, path), known
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


def _texts(array: np.ndarray, path: Path) -> list[str]:
    codes = np.ascontiguousarray(array).view(f"{array.dtype.byteorder}u4")
    wrong, texts = None, list[str]()
    if codes.max(initial=0) > sys.maxunicode:
        wrong = f"the character {codes.max():#x}"
    else:
        texts = array.tolist()
        wrong = next((f"{t[:30]!r}" for t in texts if len(t) > MAX_NAME or not is_text(t)), None)
    if wrong is not None:
        raise CacheError(
            f"{path} holds what is no class name: {wrong}",
            remedy=f"Save texts of at most {MAX_NAME:,} characters.",
        )
    return texts


def _by_name(texts: list[str], names: tuple[str, ...], path: Path) -> Int[np.ndarray, " rows"]:
    number = {name: label for label, name in enumerate(names)}
    unknown = sorted(set(texts) - set(number))
    if unknown:
        raise CacheError(
            f"{path} holds {len(unknown):,} labels that are not among the {len(names):,} class"
            f" names: {', '.join(name[:60] for name in unknown[:3])}",
            remedy="Name all classes in the file of `--classes`, one per line.",
        )
    return np.array([number[name] for name in texts], dtype=np.int64)


def _read_head(path: Path | None, dim: int, fingerprint: Fingerprint) -> Head | None:
    if path is None:
        return None
    head = read_head(path)
    if head.dim != dim:
        raise HeadError(
            f"{path} reads features of width {head.dim}, these have width {dim}",
            remedy="Give the head that belongs to these features, or none.",
        )
    return replace(head, fingerprint=fingerprint.backbone_identifier)


def _manifest(
    order: np.ndarray,
    labels: np.ndarray,
    names: tuple[str, ...],
    row_bytes: int,
    config: ImportConfig,
) -> Manifest:
    digits = len(str(len(order)))
    label = pl.Series(labels[order], dtype=pl.Int64)
    table = pl.DataFrame(
        {
            "path": pl.Series(order, dtype=pl.Int64).cast(pl.String).str.zfill(digits),
            "label": label,
            "class_name": pl.Series(names, dtype=pl.String).gather(label),
            "size_bytes": pl.Series([row_bytes], dtype=pl.Int64).new_from_index(0, len(order)),
        }
    )
    return Manifest(config.dataset, config.split, names, table)


def _facts(features: Path, labels: Path) -> RunFacts:
    features_facts, labels_facts = (
        FileFacts(path=str(path), sha256=file_sha256(path)) for path in (features, labels)
    )
    return RunFacts(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        features=features_facts,
        labels=labels_facts,
        versions={"clinit": version("clinit")},
    )
