"""Read and write safetensors files with a description of their arrays.

The description is a sealed JSON document with the digest of the arrays. It is stored under a single
key of the metadata, because safetensors writes several keys in a random order, and files of equal
content should be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clinit.files.documents import DocumentKind
from clinit.files.paths import check_readable

T = TypeVar("T")


def tensors_bytes(
    tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any], kind: DocumentKind, key: str
) -> bytes:
    """Return the content of a file.

    Args:
        tensors: Arrays by name.
        facts: Fields of the description, next to the digest of the arrays.
        kind: Kind of the description.
        key: Key of the description in the metadata.
    """
    plain = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    text = kind.text({**facts, "tensors": digest(plain)}, indent=None)
    return save(plain, metadata={key: text})


@dataclass(frozen=True, slots=True)
class Array:
    """Requirements on an array of a file; numbers are finite, and integers are not negative.

    It is checked when the file is read, like the type of a field of a document.
    """

    dtypes: tuple[str, ...]
    axes: tuple[str, ...]
    """Names of the axes; axes of equal names have equal lengths in all arrays of a file. `classes`
    is the number of class names in the description."""
    below: str | None = None
    """The axis whose length is above all numbers."""
    optional: bool = False

    def problem(self, array: np.ndarray | None, sizes: dict[str, int]) -> str | None:
        """Return why an array is not as declared; add the lengths of its axes to `sizes`."""
        if array is None:
            return None if self.optional else "is missing"
        found = f"is {array.dtype} {array.shape}"
        if array.dtype.name not in self.dtypes:
            return f"{found}, expected {' or '.join(self.dtypes)}"
        if array.ndim == len(self.axes):
            for axis, length in zip(self.axes, array.shape, strict=True):
                sizes.setdefault(axis, length)
        expected = tuple(sizes.get(axis) for axis in self.axes)
        if array.shape != expected:
            return f"{found}, expected {tuple(zip(self.axes, expected, strict=True))}"
        if array.dtype.kind == "f":
            return None if np.isfinite(array).all() else "contains numbers that are not finite"
        most = sizes[self.below] if self.below else np.inf
        if not array.size or (array.min() >= 0 and array.max() < most):
            return None
        return f"contains {array.min()} to {array.max()}, expected numbers from 0 to below {most}"


def read_tensors(
    path: Path, kind: DocumentKind, key: str, content: type[T], arrays: Mapping[str, Array]
) -> tuple[dict[str, np.ndarray], T]:
    """Return the arrays of a file, and their description.

    Args:
        path: The file.
        kind: Kind of the description.
        key: Key of the description in the metadata.
        content: Type of the description, a typed dictionary with `class_names`.
        arrays: All arrays that the file may contain, by name.

    Raises:
        StorageError: If the file does not exist or cannot be read.
        ClinitError: The `error` of `kind`, if the file is of another kind, or damaged.
    """
    check_readable(path, kind.error)
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(key)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise kind.refusal(f"{path} is not a safetensors file: {error}") from error
    if text is None:
        raise kind.refusal(f"{path} contains no description, so clinit has not written it")
    origin = f"the description in {path}"
    facts = kind.parse(text, origin=origin)
    if facts.pop("tensors", None) != digest(tensors):
        raise kind.refusal(f"{path} has changed since it was written")
    found = kind.convert(facts, content, origin=origin)
    sizes = {"classes": len(found["class_names"])}  # type: ignore[index]
    problems = {name: each.problem(tensors.get(name), sizes) for name, each in arrays.items()}
    problems |= {name: "is unknown" for name in tensors if name not in arrays}
    if why := next((f"{name} {why}" for name, why in problems.items() if why), None):
        raise kind.refusal(f"{path} is damaged: its array {why}")
    return tensors, found


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of arrays."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        found.update(np.ascontiguousarray(tensor).data)
    return found.hexdigest()
