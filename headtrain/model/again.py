"""Repeat additions: with more images of their classes, or to merge two models.

A row of an added class depends on all images that were added with it, because they determine
lambda, factor, shift and the fit. Class statistics cannot replace these images, because their
covariance is an average over all classes. A model therefore remembers the training rows of added
classes (`Memory.learnt`). To repeat an addition, its classes are removed from the model and added
again, with all their images. The statistics of the model without them are recovered by subtraction
(`Memory.before`): means and scatter of a set and of a subset give the moments of the rest
(T. F. Chan, G. H. Golub, R. J. LeVeque, The American Statistician 37(3), 1983).

The resulting classifier rows are the same as after a single addition of all images, up to the order
of sums and the float32 rounding of the remembered covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.headtrain.model.images import Listener
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model
from clinit.headtrain.stream.source import Source
from clinit.words import examples, number_of

SAME = 1e-5
"""Largest difference, relative to the largest number, of classifier rows that count as equal. Equal
rows differ by rounding, because they are stored divided by the temperatures of their models."""


def with_more(
    model: Model, images: Source, old: Source | None, listener: Listener
) -> tuple[Model, Source, dict[str, int]]:
    """Remove classes from a model, and return all their images, so that they can be added again.

    Args:
        model: The model.
        images: Features of more images of its classes.
        old: Features of earlier images of these classes, if available.
        listener: Notes images that the model has already seen.

    Returns:
        The model without these classes and without classes of the same tasks; the features of all
        images of the removed classes, in the order of their classifier rows; the number of new
        images by class.

    Raises:
        ModelError: If training rows of a class are missing, or if no image is new.
    """
    arrived = [*zip(model.facts.class_names, model.facts.tasks, strict=True)]
    tasks = {task for name, task in arrived if task and name in images.class_names}
    names = tuple(n for n, task in arrived if n in images.class_names or task in tasks)
    earlier = _learnt(model, names, old)
    seen = FeatureSet.joined([earlier.train, earlier.val], names)
    train, val = (each.without(seen) for each in (images.train, images.val))
    if repeated := len(images.train.labels) - len(train.labels):
        if not len(train.labels):
            raise ModelError(
                f"the model has seen all of these {number_of(repeated, 'image')} already",
                remedy="Give images that it has neither learnt nor held out.",
            )
        listener.note(
            f"{repeated:,} of {number_of(len(images.train.labels), 'image')} seen already:"
            " they count once"
        )
    every = replace(
        images,
        train=FeatureSet.joined([earlier.train, train.named(names)], names),
        val=FeatureSet.joined([earlier.val, val.named(names)], names),
    )
    counts = dict(zip(images.class_names, train.counts().tolist(), strict=True))
    return _before(model, earlier.train), every, counts


def of_both(model: Model, other: Model) -> tuple[Model, Source, Model]:
    """Return the parts from which a model with the classes of two models is made.

    Returns:
        A model of the shared classes, the features of all images of all other classes, and the
        first model with the history of both.

    Raises:
        ModelError: If the networks differ, if a shared class differs, or if a model does not
            remember the training rows of all classes that the other model lacks.
    """
    shared = _shared(model, other)
    own = [tuple(n for n in each.facts.class_names if n not in shared) for each in (model, other)]
    if not all(own):
        raise ModelError(
            f"one of {model.origin} and {other.origin} has all classes of the other",
            remedy="Use the model with all classes; `clinit model show MODEL` lists its classes.",
        )
    parts = [_learnt(each, mine, None) for each, mine in zip((model, other), own, strict=True)]
    left, there = (
        _before(each, part.train) for each, part in zip((model, other), parts, strict=True)
    )
    if there.memory is not None:
        memory = there.memory.of_rows([there.facts.class_names.index(name) for name in shared])
        left = replace(left, memory=memory if left.memory is None else memory.updated(left.memory))
    names = own[0] + own[1]
    train, val = (
        FeatureSet.joined([rows.named(names) for rows in split], names)
        for split in zip(*((part.train, part.val) for part in parts), strict=True)
    )
    for change in other.facts.history:
        if change not in model.facts.history:
            model, left = model.after(change), left.after(change)
    return left, Source(train, val), model


def _shared(model: Model, other: Model) -> tuple[str, ...]:
    """Return the classes that two models share, in the order of the first model.

    Raises:
        ModelError: If the networks differ, or if the rows of a class differ.
    """
    both, one, two = f"{model.origin} and {other.origin}", model.depends_on, other.depends_on
    if differing := [name for name in one if one[name] != two[name]]:
        raise ModelError(
            f"{both} have different networks: they differ in {', '.join(differing)}",
            remedy="Merge models of the same network; or add the images of one model to the other:"
            " `clinit add MODEL IMAGES --out NEW`.",
        )
    names = [name for name in model.facts.class_names if name in {*other.facts.class_names}]
    rows, others = (
        np.column_stack([each.head.weight, each.head.bias])[
            [*map(each.facts.class_names.index, names)]
        ]
        for each in (model, other)
    )
    limit = SAME * np.abs(model.head.weight).max(initial=0.0)
    distances = np.abs(rows - others).max(axis=1, initial=0.0)
    if differs := [name for name, far in zip(names, distances > limit, strict=True) if far]:
        raise ModelError(
            f"{both} have different rows of {number_of(len(differs), 'class')}"
            f" ({examples(differs)})",
            remedy="Remove or rename these classes in one model (`clinit remove`, `clinit rename`),"
            " or add the images of one model to the other: `clinit add MODEL IMAGES --out NEW`.",
        )
    return tuple(names)


def _before(model: Model, came: FeatureSet) -> Model:
    """Return the model before it learnt the classes of `came`, given all their training rows."""
    names = model.facts.class_names
    left = model.of_rows([row for row, name in enumerate(names) if name not in came.class_names])
    return left if model.memory is None else replace(left, memory=model.memory.before(came))


def _learnt(model: Model, names: tuple[str, ...], old: Source | None) -> Source:
    """Return all training rows and the held-out rows of some classes.

    Raises:
        ModelError: If training rows of a class are missing.
    """
    memory = model.memory
    sets = [] if memory is None else [memory.learnt, memory.kept]
    if old is not None:
        sets.append(old.train if memory is None else old.train.without(memory.held_out))
    found = [_whole(name, sets, memory) for name in names]
    if lacking := [name for name, rows in zip(names, found, strict=True) if rows is None]:
        raise ModelError(
            f"{model.origin} does not remember the features of all training images of"
            f" {number_of(len(lacking), 'class')} ({examples(lacking)}), which are needed to"
            " compute the rows again",
            remedy="Give a cache of these features, such as the folder that `clinit add` printed,"
            " by `--old CACHE`; or give all images, by `--replace` instead of `--more`.",
        )
    nothing = sets[0].nothing(names)
    parts = [nothing, *(rows.named(names) for rows in found if rows is not None)]
    held_out = [nothing] if memory is None else [nothing, memory.held_out.named(names)]
    return Source(FeatureSet.joined(parts, names), FeatureSet.joined(held_out, names))


def _whole(name: str, sets: Sequence[FeatureSet], memory: Memory | None) -> FeatureSet | None:
    """Return all training rows of a class, from the first set that contains all of them."""
    row = None if memory is None else memory.class_names.index(name)
    for each in sets:
        rows = each.named((name,))
        if len(rows.labels):
            if memory is None or not memory.counts[row]:
                return rows
            mean = rows.features.mean(axis=0, dtype=np.float64)
            is_same = np.allclose(mean, memory.means[row], rtol=0, atol=1e-3 * np.abs(mean).max())
            if len(rows.labels) == memory.counts[row] and is_same:
                return rows
    return None
