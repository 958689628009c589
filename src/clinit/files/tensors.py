"""Read and write safetensors files with a description of their arrays.

The description is a sealed JSON document with the digest of the arrays. It is stored under a single
key of the metadata, because safetensors writes several keys in a random order, and files of equal
content should be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clinit.files.documents import DocumentKind
from clinit.files.paths import check_readable


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
    # A name that is not UTF-8 contains lone surrogates, which UTF-8 text can only escape.
    return save(plain, metadata={key: text.encode(errors="backslashreplace").decode()})


def read_tensors(
    path: Path, kind: DocumentKind, key: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of a file, and their description without a check of its fields.

    Raises:
        StorageError: If the file does not exist or cannot be read.
        ClinitError: The `error` of `kind`, if the file is of another kind, or damaged.
    """
    check_readable(path, kind.error)
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(key)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise kind.refusal(f"{path} is not a safetensors file: {error}") from error
    if text is None:
        raise kind.refusal(f"{path} contains no description, so clinit has not written it")
    facts = kind.parse(text, origin=f"the description in {path}")
    if facts.pop("tensors", None) != digest(tensors):
        raise kind.refusal(f"{path} has changed since it was written")
    return tensors, facts


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of arrays."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        found.update(np.ascontiguousarray(tensor).data)
    return found.hexdigest()
