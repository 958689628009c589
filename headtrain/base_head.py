"""The head that an experiment starts from, and where it is from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Required, TypedDict

import numpy as np

from clinit.errors import HeadError
from clinit.extract.document import DocumentKind
from clinit.extract.head import Head, read_head
from clinit.headtrain.run_info import Count, Number

_FACTS = DocumentKind(
    title="the description of an alignment",
    format="clinit-alignment/2",
    older=("clinit-alignment/1",),
    error=HeadError,
    remedy="Remove it, or run `clinit align` again.",
)
"""Beside heads of earlier versions; today it is in the head file, which is sealed."""


class AlignmentFacts(TypedDict, total=False):
    """What is read again of how a head was aligned."""

    loss: Required[str]
    views: Count
    view_seed: Count | None
    augmentation: str
    epochs: Count
    lr: Number
    top1_before: Number | None
    top1_after: Number | None
    started_from: str
    digest: str
    """Of the aligned head."""


def head_digest(head: Head) -> str:
    """Return the SHA-256 of weight, bias and class names."""
    digest = hashlib.sha256()
    for part in (head.weight, head.bias):
        digest.update(np.ascontiguousarray(part, dtype="<f4").tobytes())
    digest.update(json.dumps(head.class_names, ensure_ascii=False).encode())
    return digest.hexdigest()


def read_base_head(path: Path) -> tuple[Head, dict[str, Any]]:
    """Read a head file and what a run record says about it.

    How it was aligned belongs to the record; earlier versions of `clinit align` wrote that into
    a file of its own, `NAME.alignment.json`, which counts if it is about this very head.

    Raises:
        HeadError: If there is no such file, or it or its facts are damaged.
    """
    head = read_head(path)
    described: dict[str, Any] = {"path": str(path)}
    facts, origin = head.alignment, f"the alignment in {path}"
    beside = path.with_suffix(".alignment.json")
    if facts is None and beside.is_file():
        facts, origin = _FACTS.load(beside), str(beside)
    if facts is not None:
        _FACTS.convert(facts, AlignmentFacts, origin=origin)
        if facts.get("digest") == head_digest(head):
            described["alignment"] = _told(facts)
    return head, described


def _told(facts: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "loss",
        "views",
        "view_seed",
        "augmentation",
        "epochs",
        "lr",
        "top1_before",
        "top1_after",
        "started_from",
    )
    return {name: facts.get(name) for name in names}
