"""Add classes to a model: compute their rows from images, and measure the result.

Rows come from one task of an experiment (`clinit.headtrain.model.growth`). If the model has no
classes, a head is fitted to the images (`clinit.headtrain.probe`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, accuracy
from clinit.extract.dataset.names import near_names
from clinit.headtrain.heads.start.judges import NEW_ROWS
from clinit.headtrain.heads.start.scale import LeftOut
from clinit.headtrain.heads.temperature import PRIOR, temperature_of
from clinit.headtrain.model.addition import NONE, Addition, Examined, Price, first_left_out
from clinit.headtrain.model.again import of_both, with_earlier, with_more
from clinit.headtrain.model.audit import Audit, audit
from clinit.headtrain.model.engine import AnyPath
from clinit.headtrain.model.facts import Change, ModelFacts
from clinit.headtrain.model.growth import GrownHead, Growth, grown_head, grown_memory
from clinit.headtrain.model.inputs import Inputs, ask_names, check_names, features_in, held_out
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.old_rows import DRAWN
from clinit.headtrain.model.settings import HELD_OUT, AddConfig, ArrivalKind
from clinit.headtrain.probe.protocol import first_head
from clinit.headtrain.protocol.stream.source import Source, read_sources
from clinit.observer import Doing, Noted, Observer, Warned, ignore
from clinit.words import examples, number_of

PRICES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Values of `--max-old-loss` that are compared with the requested value."""


def add(
    model: Model,
    inputs: Inputs,
    config: AddConfig,
    *,
    kind: ArrivalKind = "add",
    old: Source | AnyPath | None = None,
    observe: Observer = ignore,
) -> Addition:
    """Add the classes of images or features to a model; nothing is written.

    Args:
        model: The model; it is not changed.
        inputs: The images or features.
        config: Settings.
        kind: Whether the classes are new, or have more images now.
        old: Features of old classes, used in place of the memory of the model; or statistics of
            old classes that the model does not remember.
        observe: Called with each event of the work.

    Raises:
        ClinitError: If the model, the images or the features cannot be used.
    """
    check_names(model, inputs.class_names, kind)
    if not model.class_names:
        _check_first(model, inputs.class_names, config, has_old=old is not None)
    notes, classes = list[str](), model.facts.num_classes
    known = np.zeros(classes, dtype=bool) if model.memory is None else model.memory.known
    if old is not None:
        old = old_features(old, model, inputs, observe)
        known = known | (old.train.named(model.class_names).counts() > 0)
    turns = config.activation == "sigmoid" and model.facts.activation == "softmax"
    if turns and known.sum() < classes / 2:
        notes.append(
            "--activation sigmoid: a head that was trained with a softmax has no probabilities of"
            " single classes, and only images of most old classes fit new rows to it:"
            f" {known.sum():,} of {classes:,} have any. Leave it out, or give more (`--old CACHE`)"
        )
        observe(Warned(notes[0]))
    tests = [] if model.memory is None else [model.memory.held_out, model.memory.left_out]
    is_tested = any(len(rows.labels) for rows in tests) or config.init == "discriminant"
    if config.max_old_loss is not None and not known.any() and not is_tested:
        notes.append(
            "--max-old-loss has no effect: no image tests old classes (`clinit remember`, `--old`)"
        )
        observe(Noted(notes[-1]))
    images = inputs.arrive(model, 0.0, observe)
    model = model.knowing(images.fingerprint)
    if config.activation is not None:
        model = replace(model, facts=replace(model.facts, activation=config.activation))
    left, data = model, {**images.data, **({"notes": notes} if notes else {})}
    if old is not None:
        features_in(old).check(model)
        data["old"] = old.description
    if kind == "more":
        left, images, told = with_more(model, images, old, observe)
        data |= told
    left, images, config, earlier = with_earlier(left, images, config)
    again = {*model.class_names} - {*left.class_names}
    if old is not None and again and {*old.class_names}.isdisjoint(left.class_names):
        old = None
        observe(Noted("--old has no effect: its classes are computed anew from stored features"))
    if old is not None:
        train, aside = held_out(old.train, old.val, HELD_OUT)
        old = replace(old, train=train, val=aside)
    images = replace(images, data=data)
    return grow(Growth(model, left, images, config, kind, old, earlier), observe)


def merge(
    model: Model,
    other: Model,
    config: AddConfig,
    data: Mapping[str, Any] = {},
    observe: Observer = ignore,
) -> Addition:
    """Return a model that contains the classes of two models.

    The result is the same as adding, at once, all classes that only one of the models contains to
    the classes that both contain.

    Args:
        model: One model; it is not changed.
        other: A second model with the same network; it is not changed.
        config: Settings for the classes that only one of the models contains.
        data: Further contents of the history.
        observe: Called with each event of the work.

    Raises:
        ModelError: If the networks differ, if a shared class differs, or if a model does not
            remember the training rows of all classes that the other model lacks.
    """
    pair = (model, other)
    parents = {each.facts.digest: each.origin for each in pair if each.facts.digest}
    data = {**data, "models": [each.origin for each in pair], "parents": parents}
    left, images, model, notes = of_both(model, other)
    new = () if images is None else images.class_names
    near = near_names(new, model.class_names, other.origin, model.origin)
    for note in (*notes, *([near] if near else ())):
        observe(Warned(note))
    data |= {"notes": notes} if notes else {}
    if images is None:
        return Addition(left.after(Change.now("merge", (), data=data)), Audit())
    images = replace(images, data=data)
    return grow(Growth(model, left, images, config, "merge"), observe)


def grow(growth: Growth, observe: Observer) -> Addition:
    """Compute the rows of arriving classes, as one task of an experiment, and measure them.

    Raises:
        ModelError: If no class of given features of old classes is a class of the model.
    """
    images = growth.images
    if growth.left.class_names:
        started = grown_head(growth, observe)
    else:
        head = first_head(growth.in_own_order)
        kind = "none, because the model had no classes; its head was fitted (ridge)"
        started = GrownHead(head, None, kind)
    answers = _left_out(growth, started)
    tested, untested, train = growth.tested, growth.untested, growth.in_own_order.train
    own = Examined.of(started.head, answers, tested, images.val, untested)
    left_out = own.left_out(train, untested) if answers is not None else None
    if DRAWN in started.old and not len(tested.labels):
        own = own._replace(old=own.old.nothing())
    prices = _prices(growth, started, own)
    observe(Doing(f"Looking for odd {images.listed.noun}s …"))
    found = _audit(growth, started.head)
    return replace(_added(growth, started, own, found, left_out), prices=prices)


def _prices(growth: Growth, started: GrownHead, own: Examined) -> tuple[Price, ...]:
    """Return what old and new classes would have at other prices; none if no old image is held."""
    if started.shift_at is None or not len(growth.tested.labels):
        return ()
    new, points = len(growth.images.class_names), sorted({*PRICES, growth.price})
    found = [own.shifted(new, started.shift_at(each)).price(each) for each in points]
    return tuple(found) if started.bounded == 1 else (*found, own.price(None))


def _left_out(growth: Growth, started: GrownHead) -> LeftOut | None:
    """Return leave-one-out logits of the images, unless held-out ones test all classes."""
    start = started.start
    if start is None:
        return first_left_out(growth.in_own_order.train, started.head)
    is_held_out = len(growth.tested.labels) and not growth.untested
    return None if is_held_out or start.left_out is None else start.left_out()


def _audit(growth: Growth, head: Head) -> Audit:
    model, old, images = growth.model, growth.old, growth.images.listed
    before, memory = model.class_names, model.memory
    names = tuple(name for name in before if name not in images.rows.class_names)
    stored = [] if memory is None else [memory.learnt, memory.held_out]
    real = [*([] if old is None else [old.train, old.val]), *stored[1:]]
    nothing = images.rows.nothing
    rows = FeatureSet.joined([nothing(names), *(each.named(names) for each in real)], names)
    earlier = FeatureSet.joined([nothing(before), *stored], before)
    return audit(images, model.head, head, rows, earlier)


def _came_with(facts: ModelFacts) -> float:
    """Return the temperature before the first addition, 1 if there was none."""
    before = 1.0 if facts.temperature is None else facts.temperature.value
    told = (each.data["came_with"] for each in facts.history if "came_with" in each.data)
    return float(next(told, before))


def _calibrated(growth: Growth, own: Examined, weight: float) -> dict[str, Any]:
    """Return the temperature, and the scores of images of the classes.

    Images of new classes alone would bias the temperature, so images count against the one that the
    model came with by `weight`: as far as they represent the old classes. An earlier addition was
    tested on the same images of old classes, which must not count again.
    """
    facts, before = growth.left.facts, growth.left.facts.temperature
    value, found = _came_with(facts), before and before.unmeasured
    if weight:
        prior = PRIOR / weight
        fitted = temperature_of(own.head, own.both, facts.activation, prior=prior, before=value)
        found = fitted or found
    return {"temperature": found, "known": own.known(facts.activation)}


def _added(
    growth: Growth, started: GrownHead, own: Examined, found: Audit, left_out: FeatureSet | None
) -> Addition:
    model, left, images, added = growth.model, growth.left, growth.images, growth.added
    (head, start, kind, share, bounded, _), tested = started, growth.tested
    assert head.class_names is not None
    # A task number that is unused in the whole history, which includes removed tasks.
    task = 1 + max([0, *model.facts.tasks, *(each.task or 0 for each in model.facts.history)])
    task_of = dict(zip(model.class_names, model.facts.tasks, strict=True))
    task_of |= dict.fromkeys(added, task)
    tasks = tuple(task_of[name] for name in head.class_names)
    parted, moved = own.parted(growth.earlier, growth.untested)
    told = _calibrated(growth, parted, growth.represents(own.old))
    facts = replace(left.facts, class_names=head.class_names, tasks=tasks, **told)
    linear = replace(head, fingerprint=left.head.fingerprint)
    memory = grown_memory(growth, left_out)
    grown = replace(left, facts=facts, linear=linear, memory=memory).with_rows_of()
    names = dict.fromkeys((*model.class_names, *images.class_names))  # in the order they came
    grown = grown.of_rows([head.class_names.index(name) for name in names])
    replaced = model.facts.num_classes - left.facts.num_classes
    old_after = own.price(None).old if len(tested.labels) else NONE
    earlier_after, new_after = accuracy(own.head, moved), parted.price(None).new
    tests = parted.new.counts()
    untested = [name for name in added if not tests[head.class_names.index(name)]]
    counts = dict(zip(images.class_names, images.train.counts().tolist(), strict=True))
    change = Change.now(
        growth.action,
        added,
        task=task,
        images={name: counts[name] for name in added},
        data={
            **images.data,
            "old_rows": kind,
            "price": growth.price,
            "came_with": _came_with(left.facts),
            "bounded": bounded,
            "left_out": left_out is not None and {*added} <= {*growth.untested},
            **({"earlier": len(growth.earlier)} if growth.earlier else {}),
            **({"start": start.chosen, "discriminants": share} if start and share else {}),
            "untested": untested,
            "held_out": int(images.val.named(added).counts().sum()),
            "sampled": len(images.train.labels) > NEW_ROWS,
            "tested_classes": len(np.unique(tested.labels)) + len(np.unique(moved.labels)),
            "old_left_out": len(tested.labels) - len(growth.held_out.labels),
            "audit": found.content,
        },
        settings=asdict(growth.config),
        accuracy={
            "old": old_after,
            "earlier": earlier_after,
            "new": new_after,
            "all": old_after + earlier_after + new_after,
        },
    )
    nothing = images.val.nothing()
    old_before, earlier_before = (
        Examined.of(model.head, None, each, nothing).price(0).old
        for each in (tested, growth.tested_earlier)
    )
    grown = grown.after(change)
    return Addition(grown, found, replaced, old_before, earlier_before, place=images.place)


def _check_first(model: Model, names: Sequence[str], config: AddConfig, *, has_old: bool) -> None:
    """Check that classes of these names can be the first classes of a model.

    Raises:
        ModelError: If they cannot.
    """
    remedy = "Leave out `--init` and `--old`."
    why = "its first head is fitted to all classes together, so there are no old rows"
    if len(names) < 2:
        why = f"{examples(names)} would be its only class, and the answer for every image"
        remedy = "Give two classes or more."
    elif config.init == AddConfig().init and not has_old:
        return
    raise ModelError(f"{model.origin} has no classifier: {why}", remedy=remedy)


def old_features(given: Source | AnyPath, model: Model, new: Inputs, observe: Observer) -> Source:
    """Read features of old classes; refuse features of another network, or of too large numbers."""
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        observe(Doing("Reading the features of old classes …"))
        (given,) = (path,) if path.suffix in (".npy", ".npz") else read_sources(path)
    if not isinstance(given, Source):
        read = features_in(given)
        rows = read.splits["train"]
        read.finite(rows.features[:])
        given = Source(rows, rows.nothing(), str(given) if isinstance(given, Path) else "")
    read, known = features_in(given), {*model.class_names, *new.class_names}
    read.check(model)
    if lost := [name for name in read.class_names if name not in known]:
        which = f"{len(lost):,} of {number_of(len(read.class_names), 'class')}"
        observe(Warned(f"{read.told}: {which} unknown to the model: no effect ({examples(lost)})"))
        ask_names(lost, model, read.told, observe)
    return given
