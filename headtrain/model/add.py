"""Add classes to a model: compute their rows from images, train on request, measure the result.

Adding classes is one task of the experiment that `clinit train-head` runs: the old classes are the
base, real or drawn features of old classes are the buffer, and the added classes are the task. If
the model has no classes, a head is fitted to the images (`clinit.headtrain.probe.fit_head`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple

import numpy as np

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, accuracy
from clinit.extract.dataset.names import near_names
from clinit.headtrain.heads.groups import count_repeats, repeats_in_words
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.start.scale import Initialisation, LeftOut
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.model.again import of_both, with_more
from clinit.headtrain.model.audit import Audit, audit
from clinit.headtrain.model.classifier import AnyPath, Classifier, M
from clinit.headtrain.model.facts import FEW, Action, Change, accuracy_in_words
from clinit.headtrain.model.inputs import (
    QUIET,
    Arrived,
    Inputs,
    Listener,
    differences,
    features_in,
    held_out,
)
from clinit.headtrain.model.measure import Examined, Price, first_left_out
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.old_rows import DRAWN, old_rows
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.model.writing import Written, write_model
from clinit.headtrain.probe.fit_head import HeadFit, fit_head
from clinit.headtrain.protocol.events import Observer, TaskStarted
from clinit.headtrain.protocol.experiment import grown_heads, started_heads
from clinit.headtrain.protocol.stream.source import Source, read_sources
from clinit.headtrain.protocol.stream.summed import Summed
from clinit.headtrain.protocol.study.parts import Stream, Training
from clinit.headtrain.protocol.study.study import Study
from clinit.words import examples, number_of

FIRST_FIT: HeadFit = "ridge"
"""How the first head of a network is fitted. With 3 to 50 classes of 1 to 20 images, `ridge` is up
to 3 points more accurate than `logistic`, which also needs two images of a class."""
PRICES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Values of `--max-old-loss` that are compared with the requested value."""
TableOf = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Heads of columns, and lines of cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What is to become of given classes."""

    config: AddConfig = field(default_factory=AddConfig)
    kind: Literal["add", "replace", "more"] = "add"
    """Whether the classes are new, replace classes of the model, or have more images now."""
    old: Source | AnyPath | None = None
    """Features of old classes, used in place of the memory of the model; or statistics of old
    classes that the model does not remember."""
    strict: bool = False
    """Whether to fail if the audit of the images warns, or if an image is unreadable."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Addition(Generic[M]):
    """Result of adding classes; accuracies are top-1, among all classes of the model."""

    model: M
    """The new model; its history ends with this addition."""
    replaced: int
    """Number of classes of the model that were replaced."""
    old_before: Top1
    """Accuracy of the original model on held-out images of old classes."""
    old: Top1
    """Accuracy of the new model on the same images."""
    new: Top1
    """Accuracy of the new model on images of the added classes, held out or left out."""
    left_out: bool
    """Whether `new` is leave-one-out: each image is classified by rows computed without it."""
    audit: Audit
    """What seems wrong with the images."""
    prices: tuple[Price, ...] = ()
    """Accuracies for several values of `--max-old-loss`, ascending, the requested value among them.
    Empty unless the rows are discriminants and images of old classes are held out."""
    taken: Top1 | None = None
    """Without held-out images of old classes: how many of the features that stand in for them
    (`total`) new classes take (`correct`). An estimate; None for rows that are not discriminants.
    """
    place: str = ""
    """Where the features of the images are."""

    @property
    def change(self) -> Change:
        """The addition in the history of the model."""
        return self.model.facts.history[-1]

    def save(self, out: AnyPath, *, onnx: bool = False, overwrite: bool = False) -> Written:
        """Write the new model; see `Model.save`."""
        return write_model(self.model, Path(out), onnx=onnx, overwrite=overwrite)

    def lines(self) -> list[str]:
        """Return what was done, in sentences."""
        facts, change = self.model.facts, self.change
        if not change.classes:
            classes = number_of(facts.num_classes, "class")
            return [f"No class was added: {facts.name} has {classes}"]
        again = "computed anew" if change.action in ("more", "merge") else "replaced"
        arrived = {again: self.replaced, "added": len(change.classes) - self.replaced}
        done = [f"{number_of(count, 'class')} {what}" for what, count in arrived.items() if count]
        if more := change.data.get("more"):
            done.insert(0, f"{sum(more.values()):,} more images of {number_of(len(more), 'class')}")
        aside = 0 if self.left_out else self.new.total
        where = f"; their features are at {self.place}" if self.place else ""
        noun = "Rows" if "features" in change.data else "Images"
        lines = [
            f"{', '.join(done)}: {facts.name} now has {number_of(facts.num_classes, 'class')}",
            f"{noun}: {sum(change.images.values()):,} to learn from, {aside:,} kept aside{where}",
        ]
        if change.data["repeats"]:
            lines.append(f"Repeats: {repeats_in_words(change.data['repeats'])}")
        lines.append(f"In place of old images: {change.data['old_rows']}")
        if facts.temperature is not None:
            lines.append(f"Probabilities: {facts.temperature.describe()}")
        return lines

    def tables(self) -> list[TableOf]:
        """Return the accuracies before and now, and by the price of old classes."""
        change, tables = self.change, list[TableOf]()
        if not change.classes:
            return tables
        old_top1 = [accuracy_in_words(each) for each in (self.old_before, self.old)]
        if not self.old.total:
            old_top1 = ["-", "not measured"]
        of_old = ["old classes, held out", f"{self.old.total:,}", *old_top1]
        how = "image left out" if self.left_out else "held out"
        now = accuracy_in_words(self.new)
        of_new = [f"added classes, {how}", f"{self.new.total:,}", "-", now]
        lines = [of_new] if self._is_first else [of_old, of_new]
        tables.append((["top-1 on images of", "images", "before", "now"], lines))
        if len({each[1:] for each in self.prices}) > 1 and self.new.total:
            lines = []
            for each in self.prices:
                used = " (used)" if each.points == change.settings["max_old_loss"] else ""
                both = map(accuracy_in_words, (each.old, each.new))
                lines.append([f"--max-old-loss {each.points:g}{used}", *both])
            heading = "points that old classes may lose"
            tables.append(([heading, "old classes", "added classes"], lines))
        return tables

    def notes(self) -> list[str]:
        """Return what the numbers do not show."""
        notes = list[str]()
        if not self.change.classes:
            return notes
        if not self.new.total:
            notes.append(
                "no image of added classes was tested: it takes a second image of a class, which"
                " does not repeat the first, or a folder val"
            )
        elif self.new.total < FEW:
            notes.append(
                f"{number_of(self.new.total, 'image')} of added classes tested: too few for an"
                " accuracy; give more in a folder val"
            )
        if not self.old.total and not self._is_first:
            estimate = ""
            if self.taken is not None and self.taken.total:
                estimate = (
                    f"; of {self.taken.total:,} features that stand in for old images, new classes"
                    f" take an estimated {self.taken.correct:,}"
                )
            notes.append(
                f"accuracy on old classes was not measured{estimate}: give the model images of them"
                " (`clinit remember`), or --old CACHE"
            )
        return notes

    @property
    def _is_first(self) -> bool:
        return len(self.change.classes) == self.model.facts.num_classes


def add(model: M, inputs: Inputs, purpose: Purpose, listener: Listener = QUIET) -> Addition[M]:
    """Add the classes of images or features to a model; nothing is written.

    Args:
        model: The model; it is not changed.
        inputs: The images or features.
        purpose: Settings, and what to do with classes that the model contains.
        listener: Called with each event of the work.

    Raises:
        ClinitError: If the model, the images or the features cannot be used.
    """
    config, kind = purpose.config, purpose.kind
    if config.init in ("random", "zero") and not config.iterations:
        listener.warn(
            f"{config.init} rows recognise nothing until they are trained: leave out"
            " `--init`, or train the head with `--iterations 200`"
        )
    known = _known_names(model, inputs.class_names, kind)
    if not model.class_names:
        _check_first(model, inputs.class_names, purpose)
    images = inputs.arrive(model, 0.0 if config.leaves_out else config.aside, listener)
    model = model.knowing(images.fingerprint)
    if config.activation is not None:
        model = replace(model, facts=replace(model.facts, activation=config.activation))
    left = model.without(known) if kind == "replace" else model
    data, old = dict(images.data), purpose.old
    if old is not None:
        old = old_features(old, model, listener)
        data["old"] = old.description
    if kind == "more":
        left, images, told = with_more(model, images, old, listener)
        data |= told
        if old is not None and {*old.class_names}.isdisjoint(left.class_names):
            old = None
    if old is not None and old.summed is None:
        train, aside = held_out(old.train, old.val, config.aside)
        old = replace(old, train=train, val=aside)
    images = replace(images, data=data)
    added = grow(Growth(model, left, images, config, kind, old), listener)
    if purpose.strict and (count := len(added.audit.lines) + ("unreadable" in data)):
        raise ModelError(
            f"the audit of {data.get('images') or data.get('features')} found"
            f" {number_of(count, 'problem')}; no class was added",
            remedy="Fix the images, or leave out `--strict`; `--json` prints all problems.",
        )
    return added


def merge(
    model: M,
    other: M,
    config: AddConfig,
    data: Mapping[str, Any] = {},
    listener: Listener = QUIET,
) -> Addition[M]:
    """Return a model that contains the classes of two models.

    The result is the same as adding, at once, all classes that only one of the models contains to
    the classes that both contain.

    Args:
        model: One model; it is not changed.
        other: A second model with the same network; it is not changed.
        config: Settings for the classes that only one of the models contains.
        data: Further contents of the history.
        listener: Called with each event of the work.

    Raises:
        ModelError: If the networks differ, if a shared class differs, or if a model does not
            remember the training rows of all classes that the other model lacks.
    """
    data = {**data, "models": [model.origin, other.origin]}
    if near := near_names(model.class_names, other.class_names, model.origin, other.origin):
        listener.warn(near)
    left, images, model, notes = of_both(model, other)
    for note in notes:
        listener.warn(note)
    data |= {"notes": notes} if notes else {}
    if images is None:
        none = Top1(0, 0)
        merged = left.after(Change.now("merge", (), data=data))
        return Addition(merged, 0, none, none, none, left_out=False, audit=Audit.nothing())
    images = replace(images, data=data)
    return grow(Growth(model, left, images, config, "merge"), listener)


class _Started(NamedTuple):
    """A head with rows of the new classes, last, and how they came about."""

    head: Head
    start: Initialisation | None
    """None for the first head of a model."""
    old: str
    """What stood in for old images, in words."""


def grow(growth: Growth, listener: Listener) -> Addition[Any]:
    """Compute the rows of arriving classes, as one task of an experiment, and measure them.

    Raises:
        ModelError: If the model lacks data that the settings require, or if `lda` rows of single
            images would not be trained.
    """
    config, images = growth.config, growth.images
    if config.init == "lda" and not config.iterations and images.train.counts().max() == 1:
        # Calibrating a discriminant against the rows of old classes takes a second image.
        raise ModelError(
            "discriminants (`--init lda`) of classes of a single image recognise nothing until"
            " they are trained",
            remedy="Leave out `--init`, give a second image of a class, or train the head with"
            " `--iterations 200`.",
        )
    growth = growth.with_statistics()
    with listener.training() as observer:
        if growth.left.class_names:
            started = _grown_head(growth, observer)
        else:
            head = fit_head(Source(images.train, images.val), FIRST_FIT)[0]
            kind = f"none, because the model had no classes; its head was fitted ({FIRST_FIT})"
            started = _Started(head, None, kind)
        answers = _left_out(growth, started)
    with listener.doing("Looking for odd images …"):
        found = _audit(growth, started.head)
    for line in found.lines:
        listener.warn(line)
    own = Examined.of(started.head, answers, growth.tested, images.val)
    return _added(growth, started, own, found, is_left_out=answers is not None)


def _left_out(growth: Growth, started: _Started) -> LeftOut | None:
    """Return leave-one-out logits of the images, unless images of both kinds are held out."""
    images, start = growth.images, started.start
    if start is None:
        return first_left_out(images.train, started.head)
    is_held_out = len(growth.tested.labels) and len(images.val.labels)
    return None if is_held_out or start.left_out is None else start.left_out()


def _audit(growth: Growth, head: Head) -> Audit:
    model, old, images = growth.model, growth.old, growth.images.listed
    every = enumerate(model.class_names)
    left = model.of_rows([r for r, name in every if name not in images.rows.class_names])
    names, memory = left.class_names, left.memory
    real = [] if old is None else [old.train.named(names), old.val.named(names)]
    real += [] if memory is None else [memory.held_out, memory.kept]
    rows = FeatureSet.joined([images.rows.nothing(names), *real], names)
    return audit(images, left.head, head, rows)


def _calibrated(growth: Growth, own: Examined, kind: str) -> dict[str, Any]:
    """Return the temperature, and the scores of images of the classes."""
    facts, is_first = growth.left.facts, not growth.left.class_names
    found, known = None, None
    # Images of new classes alone, or drawn features of old ones, would bias the temperature.
    is_real = is_first or len(growth.tested.labels)
    if (is_real or (len(own.old.labels) and DRAWN not in kind)) and len(own.new.labels):
        found, known = own.temperature(facts.activation), own.known(facts.activation)
    if found is None and facts.temperature is not None:
        found = facts.temperature.unmeasured
    return {"temperature": found, "known": known}


def _added(
    growth: Growth, started: _Started, own: Examined, found: Audit, *, is_left_out: bool
) -> Addition[Any]:
    model, left, images, config = growth.model, growth.left, growth.images, growth.config
    (head, start, kind), tested = started, growth.tested
    assert head.class_names is not None
    # A task number that is unused in the whole history, which includes removed tasks.
    task = 1 + max([0, *model.facts.tasks, *(each.task or 0 for each in model.facts.history)])
    tasks = (*left.facts.tasks, *(task for _ in images.class_names))
    told = _calibrated(growth, own, kind)
    facts = replace(left.facts, class_names=head.class_names, tasks=tasks, **told)
    linear = replace(head, fingerprint=left.head.fingerprint)
    grown = replace(left, facts=facts, linear=linear, memory=_memory(growth))
    if replaced := model.facts.num_classes - left.facts.num_classes:  # keep the order of rows
        row_of = {name: row for row, name in enumerate(head.class_names)}
        rows_then = [row_of.pop(name) for name in model.class_names]
        grown = grown.of_rows([*rows_then, *row_of.values()])
    after, is_left_out = own.price(config.max_old_loss), is_left_out and not len(images.val.labels)
    old_after, new_after = after.old if len(tested.labels) else Top1(0, 0), after.new
    balance = None if start is None else start.balance
    prices, taken = [], None
    if balance is not None and len(tested.labels):
        now = balance.shift(config.max_old_loss)
        for points in sorted({*PRICES, config.max_old_loss}):
            shift = balance.shift(points) - now
            prices.append(own.shifted(len(images.class_names), shift).price(points))
    elif balance is not None:
        taken = Top1(balance.lost, balance.judged)
    change = Change.now(
        growth.action,
        images.class_names,
        task=task,
        images=dict(zip(images.class_names, images.train.counts().tolist(), strict=True)),
        data={
            **images.data,
            "old_rows": kind,
            "left_out": is_left_out,
            **({} if start is None or start.shrinkage is None else {"start": start.chosen}),
            "repeats": count_repeats(images.train.labels, groups_of(images.train)),
            "audit": found.content,
        },
        settings=asdict(config),
        accuracy={"old": old_after, "new": new_after, "all": old_after + new_after},
    )
    before = accuracy(model.head, tested.named(model.class_names))
    return Addition(
        *(grown.after(change), replaced, before, old_after, new_after),
        left_out=is_left_out,
        audit=found,
        prices=tuple(prices),
        taken=taken,
        place=images.place,
    )


def _grown_head(growth: Growth, observer: Observer) -> _Started:
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
        (head,) = grown_heads(*sides, [study], came_with=came_with, observer=observer)
        return _Started(head, Initialisation(Rows.of_head(head)), kind)
    observer(TaskStarted(1, 1, 0))
    ((head, start),) = started_heads(*sides, [study], came_with=came_with)
    if start.balance is not None and len(tested.labels):
        features, new = tested.features[:].astype(np.float32), len(images.class_names)
        logits = features @ head.weight.T + head.bias
        balance = start.balance.judged_by(logits[:, :-new], logits[:, -new:], tested.labels)
        shift = balance.shift(config.max_old_loss)
        moved = np.arange(head.num_classes) >= head.num_classes - new
        head = replace(head, bias=(head.bias + shift * moved).astype(np.float32))
        start = start.shifted(shift, balance)
    return _Started(head, start, kind)


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
            device="cuda" if engine is not None and engine.device.startswith("cuda") else "cpu",
        ),
    )


def _check_first(model: Classifier, names: Sequence[str], purpose: Purpose) -> None:
    """Check that classes of these names can be the first classes of a model.

    Raises:
        ModelError: If they cannot.
    """
    config = purpose.config
    remedy = "Leave out `--init`, `--iterations` and `--old`."
    why = "its first head is fitted to all classes together, so there are no old rows"
    if len(names) < 2:
        why = f"{examples(names)} would be its only class, and the answer for every image"
        remedy = "Give two classes or more."
    elif not (config.iterations or config.init != AddConfig().init or purpose.old is not None):
        return
    raise ModelError(f"{model.origin} has no classifier: {why}", remedy=remedy)


def _known_names(model: Classifier, names: Sequence[str], kind: str) -> list[str]:
    """Return the named classes that the model already contains.

    Raises:
        ModelError: If the model contains too few or too many of the names: for `more`, it must
            contain all of them; to `replace`, at least one, and other classes; otherwise none.
    """
    known = [name for name in names if name in {*model.class_names}]
    new = [name for name in names if name not in {*known}]
    if kind == "more" and new:
        raise ModelError(
            f"{len(new):,} of these {len(names):,} classes are new to the model ({examples(new)})",
            remedy="Add new classes separately, without `--more`: `clinit add MODEL IMAGES --out"
            " NEW`.",
        )
    count = model.facts.num_classes
    wrong = bool(known) != (kind == "replace") or (known and len(known) == count)
    if wrong and kind != "more":
        raise ModelError(
            f"{len(known):,} of these {len(names):,} classes are among the {count:,} of"
            f" the model ({examples(known or names)})",
            remedy="To add images to existing classes, use `--more`; to replace some classes of"
            " the model, but not all, `--replace`. Otherwise rename or remove their folders;"
            " `clinit model show MODEL` lists the classes.",
        )
    return known


def old_features(given: Source | AnyPath, model: Classifier, listener: Listener) -> Source:
    """Read features of old classes; refuse features of another network."""
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        with listener.doing("Reading the features of old classes …"):
            if path.suffix in (".npy", ".npz", ".parquet"):
                rows = features_in(path).splits["train"]
                given = Source(rows, rows.nothing(), str(path))
            else:
                (given,) = read_sources(path)
    if differing := differences(model, given.fingerprint):
        raise ModelError(
            f"the features in {given.path} do not come from the network of {model.origin}: they"
            f" differ in {differing}",
            remedy="Give the cache of this network, or the images: `clinit remember`.",
        )
    return given


def _with_summed(left: Classifier, summed: Summed, like: FeatureSet) -> Memory:
    names = left.class_names
    places = [*names, *(name for name in summed.class_names if name not in {*names})]
    statistics = summed.named(places).averaging("class", "a model")
    of_all = Memory.of_statistics(statistics, like.nothing(tuple(places)), left.depends_on)
    found = of_all.of_rows(range(len(names)))
    return found if left.memory is None else found.updated(left.memory)


def _memory(growth: Growth) -> Memory:
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
