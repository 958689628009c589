"""Data from Python: arrays in memory, caches, extraction from images, heads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.groups import record_scanned
from clinit.extract.cache.head import Head, read_head, write_head
from clinit.extract.dataset.scan import scan_splits
from clinit.extract.network.backbone import BackboneConfig
from clinit.extract.work.run import ExtractConfig, extract
from clinit.files.paths import check_writable
from clinit.files.text import is_text
from clinit.headtrain.heads.array import as_array, missing_rows, to_numpy
from clinit.headtrain.heads.statistics.classifier import row_per_class
from clinit.headtrain.protocol.stream.source import Source, read_source, read_sources
from clinit.machine import choose_device
from clinit.words import byte_count, examples


def Features(  # noqa: N802 (used as the constructor of a `Source`)
    X: Any,  # noqa: N803
    y: Any,
    X_val: Any = None,  # noqa: N803
    y_val: Any = None,
    *,
    class_names: Sequence[str] | None = None,
    groups: Any = None,
    backbone: str | Source = "arrays",
) -> Source:
    """Return features of your own, in memory, as `load_cache` returns a cache.

    >>> features = Features([[0.0, 1.0], [2.0, 0.0]], ["cat", "dog"])
    >>> features.class_names
    ('cat', 'dog')

    Args:
        X: Training features (rows, dim): an array of NumPy, PyTorch or CuPy, a polars frame, or a
            list of lists. Kept as float32.
        y: Their labels (rows,): texts, or integers from 0.
        X_val: Features to test on, of the same width; None: none.
        y_val: Their labels.
        class_names: Names of the classes. Integer labels are places in this list. Default: the
            labels, sorted; as text, if they are integers.
        groups: A value per training row (rows,), equal in rows of a class that repeat each other,
            such as frames of a video; None: no row repeats another.
        backbone: Name of the network that computed the features, or other features of the same
            network. Features of different networks are not used together.

    Raises:
        ValueError: If an array has a wrong shape or type, a value is not finite, or a label is not
            in `class_names`.
    """
    train, val = _matrix(X, "X"), None
    labels = _labels(y, len(train), "y")
    val = train[:0] if X_val is None else _matrix(X_val, "X_val", train.shape[1])
    of_val = labels[:0] if X_val is None else _labels(y_val, len(val), "y_val")
    names, (numbers, numbers_val) = _numbered((labels, of_val), class_names)
    digest = hashlib.sha256(repr(names).encode())
    for part in (train, numbers):
        digest.update(np.ascontiguousarray(part).tobytes())
    known = None
    if groups is not None:
        known = np.unique(_labels(groups, len(train), "groups"), return_inverse=True)[1]
    if isinstance(backbone, Source):
        fingerprint = backbone.fingerprint.without_rows
    else:
        fingerprint = Fingerprint.of_import(backbone=backbone, dtype="float32")
    return Source(
        FeatureSet(train, numbers, names, known),
        FeatureSet(val, numbers_val, names),
        fingerprint=fingerprint.of_rows("", features=digest.hexdigest()),
        val_features=hashlib.sha256(val.tobytes() + numbers_val.tobytes()).hexdigest(),
    )


def _matrix(given: Any, name: str, dim: int | None = None) -> Float[np.ndarray, "rows dim"]:
    array = _on_host(given)
    is_empty = dim is None and not len(array)
    is_wide = array.ndim == 2 and dim in (None, array.shape[1])
    if is_empty or not is_wide or array.dtype.kind not in "fiu":
        shape = "(rows, dim)" if dim is None else f"(rows, {dim})"
        raise ValueError(f"{name} is {array.dtype} {array.shape}, expected numbers {shape}")
    found: np.ndarray = array.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(bad):
        rows = examples(list(map(str, bad)))
        raise ValueError(f"{name} contains values that are not finite in float32, in rows {rows}")
    return found


def _labels(given: Any, rows: int, name: str) -> np.ndarray:
    array = _on_host(given)
    is_negative = name != "groups" and array.dtype.kind == "i" and (array < 0).any()
    missing = missing_rows(given, array)
    if array.shape != (rows,) or array.dtype.kind not in "iuUSO" or is_negative or missing:
        lack = f"none missing (as in row {missing[0]})" if missing else "none missing"
        expected = f"integers from 0 or texts ({rows},), {lack}"
        raise ValueError(f"{name} is {array.dtype} {array.shape}, expected {expected}")
    return array.astype(str) if array.dtype.kind in "SO" else array


def _on_host(given: Any) -> np.ndarray:
    if hasattr(given, "to_numpy"):  # polars
        return np.asarray(given.to_numpy())
    return np.asarray(given) if isinstance(given, list | tuple) else to_numpy(as_array(given))


def _numbered(
    labels: tuple[np.ndarray, np.ndarray], class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Int[np.ndarray, " rows"]]]:
    """Return the class names, and labels as places among them."""
    texts = [each.dtype.kind == "U" for each in labels if len(each)]
    if len(set(texts)) > 1:
        raise ValueError("y and y_val: one has texts, the other integers")
    every = np.unique(np.concatenate([each for each in labels if len(each)] or [labels[0]]))
    if class_names is None:
        return tuple(map(str, every.tolist())), [np.searchsorted(every, each) for each in labels]
    names = tuple(map(str, class_names))
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"class_names has names more than once: {examples(twice)}")
    place = dict(zip(names, range(len(names)), strict=True)) if all(texts) else range(len(names))
    unknown = [each for each in every.tolist() if each not in place]
    if unknown:
        raise ValueError(f"labels without a name in class_names: {examples([*map(str, unknown)])}")
    return names, [np.array([place[n] for n in part.tolist()], dtype=np.int64) for part in labels]


def extract_features(
    images: str | Path,
    out: str | Path,
    backbone: str,
    *,
    dataset: str = "folder",
    splits: Sequence[str] | None = None,
    device: str = "auto",
    weights: str | Path | None = None,
    model_args: Mapping[str, Any] | None = None,
    features: str = "pooled",
    labels: str | None = None,
    **options: Any,
) -> Source:
    """Run a frozen timm backbone over images once; return the features, which are stored in `out`.

    Existing features are not computed again, so an interrupted call resumes.
    `clinit.extract(images, backbone)` returns features that are not stored.

    Args:
        images: Folder of the images: `split/class/image`, or the layout of a known data set.
        out: Folder of the cache.
        backbone: Name of a timm model.
        dataset: `folder`, `webdataset` (tar shards), `huggingface` (Parquet files), or a known data
            set such as `imagenet1k` or `places365`.
        splits: Splits to extract: `train`, `val`, or `test`, whose images become the split val;
            None extracts train and val if they exist.
        device: `auto`, `cuda` or `cpu`.
        weights: File of the weights; None means timm's pretrained weights.
        model_args: Further arguments of `timm.create_model`.
        features: `pooled`, or `projected`: the output of the projection of a CLIP tower.
        labels: For images that are not in class folders, a table of paths and classes, as in
            `clinit extract --labels`.
        options: Further settings of `clinit.extract.work.run.ExtractConfig`.

    Raises:
        ClinitError: If images or weights cannot be read, or the cache was made from other images
            or weights.
    """
    root, folder = Path(images), Path(out)
    found = list(scan_splits(dataset, root, splits or (), labels=labels))
    where, file = str(choose_device(device)), None if weights is None else Path(weights)
    given = model_args or {}
    network = BackboneConfig(
        name=backbone, device=where, weights=file, model_args=given, output=features
    )
    manifests = {each.manifest.split: each.manifest for each in found}
    list(extract(manifests, root, folder, ExtractConfig(backbone=network, **options)))
    record_scanned(folder, found, labels)
    return read_source(folder)


def load_cache(path: str | Path, *, memory: int | str | None = None) -> Source:
    """Read a feature cache: arrays, labels, class names, and the pretrained head.

    Args:
        path: The folder of the cache.
        memory: Maximum memory for features, in bytes or as `8GB`. Larger features stay on disk, and
            `features[rows]` reads some rows. None reads all features into memory.

    Raises:
        ValueError: If `memory` is not a size.
        CacheError: If the cache does not exist, is incomplete or damaged.
        MachineError: If the memory is too small for a shard.
    """
    if memory is None:
        return read_source(Path(path))
    (source,) = read_sources(Path(path), memory=in_bytes(memory))
    return source


def in_bytes(memory: int | str | None) -> int | None:
    """Return a size in bytes, or as `8GB`, as bytes; None is no limit."""
    if not isinstance(memory, str):
        return memory
    try:
        return byte_count(memory)
    except ValueError as error:
        raise ValueError(f"memory {error}") from error


def save_head(path: str | Path, weight: Any, bias: Any, class_names: Sequence[str]) -> Head:
    """Write a linear head to a file that every command with `--head` can read.

    Args:
        path: The file, .safetensors or .npz; an existing file is replaced.
        weight: NumPy, torch or CuPy array (classes, dim) of any float type; stored in float32. For
            two classes (1, dim), as scikit-learn's `coef_`, is the difference of their rows.
        bias: Such an array (classes,); None means zeros.
        class_names: One unique name per row, as the classes are named in the base cache.

    Raises:
        ValueError: If an array has a wrong shape or type, values are not finite, or names are not
            unique.
        ClinitError: If the file cannot be written.
    """
    place = Path(path)
    if place.suffix not in (".safetensors", ".npz"):
        raise ValueError(f"a head is written as .safetensors or .npz, got {place.name!r}")
    head = head_of(weight, bias, class_names)
    check_writable(place)
    write_head(head, place)
    return head


def head_of(weight: Any, bias: Any, class_names: Sequence[str]) -> Head:
    """Return arrays as a head, checked as in `save_head`."""
    rows = to_numpy(as_array(weight))
    if rows.ndim != 2 or rows.dtype.kind != "f" or not rows.size:
        raise ValueError(f"weight is {rows.dtype} {rows.shape}, expected floats (classes, dim)")
    biases = np.zeros(len(rows), np.float32) if bias is None else to_numpy(as_array(bias))
    if biases.shape != rows.shape[:1] or biases.dtype.kind != "f":
        raise ValueError(f"bias is {biases.dtype} {biases.shape}, expected floats ({len(rows)},)")
    with np.errstate(over="ignore"):
        rows, biases = rows.astype(np.float32), biases.astype(np.float32)
    if not (np.isfinite(rows).all() and np.isfinite(biases).all()):
        raise ValueError("weight or bias contains values that are not finite in float32")
    names = (class_names,) if isinstance(class_names, str) else tuple(class_names)
    if len(names) == 2:
        rows, biases = row_per_class(rows, biases)
    if not all(isinstance(name, str) and name and is_text(name) for name in names):
        raise ValueError("class_names must be texts, one per row")
    if not len(names) == len(set(names)) == len(rows):
        raise ValueError(
            f"{len(names)} class names, {len(set(names))} of them different, for {len(rows)} rows"
        )
    return Head(rows, biases, names)


def load_head(path: str | Path) -> Head:
    """Read a head file, of clinit or of another program, with `weight` and `bias`.

    Raises:
        HeadError: If the file does not exist or is damaged.
    """
    return read_head(Path(path))
