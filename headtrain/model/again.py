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

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet, digests_with_copies
from clinit.headtrain.heads.repeats import joined
from clinit.headtrain.model.audit import AuditedImages
from clinit.headtrain.model.inputs import Arrived
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.protocol.stream.source import Source
from clinit.observer import Noted, Observer, ignore
from clinit.words import examples, number_of

SAME = 1e-5
"""Largest difference, relative to the largest number of a row, of rows that count as equal. Equal
rows differ by rounding, because they are stored divided by the temperatures of their models."""


def with_more(
    model: Model, images: Arrived, old: Source | None, observe: Observer = ignore
) -> tuple[Model, Arrived, dict[str, Any]]:
    """Remove classes from a model, and return all their images, so that they can be added again.

    Args:
        model: The model.
        images: Features of more images of its classes.
        old: Features of earlier images of these classes, if available.
        observe: Called with a note on images that the model has already seen.

    Returns:
        The model without these classes and without classes of the same tasks; the features of all
        images of the removed classes, in the order of their classifier rows; the number of new
        images by class (`more`), and the images that the model has `seen`, for the history.

    Raises:
        ModelError: If training rows of a class are missing, or if no image is new.
    """
    arrived = [*zip(model.class_names, model.facts.tasks, strict=True)]
    tasks = {task for name, task in arrived if task and name in images.class_names}
    names = tuple(n for n, task in arrived if n in images.class_names or task in tasks)
    learnt, aside = _learnt(model, names, old)
    seen = FeatureSet.joined([learnt, aside], names)
    train, val = (each.without(seen, in_class=True) for each in (images.train, images.val))
    facts: dict[str, Any] = {}
    if repeated := len(images.train.labels) - len(train.labels):
        facts["seen"] = images.listed.of(seen)
        which = f" ({examples(facts['seen'])})"
        if not len(train.labels):
            raise ModelError(
                f"the model has seen all of these {number_of(repeated, images.listed.noun)}"
                f" already{which}",
                remedy="Give images that it has neither learnt nor held out.",
            )
        of = number_of(len(images.train.labels), images.listed.noun)
        observe(Noted(f"{repeated:,} of {of} seen already, counted once{which}"))
    every = replace(
        images,
        train=joined([learnt, train.named(names)], names),
        val=FeatureSet.joined([aside, val.named(names)], names),
    )
    facts["more"] = dict(zip(images.class_names, train.counts().tolist(), strict=True))
    return _before(model, learnt), every, facts


def with_earlier(
    model: Model, images: Arrived, config: AddConfig
) -> tuple[Model, Arrived, AddConfig, tuple[str, ...]]:
    """Remove classes that were added by the same settings, and join their images to new ones.

    Classes that are added one by one then have the rows of one addition of all: what old classes
    lose does not add up. The price is one for all.

    Returns:
        The model without the classes whose training rows it remembers; images of these classes and
        then of the new ones; the settings, with the last price that was asked for; the names of
        these classes.
    """
    memory, task_of = model.memory, dict(zip(model.class_names, model.facts.tasks, strict=True))
    if memory is None:
        return model, images, config, ()
    own = {name: getattr(config, name) for name in ("init", "new_share")}
    alike = {
        change.task: change.settings.get("max_old_loss")
        for change in model.facts.history
        if change.action in ("add", "more", "merge")
        and {**own, **change.settings} == {**change.settings, **own}
    }
    sets, added = [memory.learnt], (name for name, task in task_of.items() if task in alike)
    names = tuple(name for name in added if _whole(name, sets, memory) is not None)
    if not names:
        return model, images, config, ()
    prices = (price for task, price in alike.items() if task in map(task_of.get, names))
    asked = [p for p in (*prices, config.max_old_loss) if p is not None]
    config = replace(config, max_old_loss=asked[-1] if asked else None)
    every = (*names, *images.class_names)
    learnt, aside = (each.named(names) for each in (memory.learnt, memory.held_out))
    pairs = ((learnt, images.train), (aside, images.val))
    train, val = (joined([each.named(every) for each in pair], every) for pair in pairs)
    return _before(model, learnt), replace(images, train=train, val=val), config, names


def of_both(model: Model, other: Model) -> tuple[Model, Arrived | None, Model, list[str]]:
    """Return the parts from which a model with the classes of two models is made.

    Equal stored features are one class, whatever its names; it is named as in the first model. A
    class that one model removed since both had it is left out.

    Returns:
        A model of the shared classes; the features of all images of all other classes, None if
        there are none; the first model, with the history of both; notes on which classes have one
        name now, and on what became of removed classes.

    Raises:
        ModelError: As in `merge`.
    """
    one, two = model.depends_on, other.depends_on
    differing = [name for name in {**one, **two} if one.get(name) != two.get(name)]
    if one and two and differing:
        raise ModelError(
            f"{model.origin} and {other.origin} have different networks: they differ in"
            f" {', '.join(differing)}",
            remedy="Merge models of the same network; or add the images of one model to the other:"
            " `clinit add MODEL IMAGES --out NEW`.",
        )
    pasts, notes = _pasts(model, other), list[str]()
    model, other = (
        _without_removed(model, other, *pasts, notes),
        _without_removed(other, model, *pasts[::-1], notes),
    )
    pair = model, other = model, with_names_of(model, other, notes)
    shared = _shared(model, other)
    own = [tuple(n for n in each.class_names if n not in shared) for each in pair]
    if not ({*own[0]} - {*own[1]} and {*own[1]} - {*own[0]}) and not notes:
        raise ModelError(
            f"one of {model.origin} and {other.origin} has all classes of the other",
            remedy="Use the model with all classes; `clinit model show MODEL` lists its classes.",
        )
    parts = [_learnt(each, n, None) if n else None for each, n in zip(pair, own, strict=True)]
    left, there = (
        each if part is None else _before(each, part[0])
        for each, part in zip(pair, parts, strict=True)
    )
    if there.memory is not None:
        memory = there.memory.of_rows([there.class_names.index(name) for name in shared])
        left = replace(left, memory=memory if left.memory is None else memory.updated(left.memory))
    known = model.facts.history
    history = (*known, *(each for each in other.facts.history if each not in known))
    model, left = (replace(one, facts=replace(one.facts, history=history)) for one in (model, left))
    names = tuple(dict.fromkeys(own[0] + own[1]))
    if not names:
        return left, None, model, notes
    sides = [  # a class of both is taken from the first
        [split.named(mine).named(names) for split in part]
        for part, mine in zip(parts, (own[0], names[len(own[0]) :]), strict=True)
        if part is not None
    ]
    train, val = (joined(split, names) for split in zip(*sides, strict=True))
    images = Arrived(train=train, val=val, listed=AuditedImages.stored(train, val, noun=model.noun))
    return left, images, model, notes


class _Past(NamedTuple):
    """Changes of a model since its history parted from the history of another model."""

    origins: dict[str, str]
    """Former names of renamed classes."""
    added: set[str]
    """Classes that came."""
    removed: set[str]
    """Former names of classes that went."""


def _pasts(model: Model, other: Model) -> tuple[_Past, _Past]:
    histories = [each.facts.history for each in (model, other)]
    pairs = zip(*histories, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    pasts = []
    for history in histories:
        pasts.append(past := _Past({}, set(), set()))
        for change in history[common:]:
            names = dict(change.settings.get("names", {})) if change.action == "rename" else {}
            past.origins.update({new: past.origins.pop(old, old) for old, new in names.items()})
            came = {new for old, new in names.items() if old in past.added}
            past.added.difference_update(names)
            past.added.update(came, change.classes if change.action in ("add", "merge") else ())
            gone = change.classes if change.action == "remove" else ()
            past.removed.update(past.origins.pop(name, name) for name in gone)
    return pasts[0], pasts[1]


def _without_removed(
    model: Model, other: Model, own: _Past, others: _Past, notes: list[str]
) -> Model:
    """Return the model without the classes that the other model has removed."""
    candidates = [
        name
        for name in model.class_names
        if own.origins.get(name, name) in others.removed and name not in other.class_names
    ]
    for name in (name for name in candidates if name in own.added):
        notes.append(
            f"{other.origin} has removed {name}, but {model.origin} has it from an addition of its"
            " own: the new model has it too"
        )
    if not (gone := [name for name in candidates if name not in own.added]):
        return model
    notes.append(
        f"left out {number_of(len(gone), 'class')} that {other.origin} has removed"
        f" ({examples(gone)}); `clinit add` adds their images again"
    )
    return _with_history_of(model, model.remove(gone))


def with_names_of(model: Model, other: Model, notes: list[str]) -> Model:
    """Return the other model with the names of the first one for classes of both.

    These have equal stored features or, if a class has none, equal rows.
    """
    alike, new = {*_equal_rows(model, other)}, dict[str, str]()
    mine, theirs = ([n for n in each.class_names if n not in alike] for each in (model, other))
    stored, others = _digests(model, mine), _digests(other, theirs)
    by_rows, by_copies = ({each[k]: name for name, each in stored.items()} for k in (0, 1))
    rows = _rows(model, mine)
    for name, row in zip(theirs, _rows(other, theirs), strict=True):
        own, copy = others.get(name, (b"", b""))
        same = by_rows.get(own) or by_rows.get(copy) or by_copies.get(own)
        if same is None and len(mine) and row.any():
            distances = np.abs(rows - row).max(axis=1)
            nearest = mine[int(distances.argmin())]
            is_known = nearest in stored and name in others
            if distances.min() <= SAME * np.abs(row).max() and not is_known:
                same = nearest
        # Several classes may have equal rows.
        if same is not None and same not in (name, *new.values()):
            new[name] = same
            told = f"{same} of {model.origin} and {name} of {other.origin}"
            notes.append(f"{told} are one class: {same}")
    return _with_history_of(other, other.rename(new)) if new else other


def _with_history_of(model: Model, changed: Model) -> Model:
    """Return a changed model whose history lacks the change, which the merge itself reports."""
    return replace(changed, facts=replace(changed.facts, history=model.facts.history))


def _digests(model: Model, names: Collection[str]) -> dict[str, list[bytes]]:
    """Return digests of the stored training features, in any order, and of their copies."""
    if model.memory is None:
        return {}
    learnt, found = model.memory.learnt, {}
    for label in np.unique(learnt.labels):
        if (name := learnt.class_names[label]) in {*names}:
            digests = digests_with_copies(learnt.features[learnt.labels == label])
            found[name] = [b"".join(sorted(each)) for each in digests]
    return found


def _rows(model: Model, names: Sequence[str]) -> Float[np.ndarray, "classes dim_and_1"]:
    rows = np.column_stack([model.head.weight, model.head.bias])
    return np.asarray(rows[[*map(model.class_names.index, names)]])


def _equal_rows(model: Model, other: Model) -> list[str]:
    """Return the classes of equal names and rows, in the order of the first model."""
    names = [name for name in model.class_names if name in {*other.class_names}]
    own = _rows(model, names)
    distances = np.abs(own - _rows(other, names)).max(axis=1)
    limits = SAME * np.abs(own).max(axis=1)
    return [name for name, far in zip(names, distances > limits, strict=True) if not far]


def _shared(model: Model, other: Model) -> tuple[str, ...]:
    """Return the classes with equal rows in two models, in the order of the first model.

    Rows that were computed next to different classes differ. They are computed anew, if the two
    models store the same features.

    Raises:
        ModelError: If both the rows and the stored features of a class differ.
    """
    shared = _equal_rows(model, other)
    both = {*model.class_names} & {*other.class_names} - {*shared}
    one, two = (_digests(each, both) for each in (model, other))
    same = {n for n in {*one} & {*two} if one[n][0] in two[n] or two[n][0] in one[n]}
    if differs := [n for n in model.class_names if n in both - same]:
        raise ModelError(
            f"{model.origin} and {other.origin} have different rows of"
            f" {number_of(len(differs), 'class')} ({examples(differs)})",
            remedy="Remove or rename these classes in one model (`clinit remove`, `clinit rename`),"
            " or add the images of one model to the other: `clinit add MODEL IMAGES --out NEW`.",
        )
    return tuple(shared)


def _before(model: Model, came: FeatureSet) -> Model:
    """Return the model before it learnt the classes of `came`, given all their training rows."""
    names = model.class_names
    left = model.of_rows([row for row, name in enumerate(names) if name not in came.class_names])
    return left if model.memory is None else replace(left, memory=model.memory.before(came))


def _learnt(
    model: Model, names: tuple[str, ...], old: Source | None
) -> tuple[FeatureSet, FeatureSet]:
    """Return all training rows and the held-out rows of some classes.

    Raises:
        ModelError: If training rows of a class are missing.
    """
    memory = model.memory
    sets = [] if memory is None else [memory.learnt]
    if old is not None:
        sets.append(old.train if memory is None else old.train.without(memory.held_out))
    found = [_whole(name, sets, memory) for name in names]
    if lacking := [name for name, rows in zip(names, found, strict=True) if rows is None]:
        raise ModelError(
            f"{model.origin} does not remember the features of all training images of"
            f" {number_of(len(lacking), 'class')} ({examples(lacking)}), which are needed to"
            " compute the rows again",
            remedy="Give a cache of these features, such as the folder that `clinit add` printed,"
            " by `--old CACHE`; or remove these classes (`clinit remove`) and add all images.",
        )
    nothing = sets[0].nothing(names)
    parts = [nothing, *(rows.named(names) for rows in found if rows is not None)]
    held_out = [nothing] if memory is None else [nothing, memory.held_out.named(names)]
    return FeatureSet.joined(parts, names), FeatureSet.joined(held_out, names)


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
