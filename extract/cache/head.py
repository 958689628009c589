"""Classifier heads: the classes of their rows, their accuracy, and their file format.

A head file is a safetensors file with `weight` (classes, dim) and `bias` (classes,) in
float32; its metadata holds, under `clinit_head`, a sealed JSON document with the class names,
the fingerprint of the features that the head reads and the digest of the tensors. One key,
because safetensors writes several in a random order, and equal heads should be equal files.

Heads from elsewhere work too: with no metadata but `class_names`, a JSON list, or without any. So
do arrays of the same names in a `.npz` file; a name that ends in `.npz` writes one.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clinit.errors import CacheError, HeadError, unreadable
from clinit.extract.arrays.array_file import parse_class_names
from clinit.extract.arrays.numpy_files import NpzFile
from clinit.extract.cache.features import FeatureSet
from clinit.extract.dataset.known import is_text
from clinit.files.commit import commit_file
from clinit.files.documents import DocumentKind
from clinit.files.lock import claim_file, make_folder

_KEY = "clinit_head"
_SEALED = "clinit-head/2"
_TOP1_ROWS = 512
"""Rows whose logits are computed at a time: 2 MB of them at 1,000 classes stay in the caches, which
takes half as long as 66 MB."""
_LAYOUT = (
    "A head file is a safetensors or .npz file with `weight` (classes, dim) and `bias` (classes,);"
    " `clinit.save_head(path, weight, bias, class_names)` writes one with class names."
)
_DOCUMENT = DocumentKind(
    title="the description of a head",
    format=_SEALED,
    older=(None,),
    error=HeadError,
    remedy="Run the command that wrote this head again, or give another one.",
)


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A linear classifier: logits = weight @ features + bias."""

    weight: Float[np.ndarray, "classes dim"]
    bias: Float[np.ndarray, " classes"]
    class_names: tuple[str, ...] | None = None
    """One name per row; None when the rows have no class names."""
    fingerprint: str = ""
    """Identifier of the backbone's fingerprint; empty when unknown."""
    alignment: Mapping[str, Any] | None = None
    """How an aligned head came about, as plain JSON values; None for any other."""
    feature_map: Mapping[str, Any] | None = None
    """The random features of `clinit.headtrain.closed.moments` that its rows read, as plain
    JSON values; None if they read the features of the backbone themselves."""
    origin: Mapping[str, Any] | None = None
    """How a head that was fitted to features, or exported from a run, came about, as plain JSON
    values; None for any other."""

    def __post_init__(self) -> None:
        if self.class_names is not None and len(self.class_names) != len(self.weight):
            raise ValueError(f"{len(self.class_names)} class names for {len(self.weight)} rows")

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
    """Rows whose largest logit belongs to their class, over the head's whole width."""

    correct: int
    total: int
    """Valid rows whose class is among the head's classes."""

    @property
    def percent(self) -> float | None:
        """Accuracy in percent; None if no row counts."""
        return 100 * self.correct / self.total if self.total else None

    def __add__(self, other: Top1) -> Top1:
        """Pool two sets of rows."""
        return Top1(self.correct + other.correct, self.total + other.total)


def head_rows(head: Head, class_names: tuple[str, ...]) -> Int[np.ndarray, " classes"]:
    """Return the row of `head` for each class, -1 if it has none of that name."""
    rows = {name: row for row, name in enumerate(head.class_names or ())}
    return np.array([rows.get(name, -1) for name in class_names], dtype=np.int64)


def top1(
    head: Head,
    features: Float[np.ndarray, "rows dim"],
    labels: Int[np.ndarray, " rows"],
    rows_of_classes: Int[np.ndarray, " classes"],
) -> Top1:
    """Return the accuracy of `head` on features whose class it knows."""
    targets = rows_of_classes[labels]
    known = targets >= 0
    if not known.any():
        return Top1(0, 0)
    wanted, correct = np.flatnonzero(known), 0
    for start in range(0, len(wanted), _TOP1_ROWS):
        rows = wanted[start : start + _TOP1_ROWS]
        logits = features[rows].astype(np.float32, copy=False) @ head.weight.T
        logits += head.bias
        correct += int((logits.argmax(axis=1) == targets[rows]).sum())
    return Top1(correct, len(wanted))


def accuracy(head: Head, rows: FeatureSet) -> Top1:
    """Return the accuracy of a head on rows whose labels are numbers of its rows."""
    return top1(head, rows.features, rows.labels, np.arange(len(rows.class_names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The document in the metadata."""

    class_names: tuple[str | int, ...] | None = None
    fingerprint: str = ""
    alignment: Mapping[str, Any] | None = None
    feature_map: Mapping[str, Any] | None = None
    origin: Mapping[str, Any] | None = None
    tensors: str | None = None
    """Digest; None in files of earlier versions and from elsewhere."""


def tensors_sha256(head: Head) -> str:
    """Return the SHA-256 (hex) of weight and bias, as a head file stores them."""
    digest = hashlib.sha256()
    for tensor in _stored(head).values():
        digest.update(str(tensor.shape).encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def write_head(head: Head, path: Path) -> None:
    """Write `head` to `path`, atomically: as NumPy's arrays if it ends in .npz.

    Raises:
        ClinitError: If it cannot be written.
    """
    content = _npz(head) if path.suffix == ".npz" else _safetensors(head)
    commit_file(path, lambda draft: draft.write_bytes(content))


def _npz(head: Head) -> bytes:
    arrays = _stored(head)
    if head.class_names is not None:
        arrays["class_names"] = np.array(head.class_names, dtype=np.str_)
    if head.origin is not None:
        arrays["origin"] = np.array([json.dumps(head.origin, ensure_ascii=False)], dtype=np.str_)
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _safetensors(head: Head) -> bytes:
    facts: dict[str, Any] = {
        "fingerprint": head.fingerprint,
        "class_names": head.class_names,
        "tensors": tensors_sha256(head),
    }
    for name in ("alignment", "feature_map", "origin"):
        if (told := getattr(head, name)) is not None:
            facts[name] = dict(told)
    # As bytes: save_file would make the file readable by its owner alone.
    return save(_stored(head), metadata={_KEY: _DOCUMENT.text(facts, indent=None)})


def store_head(head: Head, path: Path) -> Head:
    """Write `head` to `path`, which other processes may be about to write too.

    Class names that a command has stored meanwhile are kept if `head` has none; nothing is
    written if nothing changes.

    Returns:
        The head that is stored.

    Raises:
        ClinitError: If it cannot be written.
    """
    make_folder(path.parent)
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


def read_head(
    path: Path,
    *,
    linear: bool = True,
    on_note: Callable[[str], None] = lambda note: None,
) -> Head:
    """Read a head file, .npz or any other name for safetensors.

    Args:
        path: The file.
        linear: Whether the head must read the features of the backbone, without a map between.
        on_note: Called if a bias is missing and taken for 0.

    Raises:
        HeadError: If the file is absent, is not a head file, has changed since it was written,
            holds values that are not finite, or is no linear head although it must be.
        StorageError: If it exists and cannot be read.
    """
    try:
        if not path.is_file():
            raise HeadError(
                f"no head file at {path}",
                remedy="`clinit extract` stores the pretrained head as head.safetensors in its"
                " cache.",
            )
        path.open("rb").close()  # safetensors reports any file that it cannot open as absent
    except OSError as error:
        raise unreadable(path, error) from error
    weight, bias, facts = (_read_npz if path.suffix == ".npz" else _read_safetensors)(path)
    weight, bias = _laid_out(weight, bias, path, on_note)
    if facts.tensors is not None and facts.tensors != tensors_sha256(Head(weight, bias)):
        raise HeadError(f"{path} has changed since it was written", remedy=_DOCUMENT.remedy)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise HeadError(
            f"{path} holds weights that are not finite",
            remedy="Write the head again; its training has probably diverged.",
        )
    names = None if facts.class_names is None else tuple(map(str, facts.class_names))
    if names is not None and not (
        is_text("".join(names)) and len(weight) == len(names) == len(set(names))
    ):
        raise HeadError(
            f"{path} names {len(names):,} classes ({len(set(names)):,} different texts) for"
            f" {len(weight):,} rows",
            remedy="Write the head again with a name of its own for each row.",
        )
    if linear and facts.feature_map is not None:
        kind = {"relu": "ReLU", "rff": "Fourier"}.get(str(facts.feature_map.get("kind")), "")
        raise HeadError(
            f"{path} is no linear layer on the features of the backbone: its rows read"
            f" {facts.feature_map.get('width')} random {kind} features of them",
            remedy="Take the head of another method (ncm, lda, slda, rehearsal, …): `clinit report`"
            " and `clinit rerun` can read this one.",
        )
    return Head(
        weight, bias, names, facts.fingerprint, facts.alignment, facts.feature_map, facts.origin
    )


def foreign_to_head(path: Path) -> str | None:
    """Return why a file is no head that clinit has written; None if it is one."""
    try:
        if path.suffix == ".npz":
            own = _read_npz(path)[2].origin is not None
        else:
            with safe_open(path, framework="numpy") as file:
                own = _KEY in (file.metadata() or {})
    except (HeadError, SafetensorError, OSError):
        own = False
    return None if own else "it is no head that clinit has written"


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray | None, _Facts]:
    """Return weight and bias as stored, and what else the file holds."""
    try:
        archive = NpzFile(path)
        names = archive.names()
        _check_tensors(path, names, {"class_names", "origin"})
        weight = archive.array("weight")
        bias = archive.array("bias") if "bias" in names else None
        texts = archive.labels("class_names") if "class_names" in names else None
        origin = archive.labels("origin") if "origin" in names else None
    except CacheError as error:
        raise HeadError(str(error), remedy=_LAYOUT) from error
    dtypes = [array.dtype for array in (weight, bias) if array is not None]
    if {dtype.kind for dtype in dtypes} != {"f"} or not (texts is None or isinstance(texts, list)):
        raise HeadError(
            f"{path} holds numbers of type {', '.join(map(str, dtypes))}, expected floats, and"
            " texts for `class_names`",
            remedy=_LAYOUT,
        )
    facts = {"class_names": texts}
    try:
        if origin is not None:
            facts["origin"] = json.loads(origin[0])
        return weight, bias, msgspec.convert(facts, _Facts)
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise HeadError(f"`origin` of {path} is no JSON object", remedy=_LAYOUT) from error


def _read_safetensors(path: Path) -> tuple[np.ndarray, np.ndarray | None, _Facts]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata, names = dict(file.metadata() or {}), file.keys()
            _check_tensors(path, names, ())
            weight = _tensor(path, file, "weight")
            bias = _tensor(path, file, "bias") if "bias" in names else None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise HeadError(f"{path} is not a head file: {error}", remedy=_LAYOUT) from error
    return weight, bias, _read_facts(metadata, path)


def _check_tensors(path: Path, names: Collection[str], others: Collection[str]) -> None:
    """Check that a file holds a weight, and a bias or nothing that may be one by another name."""
    has_bias = "bias" in names or {"weight", *others}.issuperset(names)
    if "weight" not in names or not has_bias:
        missing = "bias" if "weight" in names else "weight"
        raise HeadError(
            f"{path} holds no `{missing}`; it holds {', '.join(sorted(names)[:20]) or 'nothing'}",
            remedy=_LAYOUT,
        )


def _laid_out(
    weight: np.ndarray,
    bias: np.ndarray | None,
    path: Path,
    on_note: Callable[[str], None],
) -> tuple[Float[np.ndarray, "classes dim"], Float[np.ndarray, " classes"]]:
    """Return weight and bias in float32, with a row for each class."""
    if bias is None:
        on_note(f"{path} holds no bias: 0 for every class")
        bias = np.zeros(len(weight))
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise HeadError(
            f"{path} holds weight {weight.shape} and bias {bias.shape},"
            " expected (classes, dim) and (classes,)",
            remedy=_LAYOUT,
        )
    with np.errstate(over="ignore"):  # it is found not to be finite
        return np.array(weight, dtype=np.float32, order="C"), np.array(bias, dtype=np.float32)


def _tensor(path: Path, file: Any, name: str) -> Float[np.ndarray, ...]:
    """Read a tensor of floating point numbers as float32."""
    dtype = file.get_slice(name).get_dtype()
    if dtype not in ("F64", "F32", "F16", "BF16"):
        raise ValueError(f"{name} is of type {dtype}, expected floats of 16, 32 or 64 bits")
    if dtype == "BF16":  # NumPy has no such type; PyTorch takes two seconds to load
        with safe_open(path, framework="pt") as again:
            widened: np.ndarray = again.get_tensor(name).float().numpy()
        return widened
    with np.errstate(over="ignore"):  # it is found not to be finite
        return np.asarray(file.get_tensor(name), dtype=np.float32)


def _stored(head: Head) -> dict[str, np.ndarray]:
    """Return the tensors of the file."""
    tensors = {"weight": head.weight, "bias": head.bias}
    return {name: np.ascontiguousarray(t, dtype=np.float32) for name, t in tensors.items()}


def _read_facts(metadata: Mapping[str, str], path: Path) -> _Facts:
    """Return the facts in the metadata; a document of ours under another key is a changed key."""
    if _KEY in metadata:
        origin = f"the description in {path}"
        return _DOCUMENT.convert(
            _DOCUMENT.parse(metadata[_KEY], origin=origin), _Facts, origin=origin
        )
    if any(_SEALED in text for text in metadata.values()):
        raise HeadError(f"{path} has changed since it was written", remedy=_DOCUMENT.remedy)
    if "class_names" not in metadata:
        return _Facts()
    try:
        return _Facts(class_names=parse_class_names(metadata["class_names"], path))
    except CacheError as error:
        raise HeadError(str(error), remedy=_LAYOUT) from error
