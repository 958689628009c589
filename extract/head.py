"""Classifier heads and their file format.

A head file is a safetensors file with `weight` (classes, dim) and `bias` (classes,) in
float32; its metadata holds, under `clinit_head`, a JSON object with the class names and the
fingerprint of the features that the head reads. One key, because safetensors writes several in
a random order, and equal heads should be equal files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from clinit.errors import HeadError
from clinit.extract.commit import commit_file


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """A linear classifier: logits = weight @ features + bias."""

    weight: Float[np.ndarray, "classes dim"]
    bias: Float[np.ndarray, " classes"]
    class_names: tuple[str, ...] | None = None
    """One name a row; None when nobody has said what the rows stand for."""
    fingerprint: str = ""
    """Identifier of the backbone's fingerprint; empty when unknown."""

    def __post_init__(self) -> None:
        if self.class_names is not None and len(self.class_names) != len(self.weight):
            raise ValueError(f"{len(self.class_names)} class names for {len(self.weight)} rows")

    @property
    def num_classes(self) -> int:
        """Number of rows."""
        return int(self.weight.shape[0])

    @property
    def dim(self) -> int:
        """Width of the features that the head reads."""
        return int(self.weight.shape[1])


def write_head(head: Head, path: Path) -> None:
    """Write `head` to `path`, atomically."""
    facts = {"fingerprint": head.fingerprint, "class_names": head.class_names}
    metadata = {"clinit_head": json.dumps(facts, ensure_ascii=False)}
    tensors = {
        "weight": np.ascontiguousarray(head.weight, dtype=np.float32),
        "bias": np.ascontiguousarray(head.bias, dtype=np.float32),
    }
    # As bytes: save_file would make the file readable by its owner alone.
    content = save(tensors, metadata=metadata)
    commit_file(path, lambda draft: draft.write_bytes(content))


def read_head(path: Path) -> Head:
    """Read a head file.

    Raises:
        HeadError: If the file is absent, is not a head file or holds values that are not finite.
    """
    if not path.is_file():
        raise HeadError(
            f"no head file at {path}",
            remedy="`clinit extract` stores the pretrained head as head.safetensors in its cache.",
        )
    try:
        with safe_open(path, framework="pt") as file:  # numpy has no bfloat16
            facts = json.loads((file.metadata() or {}).get("clinit_head", "{}"))
            weight, bias = _tensor(file, "weight"), _tensor(file, "bias")
        names = facts.get("class_names")
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise HeadError(
            f"{path} is not a head file: {error}",
            remedy="A head file is a safetensors file with `weight` (classes, dim) and `bias`.",
        ) from error
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise HeadError(
            f"{path} holds weight {weight.shape} and bias {bias.shape},"
            " expected (classes, dim) and (classes,)",
            remedy="Write the head again with the shapes given above.",
        )
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise HeadError(
            f"{path} holds weights that are not finite",
            remedy="Write the head again; its training has probably diverged.",
        )
    if names is not None and len(names) != len(weight):
        raise HeadError(
            f"{path} names {len(names)} classes but holds {len(weight)} rows",
            remedy="Write the head again with one class name a row.",
        )
    return Head(
        weight=weight,
        bias=bias,
        class_names=tuple(map(str, names)) if names is not None else None,
        fingerprint=facts.get("fingerprint", ""),
    )


def _tensor(file: Any, name: str) -> Float[np.ndarray, ...]:
    """Read a tensor of floating point numbers as float32."""
    dtype = file.get_slice(name).get_dtype()
    if dtype not in ("F64", "F32", "F16", "BF16"):
        raise ValueError(f"{name} is of type {dtype}, expected floats of 16, 32 or 64 bits")
    tensor: Tensor = file.get_tensor(name)
    return tensor.float().numpy()
