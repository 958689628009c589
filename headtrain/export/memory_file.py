"""The file of a memory: statistics and features of the classes of a model.

A safetensors file beside the model. Its metadata holds, under `clinit_memory`, a sealed JSON
document with class names, what the features depend on, and the digest of the tensors.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clinit.errors import ModelError
from clinit.extract.features import FeatureSet
from clinit.files.commit import commit_file
from clinit.files.documents import Count, DocumentKind, Share
from clinit.files.paths import check_readable
from clinit.headtrain.export.memory import Memory
from clinit.headtrain.export.model_file import ModelFacts
from clinit.headtrain.export.model_folder import MEMORY_FILE

_KEY = "clinit_memory"
_REMEDY = "Write it again with `clinit remember MODEL IMAGES --out NEW`."
_DOCUMENT = DocumentKind(
    title="the description of what a model remembers",
    format="clinit-memory/1",
    error=ModelError,
    remedy=_REMEDY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The document in the metadata."""

    class_names: tuple[str, ...]
    averaged: Count
    freedom: Share
    exact: bool
    backbone: dict[str, str]
    tensors: str


def write_memory(memory: Memory, path: Path) -> None:
    """Write a memory to `path`, atomically.

    Raises:
        ClinitError: If it cannot be written.
    """
    tensors = {n: np.ascontiguousarray(t) for n, t in memory.tensors().items()}
    facts = {
        "class_names": memory.class_names,
        "averaged": memory.averaged,
        "freedom": memory.freedom,
        "exact": memory.exact,
        "backbone": dict(memory.backbone),
        "tensors": _digest(tensors),
    }
    # A name that is no UTF-8 has half characters, which JSON can hold escaped alone.
    text = _DOCUMENT.text(facts, indent=None).encode(errors="backslashreplace").decode()
    content = save(tensors, metadata={_KEY: text})
    commit_file(path, lambda draft: draft.write_bytes(content))


def memory_in(folder: Path, facts: ModelFacts) -> Memory | None:
    """Return what the model in a folder remembers; None where there is no file of it.

    Args:
        folder: The model folder, or a model file, which remembers nothing.
        facts: What the model says of itself.

    Raises:
        ModelError: If the memory cannot be read, or is of other classes.
    """
    path = folder / MEMORY_FILE
    # A link that leads nowhere is a memory that is lost, not one that never was.
    if not (folder.is_dir() and os.path.lexists(path)):
        return None
    memory = read_memory(path)
    if memory.class_names != facts.class_names:
        raise ModelError(
            f"{path} remembers {len(memory.class_names):,} classes that are not the"
            f" {facts.num_classes:,} of the model",
            remedy="Remember the classes anew: `clinit remember MODEL IMAGES --out NEW`.",
        )
    return memory


def read_memory(path: Path) -> Memory:
    """Read what a model remembers.

    Raises:
        ModelError: If there is no such file, or it is damaged.
    """
    if not path.exists():
        found = "the link leads nowhere" if path.is_symlink() else "there is no file"
        raise ModelError(
            f"cannot read what the model remembers: {found} at {path}",
            remedy="Let it remember its classes: `clinit remember MODEL IMAGES --out NEW`.",
        )
    check_readable(path, ModelError)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is not the memory of a model: {error}", remedy=_REMEDY) from error
    if _KEY not in metadata:
        raise ModelError(
            f"{path} does not say what it remembers: no command of clinit wrote it", remedy=_REMEDY
        )
    origin = f"the description in {path}"
    facts = _DOCUMENT.convert(_DOCUMENT.parse(metadata[_KEY], origin=origin), _Facts, origin=origin)
    if facts.tensors != _digest(tensors):
        raise ModelError(f"{path} has changed since it was written", remedy=_REMEDY)
    try:
        return _memory(facts, tensors)
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(f"{path} is damaged: {error}", remedy=_REMEDY) from error


_KINDS = {
    "counts": ("i", 1),
    "means": ("f", 2),
    "covariance": ("f", 2),
    "variances": ("f", 2),
    **dict.fromkeys(("held_out", "kept"), ("f", 2)),
    **{f"{name}_labels": ("i", 1) for name in ("held_out", "kept")},
}
"""Kind of the numbers and number of axes of each tensor."""
_LEAST_FREEDOM = 1e-9


def _check(facts: _Facts, tensors: Mapping[str, np.ndarray]) -> None:
    """Refuse what no memory holds, before anything is computed with it."""
    for name, tensor in tensors.items():
        if (tensor.dtype.kind, tensor.ndim) != _KINDS[name]:
            raise ValueError(f"{name} is of type {tensor.dtype} with {tensor.ndim} axes")
        if not np.isfinite(tensor).all():
            raise ValueError(f"{name} holds values that are not finite")
    if (tensors["counts"] < 0).any():
        raise ValueError("counts holds negative numbers")
    if 0 < facts.freedom < _LEAST_FREEDOM:
        raise ValueError(f"freedom is {facts.freedom}")


def _memory(facts: _Facts, tensors: Mapping[str, np.ndarray]) -> Memory:
    def rows(name: str) -> FeatureSet:
        return FeatureSet(tensors[name], tensors[f"{name}_labels"], facts.class_names)

    _check(facts, tensors)
    return Memory(
        class_names=facts.class_names,
        counts=tensors["counts"],
        means=tensors["means"],
        covariance=tensors["covariance"],
        averaged=facts.averaged,
        freedom=facts.freedom,
        exact=facts.exact,
        held_out=rows("held_out"),
        kept=rows("kept"),
        backbone=facts.backbone,
        variances=tensors.get("variances"),
    )


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()
