"""Let a model remember its classes: statistics and held-out features of their images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from clinit.errors import ModelError
from clinit.extract.head import Top1, top1
from clinit.headtrain.deployed.edit import Classes
from clinit.headtrain.deployed.images import measured
from clinit.headtrain.deployed.model import Model
from clinit.headtrain.deployed.old_rows import in_rows_of
from clinit.headtrain.deployed.settings import RememberConfig
from clinit.headtrain.export.change import Change
from clinit.headtrain.export.memory import Memory
from clinit.headtrain.export.model_file import ModelFacts
from clinit.headtrain.stream.source import Source
from clinit.words import examples


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """A model that remembers classes; nothing is written yet."""

    classes: Classes
    num_remembered: int
    """Classes whose images were given."""
    kept_from_before: int
    """Other classes that the model had remembered, and still does."""
    accuracy: Top1
    """Correct on the held-out images."""


def remember(
    model: Model,
    images: Source,
    config: RememberConfig,
    *,
    data: Mapping[str, Any] | None = None,
) -> Remembered:
    """Let a model remember the classes of `images`, which it knows by name.

    What it remembers of other classes stays; the shared covariance becomes the average of that of
    the images given now and that of the other classes, each weighing as many classes as it has.

    Args:
        model: The model; it is not changed.
        images: Features of its own network.
        config: What is kept.
        data: Where the images are from, for the history.

    Raises:
        ModelError: If the model has no class of a name.
    """
    head = model.head
    check_own(model.facts, images.class_names)
    parts = measured(images, config.hold_out)
    train, held_out = in_rows_of(head, parts.train), in_rows_of(head, parts.held_out)
    fresh = Memory.of(
        train,
        model.depends_on,
        held_out=held_out,
        keep=config.keep,
        with_variances=config.variances,
    )
    found = fresh if model.memory is None else model.memory.updated(fresh)
    accuracy = top1(head, held_out.features, held_out.labels, np.arange(head.num_classes))
    named = tuple(name for name in model.facts.class_names if name in set(images.class_names))
    counts = train.counts()
    row_of = {name: row for row, name in enumerate(model.facts.class_names)}
    change = Change.now(
        "remember",
        named,
        images={name: int(counts[row_of[name]]) for name in named},
        data=data or {},
        settings=asdict(config),
        accuracy={"old": accuracy},
    )
    return Remembered(
        classes=Classes(model.facts.after(change), head, found),
        num_remembered=len(named),
        kept_from_before=int(found.known.sum() - fresh.known.sum()),
        accuracy=accuracy,
    )


def check_own(facts: ModelFacts, names: Sequence[str]) -> None:
    """Check that a model has classes of all of these names.

    Raises:
        ModelError: If it lacks one.
    """
    known = set(facts.class_names)
    if unknown := [name for name in names if name not in known]:
        raise ModelError(
            f"the model has no class of {len(unknown):,} of these names ({examples(unknown)})",
            remedy="Name the folders as the classes of the model (`clinit model show MODEL`), or"
            " add these classes: `clinit add MODEL IMAGES --out NEW`.",
        )
