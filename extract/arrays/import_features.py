"""Features that somebody else computed become a cache.

Any extractor serves (CLIP, DINO, audio, text): what counts is a row of numbers and a label per
sample. Rows are put into the order of a manifest, by label and then as they came; the path of
a row in the manifest is its number in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int

from clinit.errors import CacheError, HeadError
from clinit.extract.arrays.array_file import ArrayFile, StoredFeatures, number_labels
from clinit.extract.arrays.open import FEATURES, LABELS, find_name, open_array_file
from clinit.extract.arrays.write_split import SplitWriter, in_list_of, other_classes
from clinit.extract.cache.fingerprint import IMPORTED, Fingerprint
from clinit.extract.cache.head import Head, read_head
from clinit.extract.cache.plan import Plan
from clinit.extract.cache.read import HEAD_FILE, CacheSplit
from clinit.extract.cache.shard import Shard, assemble
from clinit.extract.cache.summary import UNKNOWN, FileFacts, RunFacts
from clinit.extract.dataset.known import read_class_names
from clinit.extract.dataset.manifest import Manifest

SHARD_ROWS = 16_384
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of a number, for the types that features may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportConfig:
    """What the files do not say."""

    backbone: str
    """Name of the extractor. Caches are mixed in one experiment only where it is equal, so there
    is no default: it would be equal for all extractors that nobody has named."""
    split: str = "train"
    dataset: str = "imported"
    classes: Path | None = None
    """A file with one class name per line; default: the names in the file of the labels, or the
    labels themselves."""
    head: Path | None = None
    """A head file, to be stored as the pretrained head."""
    features_name: str | None = None
    """Name of the features in a file of several arrays; default: `features`."""
    labels_name: str | None = None
    """Name of the labels in a file of several arrays; default: `labels` or `label`."""
    command: str | None = None
    """The command line, which `cache verify` prints where a shard is damaged."""
    head_follows: bool = False
    """Whether a head is fitted to the rows afterwards: a split that this very import has written
    is returned then, instead of refused, and a head that is lost is not missed."""

    def __post_init__(self) -> None:
        if self.split not in ("train", "val"):
            raise ValueError(f"split is {self.split!r}, expected train or val")
        if self.backbone in ("", IMPORTED):
            raise ValueError(f"backbone is {self.backbone!r}, expected the name of an extractor")


def import_features(
    features_path: Path,
    labels_path: Path | None,
    out: Path,
    config: ImportConfig,
    *,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> CacheSplit:
    """Write one split of a cache from files of arrays; the features are never all in memory.

    An import that was killed goes on: shards that are there and whole are kept. What another
    import has left unfinished is removed.

    Args:
        features_path: A file of one of `arrays.open.KINDS`, with an array (rows, dim) of float16
            or float32, kept as they are; float64 and bfloat16 become float32. Rows that are not
            finite are marked invalid.
        labels_path: A file with an array (rows,) of integers from 0, or of text; None takes that
            of the features.
        out: The folder of the cache.
        config: Names.
        on_rows: Called with the rows written so far and their number, after every shard.
        on_note: Called with what the user may want to know of the storage and the head.

    Raises:
        CacheError: If a file is not as described, or the split is there already.
        HeadError: If the head does not fit the features.
        StorageError: If a file cannot be read.
    """
    files = _Files.open(features_path, labels_path, config)
    features, (labels, names) = files.features(), files.labels(other_classes(out, config.split))
    rows, dim = features.shape
    dtype = "float16" if features.dtype == "float16" else "float32"
    order = np.argsort(labels, kind="stable")
    manifest = _manifest(order, labels, names, dim * _ITEM_BYTES[features.dtype], config)
    fingerprint = Fingerprint.of_import(backbone=config.backbone, dtype=dtype)
    stored = out / HEAD_FILE
    there = stored if stored.is_file() and not config.head_follows else None
    head = _read_head(config.head or there, dim, fingerprint, on_note)
    head, head_classes = _named(head, names)
    facts = files.facts()
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
    writer = SplitWriter(
        out=out,
        plan=plan,
        manifest=manifest,
        head=head,
        head_classes=head_classes,
        run=facts,
        on_rows=on_rows,
        head_follows=config.head_follows,
    )
    if config.head_follows and (finished := writer.finished()) is not None:
        return finished
    with writer.claimed(on_note), features.open(writer.folder) as take:

        def shard_of(rows: range) -> Shard:
            picked = order[rows.start : rows.stop]
            return assemble(take(picked), labels[picked], {}, dtype=dtype)

        return writer.write(shard_of)


@dataclass(frozen=True, slots=True, eq=False)
class _Files:
    """The files of an import, and what the arrays in them are called."""

    config: ImportConfig
    features_path: Path
    features_name: str
    features_file: ArrayFile
    labels_path: Path
    labels_name: str
    labels_file: ArrayFile

    @classmethod
    def open(cls, features: Path, labels: Path | None, config: ImportConfig) -> _Files:
        """Find the arrays.

        Raises:
            CacheError: If a file is missing or of no known kind, or holds none of the name.
        """
        file = open_array_file(features)
        name = find_name(file, features, config.features_name, FEATURES, "--features-name")
        if labels is None and not name:
            raise CacheError(
                f"{features} holds one array: the labels of its rows are missing",
                remedy="Give a second file, with one label per row.",
            )
        place = features if labels is None else labels
        other = file if place == features else open_array_file(place)
        label = find_name(other, place, config.labels_name, LABELS, "--labels-name")
        return cls(config, features, name, file, place, label, other)

    def features(self) -> StoredFeatures:
        """Return the features, not read yet."""
        found = self.features_file.features(self.features_name)
        if len(found.shape) != 2 or found.dtype not in _ITEM_BYTES or 0 in found.shape:
            raise CacheError(
                f"{found.origin} holds {found.dtype} of shape {found.shape}, expected floats"
                " (rows, dim)",
                remedy="Save one feature vector per row: `numpy.save(path, features)`.",
            )
        return found

    def labels(
        self, other: tuple[Path, tuple[str, ...]] | None = None
    ) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
        """Return labels from 0 and class names: of `--classes`, of the file, or the labels.

        Without `--classes`, they are those of the other split if that has all of these classes.
        """
        rows = self.features_file.features(self.features_name).shape[0]
        given = self.config.classes
        names = self.labels_file.class_names()
        if given is not None:
            names = read_class_names(given)
        origin = f"`{self.labels_name}` of " if self.labels_name else ""
        labels = self.labels_file.labels(self.labels_name)
        shared = 0 if other is None else len(other[1])
        numbers, found = number_labels(
            labels, rows, names, f"{origin}{self.labels_path}", shared=shared
        )
        if other is None or given is not None:
            return numbers, found
        return in_list_of(other[1], numbers, found, by_name=isinstance(labels, list))

    def facts(self) -> RunFacts:
        """Return where the features are from, with the digest of every file."""
        features = FileFacts.of(self.features_path, self.features_name)
        same = self.labels_path == self.features_path
        labels = (
            replace(features, name=self.labels_name or None)
            if same
            else FileFacts.of(self.labels_path, self.labels_name)
        )
        classes, head = self.config.classes, self.config.head
        return RunFacts(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            features=features,
            labels=labels,
            classes=FileFacts.of(classes) if classes else None,
            head=FileFacts.of(head) if head else None,
            versions={"clinit": version("clinit")},
            command=self.config.command,
        )


def _named(head: Head | None, names: tuple[str, ...]) -> tuple[Head | None, str]:
    """Give a head without names those of the classes, where it has a row for each of them."""
    if head is None or head.class_names is not None:
        return head, "stored with the head" if head is not None else UNKNOWN
    if head.num_classes != len(names):
        return head, UNKNOWN
    return replace(head, class_names=names), "the classes of the data set"


def _read_head(
    path: Path | None, dim: int, fingerprint: Fingerprint, on_note: Callable[[str], None]
) -> Head | None:
    if path is None:
        return None
    head = read_head(path, dim=dim, on_note=on_note)
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
