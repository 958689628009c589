"""Make a cache from features that another program computed.

Any extractor works (CLIP, DINO, audio, text): each sample is a row of numbers and a label. As in
every manifest, rows are sorted by label; within a class, they keep their order. The path of a row
in the manifest is its row number in the imported file.

A killed import resumes: complete shards are not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int

from clinit.errors import CacheError, HeadError
from clinit.extract.arrays.array_file import ArrayFile, StoredFeatures, Take, number_labels
from clinit.extract.arrays.open import FEATURES, LABELS, find_name, open_array_file
from clinit.extract.cache.fingerprint import Fingerprint, mismatches
from clinit.extract.cache.head import Head, read_head, store_head, tensors_sha256
from clinit.extract.cache.plan import Plan, read_plan, settle_plan, shard_name
from clinit.extract.cache.read import HEAD_FILE, CacheSplit, open_split, shard_problem
from clinit.extract.cache.shard import assemble, write_shard
from clinit.extract.cache.summary import FILE as SUMMARY_FILE
from clinit.extract.cache.summary import UNKNOWN, FileFacts, RunFacts, write_summary
from clinit.extract.cache.verify import verify
from clinit.extract.dataset.known import SPLITS
from clinit.extract.dataset.manifest import Manifest, read_manifest, write_manifest
from clinit.extract.dataset.names import read_class_names
from clinit.files.lock import claim_folder
from clinit.files.paths import is_file
from clinit.words import contrast

SHARD_ROWS = 16_384
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of a number, for the types that features may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """Names, class names and a head for imported features."""

    backbone: str
    """Name of the extractor. Caches can be used together only if their names are equal. There is
    no default, because it would be the same for different extractors."""
    split: str = "train"
    dataset: str = "imported"
    classes: Path | None = None
    """A file with one class name per line; None takes the class names in the file of the labels, or
    the labels themselves."""
    head: Path | None = None
    features_name: str | None = None
    """Name of the features in a file of several arrays; None means `features`."""
    labels_name: str | None = None
    """Name of the labels in a file of several arrays; None means `labels` or `label`."""
    command: str | None = None
    """The command line, which `cache verify` prints if a shard is damaged."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}, expected train or val")


def import_features(
    features_path: Path,
    labels_path: Path | None,
    out: Path,
    config: ImportConfig,
    *,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> CacheSplit:
    """Write one split of a cache from files of arrays, a shard at a time.

    A killed import resumes. Shards of an unfinished import of other files are removed.

    Args:
        features_path: A file of one of `arrays.open.KINDS` with an array (rows, dim). float16 and
            float32 keep their type; float64 and bfloat16 become float32. Rows that are not finite
            are marked invalid.
        labels_path: A file with an array (rows,) of integers from 0, or of texts; None if the
            labels are in `features_path`.
        out: The folder of the cache.
        config: Names of the extractor, the split, the classes and the arrays.
        on_rows: Called after every shard with the number of rows written so far and in total.
        on_note: Called with remarks on the head.

    Raises:
        CacheError: If a file is not as described, or the split is already complete.
        HeadError: If the head does not fit the features.
        StorageError: If a file cannot be read.
    """
    source = _Array.find(features_path, config.features_name, FEATURES, "--features-name")
    if labels_path is None and not source.name:
        raise CacheError(
            f"{features_path} contains only one array: the labels of its rows are missing",
            remedy="Give a second file with one label per row.",
        )
    target = _Array.find(labels_path or features_path, config.labels_name, LABELS, "--labels-name")
    features = source.features()
    rows, dim = features.shape
    labels, names = _labels(target, rows, config, _other_classes(out, config.split))
    dtype = "float16" if features.dtype == "float16" else "float32"
    order = np.argsort(labels, kind="stable")
    manifest = _manifest(order, labels, names, dim * _ITEM_BYTES[features.dtype], config)
    fingerprint = Fingerprint.of_import(backbone=config.backbone, dtype=dtype)
    stored = out / HEAD_FILE
    there = stored if is_file(stored) else None
    head, head_classes = _head(config.head or there, dim, names, fingerprint, on_note)
    digested = FileFacts.of(source.path, source.name)
    plan = Plan(
        dataset=config.dataset,
        split=config.split,
        num_rows=rows,
        dim=dim,
        dtype=dtype,
        shard_rows=SHARD_ROWS,
        batch_size=SHARD_ROWS,
        fingerprint=fingerprint.of_rows(manifest.digest, features=digested.sha256),
    )
    writer = _Writer(out, plan, manifest, head)
    with writer.claimed():
        writer.write_shards(features.take, order, labels, on_rows)
        run = _facts(config, digested, source, target)
        write_summary(writer.folder, plan, manifest, head=head, head_classes=head_classes, run=run)
        return open_split(writer.folder)


@dataclass(frozen=True, slots=True)
class _Array:
    """An array in a file."""

    path: Path
    name: str
    file: ArrayFile

    @classmethod
    def find(cls, path: Path, given: str | None, usual: Sequence[str], option: str) -> _Array:
        file = open_array_file(path)
        return cls(path, find_name(file, path, given, usual, option), file)

    def features(self) -> StoredFeatures:
        """Return the features, without reading them."""
        found = self.file.features(self.name)
        if len(found.shape) != 2 or found.dtype not in _ITEM_BYTES or 0 in found.shape:
            raise CacheError(
                f"{found.origin} contains {found.dtype} of shape {found.shape}, expected floats"
                " (rows, dim)",
                remedy="Save one feature vector per row: `numpy.save(path, features)`.",
            )
        return found


def _other_classes(out: Path, split: str) -> tuple[Path, tuple[str, ...]] | None:
    """Return the folder of the other split of the cache at `out`, and its class names."""
    other = out / ("val" if split == "train" else "train")
    path = other / "manifest.parquet"
    return (other, read_manifest(path).class_names) if is_file(path) else None


def _labels(
    array: _Array, rows: int, config: ImportConfig, other: tuple[Path, tuple[str, ...]] | None
) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
    """Return labels from 0, and the class names from `--classes`, the file, or the labels.

    Without `--classes`, the class list of the cache's other split is used if it fits. For labels
    that are texts, it fits if it contains all classes of these rows; for numbers, if it begins with
    the class list of these rows.
    """
    names = read_class_names(config.classes) if config.classes else array.file.class_names()
    origin = f"`{array.name}` of {array.path}" if array.name else f"{array.path}"
    labels = array.file.labels(array.name)
    shared = () if other is None else other[1]
    numbers, found = number_labels(labels, rows, names, origin, shared=len(shared))
    if config.classes is not None:
        return numbers, found
    if not isinstance(labels, list):
        return numbers, shared if shared[: len(found)] == found else found
    number = {name: label for label, name in enumerate(shared)}
    if not number.keys() >= set(found):
        return numbers, found
    return np.array([number[name] for name in found], dtype=np.int64)[numbers], shared


def _manifest(
    order: np.ndarray,
    labels: np.ndarray,
    names: tuple[str, ...],
    row_bytes: int,
    config: ImportConfig,
) -> Manifest:
    label = pl.Series(labels[order], dtype=pl.Int64)
    table = pl.DataFrame(
        {
            "path": pl.Series(order).cast(pl.String).str.zfill(len(str(len(order)))),
            "label": label,
            "class_name": pl.Series(names, dtype=pl.String).gather(label),
            "size_bytes": pl.repeat(row_bytes, len(order), dtype=pl.Int64, eager=True),
        }
    )
    return Manifest(config.dataset, config.split, names, table)


def _head(
    path: Path | None,
    dim: int,
    names: tuple[str, ...],
    fingerprint: Fingerprint,
    on_note: Callable[[str], None],
) -> tuple[Head | None, str]:
    """Return the head in a file, and the source of its class names.

    A head without class names gets the names of the data set if their number fits.
    """
    if path is None:
        return None, UNKNOWN
    head = read_head(path, on_note=on_note)
    if head.dim != dim:
        raise HeadError(
            f"{path} reads features of width {head.dim}, but imported features have width {dim}",
            remedy="Give the head that belongs to these features, or leave out `--head`.",
        )
    head = replace(head, fingerprint=fingerprint.backbone_identifier)
    if head.class_names is not None:
        return head, "stored with the head"
    if head.num_classes != len(names):
        return head, UNKNOWN
    return replace(head, class_names=names), "the classes of the data set"


def _facts(config: ImportConfig, features: FileFacts, source: _Array, target: _Array) -> RunFacts:
    if target.path == source.path:
        labels = replace(features, name=target.name or None)
    else:
        labels = FileFacts.of(target.path, target.name)
    return RunFacts(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        features=features,
        labels=labels,
        classes=FileFacts.of(config.classes) if config.classes else None,
        head=FileFacts.of(config.head) if config.head else None,
        versions={"clinit": version("clinit")},
        command=config.command,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Writer:
    """Writes one split into a cache, after checks that it fits the rest of the cache."""

    out: Path
    plan: Plan
    manifest: Manifest
    head: Head | None

    @property
    def folder(self) -> Path:
        """The folder of the split."""
        return self.out / self.plan.split

    def _is_complete(self) -> bool:
        """Return whether the split exists already, of other files or undamaged."""
        try:
            found = open_split(self.folder)
        except CacheError:
            return False
        checked = verify(self.out) if found.plan == self.plan else ()
        return not any(each.problems for each in checked if each.folder in (None, self.folder))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the cache and check that the split fits its backbone, head and classes.

        Raises:
            CacheError: If the split is complete, belongs to another extraction, or the cache has
                another backbone, other classes or another head. Nothing is written then.
            ClinitError: If another process writes to the cache, or it cannot be written.
        """
        with claim_folder(self.out, leaves_lock=False):
            self._refuse_other_split()
            self._refuse_other_head()
            if self._is_complete():
                raise CacheError(
                    f"{self.folder} already contains a complete split",
                    remedy="Write into another folder, or delete this folder first.",
                )
            with claim_folder(self.folder):
                self._remove_unfinished()
                settle_plan(self.plan, self.folder)
                yield

    def write_shards(
        self, take: Take, order: np.ndarray, labels: np.ndarray, on_rows: Callable[[int, int], None]
    ) -> None:
        """Write the manifest, the head and the missing shards."""
        plan = self.plan
        write_manifest(self.manifest, self.folder / "manifest.parquet")
        if self.head is not None:
            store_head(self.head, self.out / HEAD_FILE)
        for index in range(plan.num_shards):
            path, rows = self.folder / shard_name(index), plan.rows(index)
            if shard_problem(self.folder, plan, index) is not None:
                picked = order[rows.start : rows.stop]
                shard = assemble(take(picked), labels[picked], {}, dtype=plan.dtype)
                write_shard(shard, path, plan=plan, index=index)
            on_rows(rows.stop, plan.num_rows)

    def _remove_unfinished(self) -> None:
        """Remove an unfinished import of other files, which the user may have corrected since."""
        folder = self.folder
        if not is_file(folder / "plan.json") or is_file(folder / SUMMARY_FILE):
            return
        found = read_plan(folder)
        if found != self.plan and found.fingerprint.is_imported:
            for shard in folder.glob("shard-*.h5"):
                shard.unlink()
            (folder / "plan.json").unlink()

    def _refuse_other_split(self) -> None:
        """Refuse rows whose backbone or classes differ from the cache's other split."""
        if (found := _other_classes(self.out, self.plan.split)) is None:
            return
        folder, names = found
        there, here = read_plan(folder), self.plan
        both = mismatches(there.fingerprint, here.fingerprint, (there.dim, here.dim))
        differing = [(each.name, *each.told) for each in both]
        one, other = (", ".join(each) for each in (names, self.manifest.class_names))
        if one != other:
            differing.append(("classes", *contrast(one, other)))
        for name, one, other in differing:
            raise CacheError(
                f"{folder} has {name} = {one}, but this split has {name} = {other}",
                remedy="Import both splits with the same `--backbone`, type and `--classes FILE`,"
                " or use another folder.",
            )

    def _refuse_other_head(self) -> None:
        """Refuse a head other than the stored head; a damaged stored head is written again."""
        there = _readable_head(self.out)
        if there is None or self.head is None:
            return
        stored, given = ((each.class_names, tensors_sha256(each)) for each in (there, self.head))
        if stored != given:
            raise HeadError(
                f"{self.out / HEAD_FILE} is another head than the one given",
                remedy="Leave out `--head` for the second split, or use another folder.",
            )


def _readable_head(out: Path) -> Head | None:
    try:
        return read_head(out / HEAD_FILE)
    except HeadError:
        return None
