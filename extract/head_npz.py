"""Heads in `.npz` files: the arrays `weight`, `bias`, `class_names` and, as JSON, `origin`.

NumPy alone reads and writes them; the same head in a safetensors file has a digest besides.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.errors import CacheError, HeadError
from clinit.extract.arrays.numpy_files import NpzFile

_REMEDY = (
    "A head as .npz holds `weight` (classes, dim), `bias` (classes,) and, as texts, `class_names`"
    " (classes,): `clinit.save_head(path, weight, bias, class_names)` writes it."
)


def npz_bytes(
    weight: Float[np.ndarray, "classes dim"],
    bias: Float[np.ndarray, " classes"],
    class_names: tuple[str, ...] | None,
    origin: Mapping[str, Any] | None,
) -> bytes:
    """Return the content of the file."""
    arrays: dict[str, np.ndarray] = {"weight": weight, "bias": bias}
    if class_names is not None:
        arrays["class_names"] = np.array(class_names, dtype=np.str_)
    if origin is not None:
        arrays["origin"] = np.array([json.dumps(origin, ensure_ascii=False)], dtype=np.str_)
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def read_npz(
    path: Path,
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...] | None, dict[str, Any] | None]:
    """Return weight and bias as stored, class names and origin; None for what is not there.

    Raises:
        HeadError: If it is no such file.
    """
    try:
        archive = NpzFile(path)
        names = archive.names()
        check_tensors(path, names, {"class_names", "origin"}, _REMEDY)
        weight = archive.array("weight")
        bias = archive.array("bias") if "bias" in names else None
        texts = archive.labels("class_names") if "class_names" in names else None
        origin = archive.labels("origin") if "origin" in names else None
    except CacheError as error:
        raise HeadError(str(error), remedy=_REMEDY) from error
    for name, array in (("weight", weight), ("bias", bias)):
        if array is not None and array.dtype.kind != "f":
            raise HeadError(f"`{name}` of {path} holds {array.dtype}", remedy=_REMEDY)
    if texts is not None and not isinstance(texts, list):
        raise HeadError(f"`class_names` of {path} are no texts", remedy=_REMEDY)
    return weight, bias, None if texts is None else tuple(texts), _origin(origin, path)


def check_tensors(path: Path, names: Collection[str], others: Collection[str], remedy: str) -> None:
    """Check that a file holds a weight, and a bias or nothing that may be one under another name.

    Raises:
        HeadError: If it does not.
    """
    has_bias = "bias" in names or {"weight", *others}.issuperset(names)
    if "weight" not in names or not has_bias:
        missing = "bias" if "weight" in names else "weight"
        raise HeadError(
            f"{path} holds no `{missing}`; it holds {', '.join(sorted(names)[:20]) or 'nothing'}",
            remedy=remedy,
        )


def _origin(found: Any, path: Path) -> dict[str, Any] | None:
    if found is None:
        return None
    try:
        told = json.loads(found[0])
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise HeadError(f"`origin` of {path} is no JSON", remedy=_REMEDY) from error
    if not isinstance(told, dict):
        raise HeadError(f"`origin` of {path} is no JSON object", remedy=_REMEDY)
    return told
