"""Make a cache from features that another program computed.

Any extractor works (CLIP, DINO, audio, text): each sample is a row of numbers and a label. As in
every manifest, rows are sorted by label; within a class, they keep their order. The path of a row
in the manifest is its row number in the imported file.

A killed import resumes: complete shards are not written again. A finished import is only checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.plan import PLAN_FILE, SUMMARY_FILE, Plan, check_backbone, shard_name
from clinit.extract.cache.read import CacheSplit, open_split, shard_problem
from clinit.extract.cache.shard import assemble, write_shard
from clinit.extract.cache.summary import FileFacts, NamedHead, RunFacts, write_summary
from clinit.extract.dataset.manifest import MANIFEST_FILE, Manifest, read_manifest, write_manifest
from clinit.extract.dataset.names import near_names, read_class_names
from clinit.extract.work.options import ImportConfig
from clinit.files.arrays import FEATURES, LABELS, ONE_PER_ROW, open_arrays, widened
from clinit.files.lock import claim_folder
from clinit.files.paths import is_file
from clinit.files.text import MAX_NAME, is_text
from clinit.machine import now
from clinit.words import contrast, examples

SHARD_ROWS = 16_384


def import_features(
    features_path: Path,
    labels_path: Path | None,
    out: Path,
    config: ImportConfig,
    *,
    on_rows: Callable[[int, int], None] = lambda done, total: None,
) -> CacheSplit:
    """Write one split of a cache from files of arrays, a shard at a time.

    A killed import resumes, and a finished one is checked; damaged parts are written again. Shards
    of an unfinished import of other files are removed.

    Args:
        features_path: A file of one of `files.arrays.FORMATS` with an array (rows, dim). float16
            and float32 keep their type; float64 and bfloat16 become float32. Rows that are not
            finite are marked invalid.
        labels_path: A file with an array (rows,) of integers from 0, or of texts; None if the
            labels are in `features_path`.
        out: The folder of the cache.
        config: Names of the extractor, the split, the classes and the arrays.
        on_rows: Called after every shard with the number of rows written so far and in total.

    Raises:
        CacheError: If a file is not as described, or the split is of other files.
        StorageError: If a file cannot be read.
    """
    source = open_arrays(features_path)
    name = source.find(config.features_name, FEATURES, "--features-name")
    if labels_path is None and not name:
        raise CacheError(
            f"{features_path} contains only one array: the labels of its rows are missing",
            remedy="Give a second file with one label per row.",
        )
    target = source if labels_path is None else open_arrays(labels_path)
    label_name = target.find(config.labels_name, LABELS, "--labels-name")
    features = source.features(name)
    rows, dim = features.shape
    names = read_class_names(config.classes) if config.classes else target.class_names()
    shared = () if config.classes else _other_classes(out, config.stored)[1]
    told, origin = target.labels(label_name), target.origin(label_name)
    labels, names = number_labels(told, rows, names, origin, shared)
    order = np.argsort(labels, kind="stable")
    manifest = _manifest(order, labels, names, dim * features.dtype.itemsize, config)
    dtype = "float16" if features.dtype.name == "float16" else "float32"
    fingerprint = Fingerprint.of_import(backbone=config.backbone, dtype=dtype)
    digested = FileFacts.of(features_path, name)
    plan = Plan(
        dataset=config.dataset,
        split=config.stored,
        num_rows=rows,
        dim=dim,
        dtype=dtype,
        shard_rows=SHARD_ROWS,
        batch_size=SHARD_ROWS,
        fingerprint=fingerprint.of_rows(manifest.digest, features=digested.sha256),
    )
    with _claimed(out, plan, manifest) as folder:
        write_manifest(manifest, folder / MANIFEST_FILE)
        for index in range(plan.num_shards):
            if shard_problem(folder, plan, index) is not None:
                picked = order[plan.rows(index).start : plan.rows(index).stop]
                shard = assemble(widened(features[picked]), labels[picked], {}, dtype=dtype)
                write_shard(shard, folder / shard_name(index), plan=plan, index=index)
            on_rows(plan.rows(index).stop, rows)
        of_labels = replace(digested, name=label_name)
        run = RunFacts(
            started=now(),
            features=digested,
            labels=FileFacts.of(labels_path, label_name) if labels_path else of_labels,
            classes=FileFacts.of(config.classes) if config.classes else None,
            versions={"clinit": version("clinit")},
            command=config.command,
        )
        write_summary(folder, plan, manifest, NamedHead(), run)
        return open_split(folder)


def _other_classes(out: Path, split: str) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of the other split of the cache at `out`, and its class names, if any."""
    other = out / ("val" if split == "train" else "train")
    path = other / MANIFEST_FILE
    return other, read_manifest(path).class_names if is_file(path) else ()


_NAME_ALL = "Name all classes: `clinit cache import --classes FILE`, one per line."
_Numbered = tuple[Int[np.ndarray, " rows"], tuple[str, ...]]
"""Labels as int64 in [0, classes), and one name per class."""


def number_labels(
    told: Any, rows: int, names: tuple[str, ...] | None, origin: str, shared: tuple[str, ...] = ()
) -> _Numbered:
    """Return labels, an array of integers or a list of texts, as numbers of class names.

    Args:
        told: The labels. Integers begin at 0.
        rows: Required number of labels.
        names: The class names; None takes the labels themselves.
        origin: Source of the labels, for messages.
        shared: Classes of the cache's other split. They are taken if they contain all classes of
            these rows (for integers: begin with them), which may be fewer rows than classes.

    Raises:
        CacheError: If there are not `rows` labels, or a label has no name.
    """
    texts = isinstance(told, list) and all(isinstance(each, str) for each in told)
    if np.shape(told) != (rows,) or not (texts or np.asarray(told).dtype.kind in "iu"):
        raise CacheError(
            f"{origin} contains {'text' if texts else getattr(told, 'dtype', 'objects')} of shape"
            f" {np.shape(told)}, expected integers or text of shape ({rows},)",
            remedy=ONE_PER_ROW,
        )
    if isinstance(told, list):
        return _numbered_texts(told, names, shared, origin)
    most, least = int(told.max()), int(told.min())
    if names is None and least >= 0 and most >= max(rows, len(shared)):
        raise CacheError(
            f"{origin} contains the label {most:,}, but only {rows:,} rows",
            remedy="Number the classes from 0 without gaps, name them with `--classes`, or first"
            " import the split with rows of all classes.",
        )
    names = tuple(map(str, range(most + 1))) if names is None else names
    if least < 0 or most >= len(names):
        raise CacheError(
            f"{origin} contains labels from {least} to {most}, expected"
            f" {f'0 to {len(names) - 1}' if names else 'none below 0'}",
            remedy="Number the classes from 0, and leave out rows without a class."
            if least < 0
            else f"Number the classes from 0. {_NAME_ALL}",
        )
    return told.astype(np.int64), shared if shared[: len(names)] == names else names


def _numbered_texts(
    labels: Any, names: tuple[str, ...] | None, shared: tuple[str, ...], origin: str
) -> _Numbered:
    told = sorted(set(labels))  # the order of classes without names
    wrong = [text for text in told if len(text) > MAX_NAME or not is_text(text)]
    if wrong:
        raise CacheError(
            f"{origin} contains a text that is not a class name: {wrong[0][:30]!r}",
            remedy=f"Save texts of at most {MAX_NAME:,} characters.",
        )
    names = tuple(told) if names is None else names
    names = shared if set(shared) >= set(names) else names
    number = {name: label for label, name in enumerate(names)}
    unknown = [name[:60] for name in told if name not in number]
    if unknown:
        near = near_names(unknown, names, "the file", "the list")
        raise CacheError(
            f"{origin} contains {len(unknown):,} labels that are not among the {len(names):,} class"
            f" names: {'; '.join(filter(None, (examples(unknown), near)))}",
            remedy=_NAME_ALL,
        )
    return np.array([number[name] for name in labels], dtype=np.int64), names


def _manifest(
    order: np.ndarray, labels: np.ndarray, names: tuple[str, ...], size: int, config: ImportConfig
) -> Manifest:
    label = pl.Series(labels[order], dtype=pl.Int64)
    table = pl.DataFrame(
        {
            "path": pl.Series(order).cast(pl.String).str.zfill(len(str(len(order)))),
            "label": label,
            "class_name": pl.Series(names, dtype=pl.String).gather(label),
            "size_bytes": pl.repeat(size, len(order), dtype=pl.Int64, eager=True),
        }
    )
    return Manifest(config.dataset, config.stored, names, table)


@contextmanager
def _claimed(out: Path, plan: Plan, manifest: Manifest) -> Iterator[Path]:
    """Lock a cache and the folder of a split, after checks that both fit; yield the folder.

    Raises:
        CacheError: If the split is of other files, or the cache has another backbone or other
            classes. Nothing is written then.
        ClinitError: If another process writes to the cache, or it cannot be written.
    """
    folder = out / plan.split
    with claim_folder(out, leaves_lock=False):
        other, names = _other_classes(out, plan.split)
        check_backbone([other], plan.fingerprint, plan.dim)
        if names and names != manifest.class_names:
            one, two = contrast(", ".join(names), ", ".join(manifest.class_names))
            raise CacheError(
                f"{other} has classes = {one}, but this split has classes = {two}",
                remedy="Import both splits with the same `--classes FILE`, or use another folder.",
            )
        with claim_folder(folder):
            if is_file(folder / PLAN_FILE) and not is_file(folder / SUMMARY_FILE):
                found = Plan.read(folder)
                if found != plan and found.fingerprint.is_imported:
                    # An unfinished import of other files, which the user may have corrected since.
                    for path in (*folder.glob("shard-*.h5"), folder / PLAN_FILE):
                        path.unlink()
            plan.settle(folder)
            yield folder
