"""Classes that arrive at a model: the rows of old classes next to them, and the task they make.

Adding classes is one task of the experiment that `clinit train-head` runs: the old classes are the
base, real or drawn features of old classes are the buffer, and the added classes are the task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.model.classifier import Classifier
from clinit.headtrain.model.facts import Action
from clinit.headtrain.model.inputs import Arrived
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.old_rows import old_rows
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.protocol.experiment import grown_heads, started_heads
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.stream.summed import Summed
from clinit.headtrain.protocol.study.parts import Stream, Training
from clinit.headtrain.protocol.study.study import Study
from clinit.observer import Doing, Event, Noted, Observer
from clinit.words import examples

MOST_TAKEN = 1000
"""Maximum number of features in place of old images of which it is counted who takes them."""


@dataclass(frozen=True, eq=False)
class Growth:
    """Classes that arrive at a model, with all that decides on their rows."""

    model: Classifier
    """The model before."""
    left: Classifier
    """The model without the classes that are replaced or computed anew."""
    images: Arrived
    config: AddConfig
    action: Action
    old: Source | None = None
    """Given features of old classes, some of them held out, or their statistics."""

    @cached_property
    def given(self) -> Source:
        """The rows of `old`, labelled as in the head; without `old`, empty row sets.

        Rows that the model remembers as held out are removed from the training rows.

        Raises:
            ModelError: If no class of `old` is a class of the model.
        """
        left, old = self.left, self.old
        if old is None:
            nothing = self.images.train.nothing(left.class_names)
            return Source(nothing, nothing)
        train, aside = (each.named(left.class_names) for each in (old.train, old.val))
        if not len(train.labels):
            raise ModelError(
                f"no class of {old.path or 'the given features'} ({examples(old.class_names)}) is a"
                " class that the model keeps",
                remedy="Give a cache of the model's own classes, with the class names of the"
                " model.",
            )
        if left.memory is not None:
            train = train.without(left.memory.held_out)
        return Source(train, aside)

    @property
    def tested(self) -> FeatureSet:
        """Held-out rows of old classes: given ones, or those that the model remembers."""
        memory = self.left.memory
        return self.given.val if memory is None or len(self.given.val.labels) else memory.held_out

    def with_statistics(self) -> Growth:
        """Return the same with given statistics in the memory of the model."""
        names, summed = self.left.class_names, None if self.old is None else self.old.summed
        if summed is None or {*summed.class_names}.isdisjoint(names):
            return self
        memory = _with_summed(self.left, summed, self.images.train)
        return replace(self, left=replace(self.left, memory=memory), old=None)


class Started(NamedTuple):
    """A head with rows of the new classes, last, and how they came about."""

    head: Head
    start: Initialisation | None
    """None for the first head of a model."""
    old: str
    """What stood in for old images, in words."""
    taken: Top1 = Top1(0, 0)
    """How many of the features that stand in for old images new classes take."""


def grown_head(growth: Growth, observer: Observer) -> Started:
    """Run one task.

    Discriminants read only old rows that are known. If images of old classes are held out, these
    set the price.
    """
    left, images, config, tested = growth.left, growth.images, growth.config, growth.tested
    given = growth.given.train
    rows, kind, known = old_rows(
        config.old_rows, left.head, left.memory, images.train, given=given, seed=config.seed
    )
    init, least = config.init, left.facts.num_classes / 2
    if init == "auto":
        init = "discriminant" if len(np.unique(known.labels)) >= least else "fitted"
    if init == "discriminant" and len(known.labels) and not config.iterations:
        rows = known
    tasks = left.facts.tasks
    base = next((row for row, task in enumerate(tasks) if task), len(tasks))
    sides = (
        replace(left.head, fingerprint=""),
        Source(rows, tested),
        Source(images.train, images.val),
    )
    study, came_with = _study(growth, init, len(rows.labels)), base or len(tasks)
    if config.iterations:

        def observe(event: Event) -> None:
            if not isinstance(event, Noted):  # notes name options of experiments
                observer(event)

        (head,) = grown_heads(*sides, [study], came_with=came_with, observer=observe)
        start = Initialisation(Rows.of_head(head))
        return Started(head, start, kind, _taken(head, rows, images))
    observer(Doing("Computing rows …"))
    ((head, start),) = started_heads(*sides, [study], came_with=came_with)
    if start.balance is not None and len(tested.labels):
        features, new = tested.features[:].astype(np.float32), len(images.class_names)
        logits = features @ head.weight.T + head.bias
        balance = start.balance.judged_by(logits[:, :-new], logits[:, -new:], tested.labels)
        shift = balance.shift(config.max_old_loss)
        moved = np.arange(head.num_classes) >= head.num_classes - new
        head = replace(head, bias=(head.bias + shift * moved).astype(np.float32))
        start = start.shifted(shift, balance)
    if start.balance is None:
        return Started(head, start, kind, _taken(head, rows, images))
    return Started(head, start, kind, Top1(start.balance.lost, start.balance.judged))


def _taken(head: Head, rows: FeatureSet, images: Arrived) -> Top1:
    chosen = np.linspace(0, len(rows.labels) - 1, min(MOST_TAKEN, len(rows.labels))).astype(int)
    logits = rows.features[chosen].astype(np.float32) @ head.weight.T + head.bias
    old = head.num_classes - len(images.class_names)
    return Top1(int((logits.argmax(axis=1) >= old).sum()), len(chosen))


def _study(growth: Growth, init: Any, buffer: int) -> Study:
    """Return the study of the task; independent classes have the loss of independent classes."""
    config, engine = growth.config, growth.left.engine
    independent = growth.left.facts.activation == "sigmoid" and config.loss == "ce"
    return Study(
        stream=Stream(
            method="rehearsal" if buffer else "naive",
            tasks=1,
            iterations=config.iterations,
            buffer=buffer or None,
            eval_every=max(1, config.iterations),
            seed=config.seed,
            class_order=growth.images.class_names,
        ),
        start=Start(init=init, new_share=config.new_share, max_old_loss=config.max_old_loss),
        training=Training(
            protocol="keep",
            loss="bce" if independent else config.loss,
            lr=config.lr,
            device="cpu" if engine is None else engine.device,
        ),
    )


def _with_summed(left: Classifier, summed: Summed, like: FeatureSet) -> Memory:
    names = left.class_names
    places = [*names, *(name for name in summed.class_names if name not in {*names})]
    statistics = summed.named(places).averaging("class", "a model")
    of_all = Memory.of_statistics(statistics, like.nothing(tuple(places)), left.depends_on)
    found = of_all.of_rows(range(len(names)))
    return found if left.memory is None else found.updated(left.memory)


def grown_memory(growth: Growth) -> Memory:
    """Return the memory of the new model.

    It joins the old memory, the given rows of classes that the old memory lacks, and the added
    images.
    """
    memory, given, keep = growth.left.memory, growth.given, growth.config.keep
    depends_on = growth.left.depends_on

    def of(rows: Source | Arrived, *, added: bool = False) -> Memory:
        return Memory.of(rows.train, depends_on, held_out=rows.val, keep=keep, added=added)

    if memory is None:
        memory = of(given)
    elif len(given.train.labels):
        memory = of(given).updated(memory)
    return memory.joined(of(growth.images, added=True))
