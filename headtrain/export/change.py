"""What became of a model's classes, change by change: the history that a model file carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta

from clinit.extract.document import Count

Word = Annotated[str, Meta(max_length=64)]
Action = Literal["run", "add", "replace", "remove", "rename", "remember"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step in the life of a model: a training run, or a later change of its classes."""

    action: Action
    date: Word
    """UTC in ISO format, to the second."""
    clinit: Word
    """Version of clinit."""
    task: int | None
    """The task in which the classes arrived; None if they arrived in several, or none did."""
    classes: tuple[str, ...]
    """The classes that it concerns, in the order of their rows; the new names of renamed ones."""
    images: Mapping[str, Count]
    """Training images by class name."""
    data: Mapping[str, Any]
    """What it was made from: caches, roots, digests of manifests, the run."""
    settings: Mapping[str, Any]
    """What it was asked to do."""
    accuracy: Mapping[str, Mapping[str, Count]]
    """`correct` and `total` test images of `old` classes, there before it, of `new` ones, of `all`,
    and of those of `task 1`, … where a run had several; what was not measured is absent."""


def now() -> str:
    """Return the time as a change holds it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
