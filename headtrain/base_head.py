"""The head that an experiment starts from, and where it is from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from clinit.errors import HeadError
from clinit.extract.head import Head, read_head


def head_digest(head: Head) -> str:
    """Return the SHA-256 of weight, bias and class names."""
    digest = hashlib.sha256()
    for part in (head.weight, head.bias):
        digest.update(np.ascontiguousarray(part, dtype="<f4").tobytes())
    digest.update(json.dumps(head.class_names, ensure_ascii=False).encode())
    return digest.hexdigest()


def facts_path(path: Path) -> Path:
    """Return where the facts about an aligned head are: beside its file `path`, as JSON."""
    return path.with_suffix(".alignment.json")


def read_base_head(path: Path) -> tuple[Head, dict[str, Any]]:
    """Read a head file and what a run record says about it.

    Facts beside the file, written by `clinit align`, belong to the record if they are about
    this very head.

    Raises:
        HeadError: If there is no such file, or it or its facts are damaged.
    """
    head = read_head(path)
    described: dict[str, Any] = {"path": str(path)}
    beside = facts_path(path)
    if beside.is_file():
        try:
            facts = json.loads(beside.read_text(encoding="utf-8"))
            about_this = facts.get("digest") == head_digest(head)
        except (OSError, ValueError, AttributeError) as error:
            raise HeadError(
                f"cannot read {beside}, the facts about {path}: {error}",
                remedy="Remove it, or run `clinit align` again.",
            ) from error
        if about_this:
            told = (
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
            described["alignment"] = {name: facts.get(name) for name in told}
    return head, described
