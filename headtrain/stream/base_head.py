"""The head that a run starts from: where it is from, and which row stands for which class."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Required, TypedDict

import numpy as np
from jaxtyping import Int

from clinit.errors import CacheError, ExperimentError, HeadError
from clinit.extract.cache.head import Head, read_head
from clinit.files.documents import Count, DocumentKind, Number
from clinit.headtrain.stream.source import Source
from clinit.words import contrast_digests, examples


def check_head(head: Head, base: Source, new: Source) -> None:
    """Check that the head reads the features of both sides.

    Raises:
        HeadError: If its width or its backbone differs from theirs.
        CacheError: If the two sides differ in width.
    """
    if new.train.dim != base.train.dim:
        raise CacheError(
            f"the new features are {new.train.dim} wide, those of the base {base.train.dim}",
            remedy="Extract both with the same backbone.",
        )
    of_head, of_base = f"width {head.dim}", f"width {base.train.dim}"
    if head.dim == base.train.dim:
        if not base.fingerprint.fields or base.fingerprint.fits(head.fingerprint):
            return
        of_head, of_base = contrast_digests(head.fingerprint, base.fingerprint.backbone_identifier)
    raise HeadError(
        f"the head is for features of {of_head}, the base cache has those of {of_base}",
        remedy="Use the head that `clinit extract` stored in the base cache.",
    )


def refuse_swapped(base: Source, new: Source, head: Head) -> None:
    """Refuse caches in each other's place: the head knows the new classes, and no base class.

    Raises:
        ExperimentError: If it does.
    """
    own, others = (
        {side.class_names[i] for i in np.flatnonzero(side.train.counts() + side.val.counts())}
        for side in (base, new)
    )
    of_head = set(head.class_names or ())
    if own and others and not own & of_head and others <= of_head:
        raise ExperimentError(
            f"none of the {len(own):,} classes of the base cache is in its head, and all"
            f" {len(others):,} of the new cache are: are --base and --new swapped?",
            remedy="Give --base the cache of the classes that the backbone was trained on.",
        )


def map_to_head(base: Source, head: Head) -> Int[np.ndarray, " classes"]:
    """Return the head row of each base class, -1 for a class that has no row of data either.

    Raises:
        ExperimentError: If the head has no class names, or lacks a class that has data.
        HeadError: If the names do not tell its rows apart.
    """
    names = head.class_names
    remedy = (
        "Give one name per row, all different: `clinit extract` with --head-classes FILE, or"
        " `clinit cache import` with --classes FILE."
    )
    if names is None:
        raise ExperimentError(
            f"the {head.num_classes:,} rows of the base head have no class names", remedy=remedy
        )
    if names == base.class_names:
        return np.arange(len(names))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise HeadError(
            f"the base head has more than one row of the same name ({examples(twice)})",
            remedy=remedy,
        )
    row_of = {name: row for row, name in enumerate(names)}
    rows = np.array([row_of.get(name, -1) for name in base.class_names], dtype=np.int64)
    has_data = base.train.counts() + base.val.counts() > 0
    if unknown := [base.class_names[i] for i in np.flatnonzero(has_data & (rows < 0))]:
        raise ExperimentError(
            f"{len(unknown):,} classes of the base cache are not in its head ({examples(unknown)})",
            remedy="Leave them out of the base cache, or extract it with --head-classes FILE"
            " if the head names its classes in another way.",
        )
    return rows


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
    batch_size: Count
    lr: Number
    weight_decay: Number
    top1_before: Number | None
    top1_after: Number | None
    started_from: str
    digest: str
    """Digest of the aligned head."""


_RECORDED = [name for name in AlignmentFacts.__annotations__ if name != "digest"]


def head_digest(head: Head) -> str:
    """Return the SHA-256 of weight, bias and class names."""
    digest = hashlib.sha256()
    for part in (head.weight, head.bias):
        digest.update(np.ascontiguousarray(part, dtype="<f4").tobytes())
    digest.update(json.dumps(head.class_names, ensure_ascii=False).encode())
    return digest.hexdigest()


def read_base_head(
    path: Path, *, dim: int | None = None, on_note: Callable[[str], None] = lambda note: None
) -> tuple[Head, dict[str, Any]]:
    """Read a head file and what a run record says about it.

    How it was aligned belongs to the record; earlier versions of `clinit align` wrote that into
    a file of its own, `NAME.alignment.json`, which counts if it is about this very head.

    Args:
        path: The file.
        dim: As in `read_head`.
        on_note: As in `read_head`.

    Raises:
        HeadError: If there is no such file, or it or its facts are damaged.
    """
    head = read_head(path, dim=dim, on_note=on_note)
    described: dict[str, Any] = {"path": str(path)}
    facts, origin = head.alignment, f"the alignment in {path}"
    beside = path.with_suffix(".alignment.json")
    if facts is None and beside.is_file():
        facts, origin = _FACTS.load(beside), str(beside)
    if facts is not None:
        _FACTS.convert(facts, AlignmentFacts, origin=origin)
        if facts.get("digest") == head_digest(head):
            described["alignment"] = {name: facts.get(name) for name in _RECORDED}
    return head, described


def starting_head(
    base: Source,
    given: Head | Path | None = None,
    *,
    on_note: Callable[[str], None] = lambda note: None,
) -> tuple[Head, dict[str, Any]]:
    """Return the head that runs start from, and what a run record says about it.

    Args:
        base: The base classes, whose cache holds a head of its own.
        given: Another head, or its file.
        on_note: As in `read_head`.

    Raises:
        ExperimentError: If there is neither.
        HeadError: If there is no such file, or it or its facts are damaged.
    """
    if isinstance(given, Path):
        return read_base_head(given, dim=base.train.dim, on_note=on_note)
    head = base.head if given is None else given
    if head is None:
        raise ExperimentError(
            f"{base.path} holds no pretrained head to start from",
            remedy="Give one (--head FILE; in Python, head=), or fit one: `clinit cache import"
            " --fit-head logistic`.",
        )
    return head, {}
