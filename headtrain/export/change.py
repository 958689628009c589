"""What became of a model's classes, change by change: the history that a model file carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from types import MappingProxyType
from typing import Annotated, Any, Literal

from msgspec import Meta

from clinit.extract.head import Top1
from clinit.files.documents import Count

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

    @classmethod
    def now(
        cls,
        action: Action,
        classes: Sequence[str],
        *,
        task: int | None = None,
        images: Mapping[str, int] = MappingProxyType({}),
        data: Mapping[str, Any] = MappingProxyType({}),
        settings: Mapping[str, Any] = MappingProxyType({}),
        accuracy: Mapping[str, Top1] = MappingProxyType({}),
    ) -> Change:
        """Return what is done now, by this version of clinit.

        Args:
            action: What is done.
            classes: The classes that it concerns.
            task: The task in which they arrive.
            images: Training images by class name.
            data: What it is made from.
            settings: What was asked for.
            accuracy: Of `old`, `new` and `all` classes; what was measured on no image is left out.
        """
        return cls(
            action=action,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            clinit=version("clinit"),
            task=task,
            classes=tuple(classes),
            images=dict(images),
            data=dict(data),
            settings=dict(settings),
            accuracy=counted({name: part for name, part in accuracy.items() if part.total}),
        )


def counted(accuracy: Mapping[str, Top1]) -> dict[str, dict[str, int]]:
    """Return accuracies as a change holds them."""
    return {name: {"correct": part.correct, "total": part.total} for name, part in accuracy.items()}
