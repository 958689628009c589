"""Classes that arrive at a model: the rows of old classes next to them, and the task they make.

Adding classes is one task of the experiment that `clinit train-head` runs: the old classes are the
base, real or drawn features of old classes (`clinit.headtrain.model.old_rows`) are the buffer, and
the added classes are the task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head
from clinit.headtrain.heads.array import take, to_numpy
from clinit.headtrain.heads.linear import NEVER, Rows, logit_size, may_win, shared_row
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.heads.start.scale import Balance, Initialisation
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.model.facts import Action
from clinit.headtrain.model.inputs import Arrived
from clinit.headtrain.model.memory import Memory, owing_nothing
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.old_rows import OldRows, old_rows
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.protocol.experiment import started_heads
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.parts import Stream, Training
from clinit.headtrain.protocol.study.study import Study
from clinit.observer import Doing, Observer
from clinit.words import examples

MOST_TAKEN = 1000
"""Maximum number of features in place of old images of which it is counted who takes them."""
ENOUGH = 100
"""Images of old classes with which these are known, and of tested ones that alone decide what these
may lose."""


USUAL_SIZE = 2.5
"""Deviation of the logits of new images over old classes (`logit_size`), to which a softmax head
is scaled before rows are computed: heads of trained networks have 1.4 to 6."""


@dataclass(frozen=True, eq=False)
class Growth:
    """Classes that arrive at a model, with all that decides on their rows."""

    model: Model
    """The model before."""
    left: Model
    """The model without the classes that are replaced or computed anew."""
    images: Arrived
    config: AddConfig
    action: Action
    old: Source | None = None
    """Given features of old classes, some of them held out, or their statistics."""
    earlier: tuple[str, ...] = ()
    """Classes of earlier additions in `images`; their rows are computed with the others."""

    @property
    def added(self) -> tuple[str, ...]:
        """The other classes in `images`."""
        return tuple(name for name in self.images.class_names if name not in self.earlier)

    @cached_property
    def in_own_order(self) -> Source:
        """The images, and their classes, in an order that follows from the features alone.

        Folds and draws go by order; rows of classes shall depend on no names and no order of files.
        """
        train, random = self.images.train, generator(0, Draw.OWN_ORDER)
        # Equal rows have equal sums wherever they stand, which a product of matrices does not give.
        products = train.features[:].astype(np.float64) * random.standard_normal(train.dim)
        places, labels = products.sum(axis=1), train.labels
        rising = np.argsort(places)
        means = np.bincount(labels[rising], places[rising]) / train.counts()
        order = np.argsort(means)
        rows = np.lexsort((np.argsort(order)[labels], places))
        order, rows = (each[random.permutation(len(each))] for each in (order, rows))
        names = tuple(train.class_names[k] for k in order)
        train = train.taken(rows).named(names).first(len(rows))
        return Source(train, self.images.val.named(names))

    @cached_property
    def given(self) -> Source:
        """The rows of `old`, labelled as in the head; without `old`, empty row sets.

        Rows that the model remembers as held out are removed from the training rows, and rows that
        it has learnt from the held-out rows.

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
            aside = aside.without(left.memory.learnt)
        return Source(train, aside)

    @cached_property
    def untested(self) -> tuple[str, ...]:
        """The classes in `images` that only left-out images test, none being held out."""
        counts = zip(self.images.class_names, self.images.val.counts(), strict=True)
        return tuple(name for name, count in counts if not count)

    @property
    def held_out(self) -> FeatureSet:
        """Held-out rows of old classes: given ones, or those that the model remembers."""
        memory = self.left.memory
        return self.given.val if memory is None or len(self.given.val.labels) else memory.held_out

    @cached_property
    def tested(self) -> FeatureSet:
        """Held-out rows, and left-out rows of added classes; see `Memory.left_out`."""
        memory, held_out = self.left.memory, owing_nothing(self.held_out)
        parts = [held_out] if memory is None else [held_out, memory.left_out]
        return FeatureSet.joined(parts, held_out.class_names)

    @cached_property
    def tested_earlier(self) -> FeatureSet:
        """As `tested`, of `earlier` classes in the model before."""
        memory, nothing = self.model.memory, owing_nothing(self.images.train.nothing())
        parts = [] if memory is None else [owing_nothing(memory.held_out), memory.left_out]
        every = [each.named(self.earlier) for each in (nothing, *parts)]
        return FeatureSet.joined(every, self.earlier)

    @cached_property
    def share(self) -> float:
        """The weight of discriminants, for which old classes must be known, in [0, 1].

        The square of `bound` by the images of known classes (all from `ENOUGH`): rows go over from
        fitted rows to discriminants, so that no class or image more or less changes much. Next to
        three images of each of ten old classes, discriminants take 8 points of their accuracy.
        """
        if self.config.init != "auto":
            return float(self.config.init == "discriminant")
        return (self.bound * min(1.0, float(self._known.sum()) / ENOUGH)) ** 2

    @property
    def bound(self) -> float:
        """How far the price on known rows binds: twice the share of known classes, at most 1."""
        if self.config.init != "auto":
            return 1.0
        return min(1.0, 2 * float((self._known > 0).mean()))

    @cached_property
    def _known(self) -> Int[np.ndarray, " classes"]:
        """Numbers of images of old classes behind given rows or statistics."""
        memory, images = self.left.memory, self.given.train.counts()
        return images if memory is None else np.maximum(images, memory.counts)

    @property
    def came_with(self) -> int:
        """Number of classes that were not added, first; all, if the head began with none."""
        tasks = self.left.facts.tasks
        return next((row for row, task in enumerate(tasks) if task), 0) or len(tasks)

    @property
    def price(self) -> float:
        """Points of accuracy that old classes may lose."""
        return 1.0 if self.config.max_old_loss is None else self.config.max_old_loss

    @property
    def trust(self) -> float:
        """How far tested images decide on the shift of new rows, in [0, 1].

        Few images, by their number. Those of classes added before count if old classes are known:
        else they would bear the price alone (on photographs of like scenes, eight per class, a
        point of theirs cost 24 points of the new classes). Entirely, if the price is asked for.
        """
        if self.config.max_old_loss is not None:
            return 1.0
        held_out, tested = (
            min(1.0, len(rows.labels) / ENOUGH) for rows in (self.held_out, self.tested)
        )
        return max(held_out, self.bound * tested)

    def represents(self, tested: FeatureSet) -> float:
        """Return how far tested images represent the classes in `left`, in [0, 1].

        The share of classes, doubled, or else of `ENOUGH` held-out images.
        """
        if not self.left.facts.num_classes:
            return 1.0
        classes = 2 * len(np.unique(tested.labels)) / self.left.facts.num_classes
        return min(1.0, max(classes, len(self.held_out.labels) / ENOUGH))


class GrownHead(NamedTuple):
    """A head with rows of the new classes, last, and how they came about."""

    head: Head
    start: Initialisation | None
    """None for the first head of a model."""
    old: str
    """What stood in for old images, in words."""
    share: float = 0.0
    """Weight of discriminants in the rows; see `Growth.share`."""
    bounded: float = 0.0
    """Part of the way from the least loss to the price that new rows went, in [0, 1]."""
    shift_at: Callable[[float], float] | None = None
    """The change of new biases that another `--max-old-loss` would make; None: nothing is known."""


def grown_head(growth: Growth, observer: Observer) -> GrownHead:
    """Run one task.

    Discriminants read only old rows that are known. Old images set the price, unless other rows
    are asked for.
    """
    left, is_auto, train = growth.left, growth.config.init == "auto", growth.in_own_order.train
    old = old_rows(left.head, left.memory, train, growth.given.train, growth.came_with)
    observer(Doing("Computing rows …"))
    share, found = growth.share, list[Initialisation]()
    if share > 0:
        known = old.known
        head, start = _started(growth, "discriminant", known if len(known.rows.labels) else old)
        least = 0.0 if start.balance is None else start.balance.fitted  # the price comes later
        found.append(start.shifted(least, start.balance))
    if share < 1:
        head, start = _started(growth, "fitted" if is_auto else growth.config.init, old)
        if is_auto and len(old.rows.labels):
            # With a single image per class, nothing else shows how far old images lie from the new
            # rows, which could take them all: these take at most half of the stand-ins.
            rows = old.rows.features
            chosen = np.linspace(0, len(rows) - 1, min(MOST_TAKEN, len(rows))).astype(int)
            before, added = _logits(left.head, start.rows, rows[chosen])
            room = float(np.median(before.max(axis=1) - added.max(axis=1)))
            start = start.shifted(min(0.0, room))
        found.append(start)
    start = found[0].mixed(found[1], share) if len(found) > 1 else found[0]
    bounded, shift_at = 0.0, None
    if is_auto or start.balance is not None:
        start, bounded, shift_at = _balanced(growth, start)
    new = start.rows.on_host().as_head(None)
    head = replace(
        head,
        weight=np.concatenate([left.head.weight, new.weight]),
        bias=np.concatenate([left.head.bias, new.bias]),
    )
    return GrownHead(head, start, old.kind, share, bounded, shift_at)


def _started(growth: Growth, init: Any, old: OldRows) -> tuple[Head, Initialisation]:
    """Return the head with new rows next to these old rows; see `started_heads`.

    The softmax ignores what all rows have in common, but norms do not: rows from embeddings of
    class names share most of their length. So the rows are computed without it. Answers do not
    depend on the scale of a head either, but losses do: so it is brought to a usual one.

    Independent classes have the loss of independent classes, but not next to guesses, which do not
    tell how often a new class has a positive logit on old images, and starve it.
    """
    left, train = growth.left, growth.in_own_order.train
    loss = "bce" if left.facts.activation == "sigmoid" and old.guess is None else "ce"
    own = init in ("fitted", "discriminant") and loss == "ce"
    rows = Rows.of_head(left.head)
    came, features = rows.between(0, growth.came_with if own else 0), train.features
    kept = may_win(came, features)
    shared = shared_row(came, kept)
    scale = logit_size(Rows(came.weight[kept], came.bias[kept]), features) / USUAL_SIZE or 1.0
    weight, bias = (rows.weight - shared.weight) / scale, (rows.bias - shared.bias) / scale
    if own:
        bias = np.where(may_win(rows, features), bias, NEVER)
    centred = Rows(weight, bias).as_head(None)
    sides = (
        replace(left.head, weight=centred.weight, bias=centred.bias, fingerprint=""),
        Source(old.rows, growth.held_out),
        growth.in_own_order,
    )
    study, drawn = _study(growth, init, loss, len(old.rows.labels)), old if old.drawn else None
    ((head, start),) = started_heads(*sides, [study], came_with=growth.came_with, drawn=drawn)
    return head, start.next_to(scale, shared)


def _balanced(
    growth: Growth, start: Initialisation
) -> tuple[Initialisation, float, Callable[[float], float] | None]:
    """Shift the new rows by the price, on tested images and on other known rows of old classes.

    Returns:
        The start, and `bounded` and `shift_at` of `GrownHead`.
    """
    head, tested, asked = growth.left.head, growth.tested, growth.config.max_old_loss is not None
    share, trust = growth.share, growth.trust
    if start.left_out is None or not (len(tested.labels) or share):
        return start, 0.0, None
    left_out = start.left_out()
    start = replace(start, left_out=lambda: left_out)
    rows = to_numpy(take(left_out.data.features, left_out.drawn))
    own_old, own_new = _logits(head, start.rows, rows)[0], left_out.logits.cpu().numpy()
    old, new = _logits(head, start.rows, tested.features[:, :-1])
    old[np.arange(len(old)), tested.labels] -= tested.features[:, -1]
    is_new = left_out.labels >= head.num_classes

    def balance(old: np.ndarray, new: np.ndarray, labels: np.ndarray) -> Balance:
        """Return what decides for these old images and the left-out new ones."""
        old, new = np.concatenate([old, own_old[is_new]]), np.concatenate([new, own_new[is_new]])
        labels = np.append(labels, left_out.labels[is_new])
        target, right = np.maximum(labels - head.num_classes, -1), old.argmax(axis=1) == labels
        return Balance.of(old.max(axis=1), right, target, new)

    # Rows drawn from the head judge nothing: without discriminants, no other old row is known.
    known = ~is_new if share else np.zeros_like(is_new)
    own = balance(own_old[known], own_new[known], left_out.labels[known])
    measured = balance(old, new, tested.labels)

    def shift_at(points: float, part: float = 1.0, trust: float = 1.0) -> float:
        first, found = part * own.shift(points), measured.shift(points)
        if not measured.judged:
            return first
        found -= share * max(0.0, found - own.shift(points))
        return first + trust * (found - first)

    # Few images are enough to protect old classes, not to give their room away.
    part = 1.0 if asked else share if own.shift(growth.price) > 0 else growth.bound
    now = shift_at(growth.price, part, trust)
    start = start.shifted(now, own if own.judged else None)
    return start, trust if measured.judged else part, lambda points: shift_at(points) - now


def _logits(head: Head, rows: Rows, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of the head, and of new rows."""
    features, new = features.astype(np.float32), rows.on_host()
    old: np.ndarray = features @ head.weight.T + head.bias
    return old, features @ new.weight.astype(np.float32).T + new.bias


def _study(growth: Growth, init: Any, loss: Any, buffer: int) -> Study:
    config, engine = growth.config, growth.left.engine
    return Study(
        stream=Stream(
            method="rehearsal" if buffer else "naive",
            tasks=1,
            iterations=0,
            buffer=buffer or None,
            eval_every=1,
            class_order=growth.in_own_order.class_names,
        ),
        start=Start(init=init, new_share=config.new_share),
        training=Training(
            protocol="keep", loss=loss, device="cpu" if engine is None else engine.device
        ),
    )


def grown_memory(growth: Growth, left_out: FeatureSet | None) -> Memory:
    """Return the memory of the new model.

    It joins the old memory, the given rows of classes that the old memory lacks, and the added
    images, with `left_out` among them.
    """
    memory, given = growth.left.memory, growth.given
    depends_on = growth.left.depends_on

    def of(rows: Source, **more: Any) -> Memory:
        return Memory.of(rows.train, depends_on, held_out=rows.val, **more)

    if memory is None:
        memory = of(given)
    elif len(given.train.labels):
        memory = of(given).updated(memory)
    images, names = growth.images, growth.in_own_order.class_names
    came = Source(images.train.named(names), images.val.named(names))
    return memory.joined(of(came, added=True, left_out=left_out))
