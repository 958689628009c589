"""Classifier heads: class names of their rows, accuracy, and file format.

A head file is a safetensors file with `weight` (classes, dim) and `bias` (classes,) in float32.
Its metadata contain, under the key `clinit_head`, a sealed JSON document with the class names, the
fingerprint of the features that the head reads and the digest of the tensors. There is only one
key, because safetensors writes several in a random order, and equal heads should be equal files.

Heads of other programs need no metadata, or only `class_names`, a JSON list. A name that ends in
`.npz` means NumPy arrays of the same names.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float, Int
from safetensors.numpy import save

from clinit.errors import CacheError, HeadError
from clinit.extract.cache.features import FeatureSet, select_rows
from clinit.files.arrays import BFLOAT16, ArrayFile, widened
from clinit.files.commit import commit_file
from clinit.files.documents import DocumentKind
from clinit.files.lock import claim_file
from clinit.files.paths import check_readable, instead_of, is_file
from clinit.files.text import is_text

_KEY = "clinit_head"
_SEALED = "clinit-head/2"
_BLOCK_ROWS = 512
"""Rows whose logits are computed at a time. With 1,000 classes, they take 2 MB, which fit into the
processor's caches; blocks of 66 MB take twice as long."""
_LAYOUT = (
    "A head file is a safetensors or .npz file with `weight` (classes, dim) and `bias` (classes,);"
    " `clinit.save_head(path, weight, bias, class_names)` writes one with class names."
)
_DOCUMENT = DocumentKind(
    title="the description of a head",
    format=_SEALED,
    older=(None,),
    error=HeadError,
    remedy="Run the command that wrote this head again, or give another head.",
)


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A linear classifier: logits = weight @ features + bias."""

    weight: Float[np.ndarray, "classes dim"]
    bias: Float[np.ndarray, " classes"]
    class_names: tuple[str, ...] | None = None
    """One name per row; None if the rows have no class names."""
    fingerprint: str = ""
    """`Fingerprint.backbone_identifier` of the features that the head reads; empty if unknown."""
    alignment: Mapping[str, Any] | None = None
    """How `clinit head align` made the head, as plain JSON values; None for other heads."""
    feature_map: Mapping[str, Any] | None = None
    """The random features (`clinit.headtrain.heads.closed.ranpac`) that the rows read, as plain
    JSON values; None if the rows read the features of the backbone."""
    origin: Mapping[str, Any] | None = None
    """How the head was fitted or exported from a run, as plain JSON values, if either applies."""

    def __post_init__(self) -> None:
        names = self.class_names
        if self.bias.shape != self.weight.shape[:1]:
            shapes = f"{self.weight.shape} with a bias of shape {self.bias.shape}"
            raise ValueError(f"weight of shape {shapes}, expected (classes, dim) and (classes,)")
        if names is not None and len(names) != len(self.weight):
            raise ValueError(f"{len(names)} class names for {len(self.weight)} rows")

    def __repr__(self) -> str:
        aligned = "aligned, " if self.alignment else ""
        return f"<Head: {aligned}{self.num_classes:,} rows of {self.dim} weights>"

    @property
    def num_classes(self) -> int:
        """Number of rows."""
        return int(self.weight.shape[0])

    @property
    def dim(self) -> int:
        """Width of the features that the head reads."""
        return int(self.weight.shape[1])


@dataclass(frozen=True, slots=True)
class Top1:
    """Top-1 accuracy: number of images whose class has the largest of all logits."""

    correct: int
    total: int
    """Valid images whose class is among the head's classes."""

    @property
    def percent(self) -> float | None:
        """Accuracy in percent; None if `total` is 0."""
        return 100 * self.correct / self.total if self.total else None

    def __add__(self, other: Top1) -> Top1:
        """Return the accuracy over two sets of images together."""
        return Top1(self.correct + other.correct, self.total + other.total)


def head_rows(head: Head, class_names: tuple[str, ...]) -> Int[np.ndarray, " classes"]:
    """Return the row of `head` for each class; -1 if no row has the name of the class."""
    rows = {name: row for row, name in enumerate(head.class_names or ())}
    return np.array([rows.get(name, -1) for name in class_names], dtype=np.int64)


def top1(
    head: Head,
    features: Float[np.ndarray, "rows dim"],
    labels: Int[np.ndarray, " rows"],
    rows_of_classes: Int[np.ndarray, " classes"],
) -> Top1:
    """Return the accuracy of `head` on those features whose class has a row."""
    targets = rows_of_classes[labels]
    known = targets >= 0
    if not known.any():
        return Top1(0, 0)
    answers = best_rows(head, select_rows(features, np.flatnonzero(known)))
    return Top1(int((answers == targets[known]).sum()), len(answers))


def best_rows(head: Head, features: Float[Any, "rows dim"]) -> Int[np.ndarray, " rows"]:
    """Return the row of `head` with the largest logit for each row of features."""
    found = np.zeros(len(features), dtype=np.int64)
    for start in range(0, len(features), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        logits = features[block].astype(np.float32, copy=False) @ head.weight.T
        logits += head.bias
        found[block] = logits.argmax(axis=1)
    return found


def accuracy(head: Head, rows: FeatureSet) -> Top1:
    """Return the accuracy of a head on features whose labels are row numbers of the head."""
    return top1(head, rows.features, rows.labels, np.arange(len(rows.class_names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Content of the JSON document in the metadata of a head file."""

    class_names: tuple[str | int, ...] | None = None
    fingerprint: str = ""
    alignment: Mapping[str, Any] | None = None
    feature_map: Mapping[str, Any] | None = None
    origin: Mapping[str, Any] | None = None
    tensors: str | None = None
    """Digest of the tensors; None in files of earlier versions and other programs."""


def tensors_sha256(head: Head) -> str:
    """Return the SHA-256 (hex) of weight and bias as stored in a head file."""
    digest = hashlib.sha256()
    for tensor in _stored(head).values():
        digest.update(str(tensor.shape).encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def write_head(head: Head, path: Path) -> None:
    """Write `head` to `path` atomically: as NumPy arrays if the name ends in .npz.

    Raises:
        ClinitError: If the file cannot be written.
    """
    content = head_bytes(head, path.suffix)
    commit_file(path, lambda draft: draft.write_bytes(content))


def head_bytes(head: Head, suffix: str, beside: Mapping[str, np.ndarray] = {}) -> bytes:
    """Return the content of a file of `write_head` whose name ends in `suffix`.

    `beside` are further arrays of the file, which `read_head` does not read.
    """
    return (_npz if suffix == ".npz" else _safetensors)(head, beside)


def _npz(head: Head, beside: Mapping[str, np.ndarray]) -> bytes:
    arrays = {**_stored(head), **beside}
    if head.class_names is not None:
        arrays["class_names"] = np.array(head.class_names, dtype=np.str_)
    if head.origin is not None:
        arrays["origin"] = np.array([json.dumps(head.origin)], dtype=np.str_)
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _safetensors(head: Head, beside: Mapping[str, np.ndarray]) -> bytes:
    facts: dict[str, Any] = {"fingerprint": head.fingerprint, "class_names": head.class_names}
    facts["tensors"] = tensors_sha256(head)
    made = {name: getattr(head, name) for name in ("alignment", "feature_map", "origin")}
    facts |= {name: dict(told) for name, told in made.items() if told is not None}
    # `save` and not `save_file`, whose files only their owner can read.
    return save({**_stored(head), **beside}, {_KEY: _DOCUMENT.text(facts, indent=None)})


def store_head(head: Head, path: Path) -> Head:
    """Write `head` to `path`, to which other processes may write at the same time.

    If `path` already contains the same head, nothing is written. Its class names are kept if `head`
    has none.

    Returns:
        The head that is now in the file.

    Raises:
        ClinitError: If the file cannot be written.
    """
    with claim_file(path, on_busy=lambda: None):
        with suppress(HeadError):
            stored = read_head(path)
            if (
                stored.fingerprint == head.fingerprint
                and head.class_names in (None, stored.class_names)
                and tensors_sha256(stored) == tensors_sha256(head)
            ):
                return stored
        write_head(head, path)
    return head


def read_head(path: Path, *, on_note: Callable[[str], None] = lambda note: None) -> Head:
    """Read a head file: NumPy arrays if the name ends in .npz, else safetensors.

    Args:
        path: The file.
        on_note: Called if the file contains no bias, which is then 0.

    Raises:
        HeadError: If the file is absent, is not a head file, has changed since it was written,
            contains values that are not finite, or its rows read random features
            (`Head.feature_map`).
        StorageError: If the file exists and cannot be read.
    """
    if not is_file(path):
        raise HeadError(
            f"no head file at {path}",
            remedy=instead_of(
                path,
                "`clinit extract` stores the pretrained head as head.safetensors in its cache.",
                Path.is_file,
            ),
        )
    check_readable(path, HeadError)  # safetensors would call a file without read permission absent
    weight, bias, facts = _read(path)
    if bias is None:
        on_note(f"{path} contains no bias; clinit takes 0 for every class")
        bias = np.zeros(len(weight), np.float32)
    if facts.tensors is not None and facts.tensors != tensors_sha256(Head(weight, bias)):
        raise HeadError(f"{path} has changed since it was written", remedy=_DOCUMENT.remedy)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise HeadError(
            f"{path} contains weights that are not finite; its training has probably diverged",
            remedy="Train the head again and write it anew.",
        )
    names = None if facts.class_names is None else tuple(map(str, facts.class_names))
    if names is not None and not (
        is_text("".join(names)) and len(weight) == len(names) == len(set(names))
    ):
        raise HeadError(
            f"{path} names {len(names):,} classes ({len(set(names)):,} different texts) for"
            f" {len(weight):,} rows",
            remedy="Write the head again with a different name for each row."
            if (len(weight), len(names)) != (1, 2)
            else "Two classes have two rows: `clinit.save_head` makes them of scikit-learn's one.",
        )
    if facts.feature_map is not None:
        raise HeadError(
            f"the classifier in {path} takes {facts.feature_map.get('width')} random ReLU"
            " features as input, not the features of the backbone",
            remedy="Give the head of another method (ncm, lda, slda, rehearsal, …). Only"
            " `clinit report` can read this head.",
        )
    return Head(weight, bias, names, facts.fingerprint, facts.alignment, origin=facts.origin)


def foreign_to_head(path: Path) -> str | None:
    """Return why a file is not a head written by clinit; None if it is one."""
    try:
        is_npz = path.suffix == ".npz"
        own = _read(path)[2].origin is not None if is_npz else _KEY in _file(path).metadata()
    except (HeadError, CacheError):
        own = False
    return None if own else "it is not a head written by clinit"


def _file(path: Path) -> ArrayFile:
    return ArrayFile(path, ".npz" if path.suffix == ".npz" else ".safetensors")


def _read(
    path: Path,
) -> tuple[Float[np.ndarray, "classes dim"], Float[np.ndarray, " classes"] | None, _Facts]:
    """Return weight and bias in float32, and the facts."""
    is_npz, file = path.suffix == ".npz", _file(path)
    try:
        names = set(file.names() or ())
        others = {"class_names", "origin"} & names if is_npz else set[str]()
        if "weight" not in names or not ("bias" in names or {"weight", *others} >= names):
            raise HeadError(
                f"{path} has no `{'bias' if 'weight' in names else 'weight'}`; it contains"
                f" {', '.join(sorted(names)[:20]) or 'nothing'}",
                remedy=_LAYOUT,
            )
        weight, bias = (file.array(n) if n in names else None for n in ("weight", "bias"))
        texts = {name: file.labels(name) for name in others}
        facts = _npz_facts(texts, path) if is_npz else _read_facts(file)
    except CacheError as error:
        raise HeadError(str(error), remedy=_LAYOUT) from error
    assert weight is not None
    found = [weight] if bias is None else [weight, bias]
    if not all(each.dtype.kind == "f" or each.dtype == BFLOAT16 for each in found) or (
        weight.ndim != 2 or any(each.shape != weight.shape[:1] for each in found[1:])
    ):
        raise HeadError(
            f"{path} contains {' and '.join(f'{each.dtype} {each.shape}' for each in found)},"
            " expected weight, floats (classes, dim), and bias, floats (classes,)",
            remedy=_LAYOUT,
        )
    with np.errstate(over="ignore"):  # `read_head` refuses values that are not finite
        plain = [
            np.array(widened(each) if each.dtype == BFLOAT16 else each, dtype=np.float32, order="C")
            for each in found
        ]
    return plain[0], plain[1] if bias is not None else None, facts


def _npz_facts(texts: Mapping[str, Any], path: Path) -> _Facts:
    facts = dict(texts)
    try:
        if "origin" in facts:
            facts["origin"] = json.loads(facts["origin"][0])
        return msgspec.convert(facts, _Facts)
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise HeadError(
            f"`class_names` of {path} are no texts, or `origin` is not a JSON object",
            remedy=_LAYOUT,
        ) from error


def _stored(head: Head) -> dict[str, np.ndarray]:
    tensors = {"weight": head.weight, "bias": head.bias}
    return {name: np.ascontiguousarray(t, dtype=np.float32) for name, t in tensors.items()}


def _read_facts(file: ArrayFile) -> _Facts:
    """Return the facts in the metadata; clinit's document under another key means damage."""
    metadata, path = file.metadata(), file.path
    if _KEY in metadata:
        origin = f"the description in {path}"
        return _DOCUMENT.convert(
            _DOCUMENT.parse(metadata[_KEY], origin=origin), _Facts, origin=origin
        )
    if any(_SEALED in text for text in metadata.values()):
        raise HeadError(f"{path} has changed since it was written", remedy=_DOCUMENT.remedy)
    return _Facts(class_names=file.class_names())
