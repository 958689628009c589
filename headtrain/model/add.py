"""Add classes to a model in use: rows computed from their images, trained on request, measured.

One task of the experiment of `clinit train-head`: the old classes are the base, with real or drawn
rows as the buffer, the added ones the task. The first classes of a network without a classifier
get a head that is fitted to their images (`clinit.headtrain.probe.fit_head`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, accuracy
from clinit.extract.work.run import ExtractConfig
from clinit.files.lock import claim_file
from clinit.headtrain.events import Observer, TaskStarted, ignore
from clinit.headtrain.experiment import grown_heads, started_heads
from clinit.headtrain.model.again import of_both, with_more
from clinit.headtrain.model.audit import Audit, audit
from clinit.headtrain.model.facts import Action, Change, ModelFacts
from clinit.headtrain.model.images import (
    ImageJob,
    Listener,
    check_apart,
    image_features,
    images_to_audit,
    list_images,
    measured,
    old_features,
)
from clinit.headtrain.model.measure import Balance, Examined, first_left_out
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.old_rows import old_rows
from clinit.headtrain.model.onnx import OnnxCheck
from clinit.headtrain.model.reading import open_model
from clinit.headtrain.model.settings import LEFT_OUT, AddConfig
from clinit.headtrain.model.writing import check_free, write_model
from clinit.headtrain.probe.fit_head import HeadFit, fit_head
from clinit.headtrain.start.scale import LeftOut
from clinit.headtrain.statistics.summed import Summed
from clinit.headtrain.stream.source import Source
from clinit.headtrain.study.parts import NewShare, Start, Stream, Training
from clinit.headtrain.study.study import Study
from clinit.words import examples, number_of

FIRST_FIT: HeadFit = "ridge"
"""How the first head of a network is fitted: of 3 to 50 classes of 1 to 20 images it knows up to
3 points more than `logistic`, which needs a second image of a class."""
SHARES: tuple[NewShare, ...] = ("classes", 0.05, 0.2, 0.5)
"""Weights of new images that are compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """Result of adding classes."""

    model: Model
    """The new model, the addition in its history."""
    replaced: int
    """How many of the classes the model had before."""
    old_before: Top1
    """Correct on images of old classes, held out or left out, with the model as it was."""
    old: Top1
    """The same with the new model: among all classes."""
    new: Top1
    """Correct on images of the added classes, held out or left out, among all classes."""
    left_out: bool
    """Whether each image of the added classes was left out of the rows that answer it."""
    balance: tuple[Balance, ...]
    """The same for several weights of the new images, the one asked for first. If no image of an
    old class is held out, `old` is of the rows in their place."""
    audit: Audit | None = None
    """Oddities of the images; None if there were none to look at."""
    onnx: OnnxCheck | None = None
    """Comparison with the ONNX form of the model; None if there is none."""


def add_classes(
    model: str | Path,
    images: str | Path,
    out: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    old: Source | str | Path | None = None,
    replace: bool = False,
    more: bool = False,
    strict: bool = False,
    features: str | Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
    observer: Observer = ignore,
) -> Addition:
    """Add the classes of a folder of images to a model, and write the new model to `out`.

    The numbers match `clinit add`. Existing features are kept: an interrupted call resumes.

    Args:
        model: Folder or file of a model; it is not changed.
        images: A folder of images for each class, or `train` and `val` with such folders.
        out: Folder of the new model, or a file that ends in .safetensors.
        settings: Fields of `clinit.headtrain.model.settings.AddConfig`, by name.
        old: Features of old classes, in place of what the model remembers; or their statistics,
            for classes that it does not remember.
        replace: Whether classes that the model has are replaced.
        more: Whether all classes are of the model, and these are more images of them.
        strict: Whether a warning of the audit of the images, or an unreadable image, is an error.
        features: Folder of the features of the images; default: `out` with `-features`.
        overwrite: Whether a model that is at `out` is replaced.
        device: `auto`, `cuda` or `cpu`.
        observer: Called with each event of the training.

    Raises:
        ValueError: If a setting is wrong.
        ClinitError: If the model, the images or the features cannot be used, or there is
            something at `out` that may not be replaced.
    """
    config, path = AddConfig(**(settings or {})), Path(out)
    with claim_file(path, on_busy=lambda: None):
        check_free(path, overwrite=overwrite)
        opened = open_model(model, device=device)
        job = ImageJob(
            images=Path(images),
            out=path,
            extraction=ExtractConfig(backbone=opened.backbone.config),
            features=None if features is None else Path(features),
            overwrite=overwrite,
            listener=Listener(training=lambda: nullcontext(observer)),
        )
        given = Path(old) if isinstance(old, str) else old
        return add_images(
            opened, job, config, old=given, replacing=replace, more=more, strict=strict
        )


def add_images(
    model: Model,
    job: ImageJob,
    config: AddConfig,
    *,
    old: Source | Path | None = None,
    replacing: bool = False,
    more: bool = False,
    onnx: bool = False,
    strict: bool = False,
) -> Addition:
    """Add the classes of a folder of images to a model, and write the new model.

    Args:
        model: The model; it is not changed.
        job: The images, and the place of the new model.
        config: How they are added.
        old: Features of old classes, in place of what the model remembers.
        replacing: Whether classes that the model has are replaced.
        more: Whether these are more images of classes that the model has.
        onnx: Whether the folder holds the network as ONNX too, compared on some of the images.
        strict: Whether a warning of the audit, or an unreadable image, is an error.

    Raises:
        ClinitError: If the model, the images or the features cannot be used, or there is
            something at `job.out`.
    """
    listener = job.listener
    if config.init in ("random", "zero") and not config.iterations:
        listener.warn(
            f"{config.init} rows that are not trained recognise nothing: leave out"
            " `--init`, or train the head with `--iterations 200`"
        )

    listing = list_images(model, job)
    names = listing["train"].manifest.class_names
    known = _known_names(model.facts, names, replacing=replacing, more=more)
    if not model.facts.class_names:
        _check_first(model, names, config, old)
    images, data = image_features(model, job, listing, 0.0 if config.leaves_out else config.aside)
    left = model.without(known) if replacing else model
    action: Action = "replace" if replacing else "add"
    if old is not None:
        old = old_features(old, model, listener)
        data["old"] = old.description
    if more:
        action = "more"
        left, images, data["more"] = with_more(model, images, old, listener)
        if old is not None and {*old.class_names}.isdisjoint(left.facts.class_names):
            old = None
    if old is not None:
        old = measured(old, config.aside)
    with listener.training() as observer:
        added = add(
            model, images, config, left=left, old=old, action=action, data=data, observer=observer
        )
    with listener.doing("Looking for odd images …"):
        added = _audited(added, model, old, job)
    assert added.audit is not None
    for line in added.audit.lines:
        listener.warn(line)
    if strict and (count := len(added.audit.lines) + ("unreadable" in data)):
        raise ModelError(
            f"the audit of {job.images} warns of {number_of(count, 'thing')}, and no class is"
            " added",
            remedy="Mend the images, or leave out `--strict`; `--json` prints all that was found.",
        )
    with listener.doing("Putting backbone and head together …"):
        written = write_model(added.model, job.out, onnx=onnx, overwrite=job.overwrite)
    return replace(added, onnx=written.onnx)


def _audited(added: Addition, model: Model, old: Source | None, job: ImageJob) -> Addition:
    """Return an addition with an audit of its images, in its history too."""
    images, every = images_to_audit(job), model.facts.class_names
    left = model.of_rows([r for r, name in enumerate(every) if name not in images.rows.class_names])
    names, memory = left.facts.class_names, left.memory
    real = [] if old is None else [old.train.named(names), old.val.named(names)]
    real += [] if memory is None else [memory.held_out, memory.kept]
    rows = FeatureSet.joined([images.rows.nothing(names), *real], names)
    found = audit(images, left.head, added.model.head, rows)
    *earlier, change = added.model.facts.history
    told = replace(change, data={**change.data, "audit": found.content})
    facts = replace(added.model.facts, history=(*earlier, told))
    return replace(added, model=replace(added.model, facts=facts), audit=found)


def add(
    model: Model,
    images: Source,
    config: AddConfig,
    *,
    left: Model | None = None,
    old: Source | None = None,
    action: Action = "add",
    data: Mapping[str, Any] | None = None,
    observer: Observer = ignore,
) -> Addition:
    """Add the classes of `images` to a model, as one task of an experiment.

    Args:
        model: The model; it is not changed.
        images: Features of the new images, of the model's own network, some of them held out.
        config: How.
        left: The model without classes of `images` that it has; None: it has none.
        old: Features of old classes, in place of what the model remembers, some held out too.
        action: Name of the change in the history.
        data: Origin of the images, for the history.
        observer: Called with each event of the experiment.

    Raises:
        ModelError: If the model lacks the data asked for, or discriminants of single images would
            not be trained.
    """
    if config.init == "lda" and not config.iterations and images.train.counts().max() == 1:
        # Only a second image shows the level of a discriminant among rows of the old classes.
        raise ModelError(
            "discriminants (`--init lda`) of classes of a single image recognise nothing unless"
            " they are trained",
            remedy="Leave out `--init`, give a second image of a class, or train the head with"
            " `--iterations 200`.",
        )
    left = left or model
    summed = None if old is None else old.summed
    if summed is not None and not {*summed.class_names}.isdisjoint(left.facts.class_names):
        left, old = replace(left, memory=_with_summed(left, summed, images.train)), None
    given = _given(left, images, old)
    tested = given.val
    if left.memory is not None and not len(tested.labels):
        tested = left.memory.held_out
    if left.facts.class_names:
        heads, kind = _grown_heads(left, images, given, tested, config, observer)
    else:
        first, _ = fit_head(images, FIRST_FIT)
        heads = {config.new_share: (first, first_left_out(images.train, first))}
        kind = f"none, as it had no class; its head is fitted ({FIRST_FIT})"
    head, answers = heads[config.new_share]
    assert head.class_names is not None
    tests = {share: Examined.of(*each, tested, images.val) for share, each in heads.items()}
    balance, own = tuple(each.balance(s) for s, each in tests.items()), tests[config.new_share]
    is_left_out, found = answers is not None and not len(images.val.labels), None
    # Rows of one kind alone are a poor guide to the others, if there are others.
    if (len(tested.labels) or not left.facts.class_names) and len(own.new.labels):
        found = own.temperature()
    if found is None and left.facts.temperature is not None:
        found = left.facts.temperature.unmeasured
    # A number that no task of the model has had, not even one that was removed.
    task = 1 + max([0, *model.facts.tasks, *(each.task or 0 for each in model.facts.history)])
    tasks = (*left.facts.tasks, *(task for _ in images.class_names))
    facts = replace(left.facts, class_names=head.class_names, tasks=tasks, temperature=found)
    grown = replace(left, facts=facts, head=head, memory=_memory(left, images, config, given))
    if replaced := model.facts.num_classes - left.facts.num_classes:  # they keep their rows
        row_of = {name: row for row, name in enumerate(head.class_names)}
        rows_then = [row_of.pop(name) for name in model.facts.class_names]
        grown = grown.of_rows([*rows_then, *row_of.values()])
    old_after = balance[0].old if len(tested.labels) else Top1(0, 0)
    new_after = balance[0].new
    change = Change.now(
        action,
        images.class_names,
        task=task,
        images=dict(zip(images.class_names, images.train.counts().tolist(), strict=True)),
        data={**(data or {}), "old_rows": kind, "left_out": is_left_out},
        settings=asdict(config),
        accuracy={"old": old_after, "new": new_after, "all": old_after + new_after},
    )
    return Addition(
        model=grown.after(change),
        replaced=replaced,
        old_before=accuracy(model.head, tested.named(model.facts.class_names)),
        old=old_after,
        new=new_after,
        left_out=is_left_out,
        balance=balance,
    )


def merge_models(
    model: Model,
    other: Model,
    out: Path,
    config: AddConfig,
    data: Mapping[str, Any],
    listener: Listener,
    *,
    overwrite: bool = False,
) -> Addition:
    """Write a model of the classes of both, as if all had been added to their shared ones at once.

    Args:
        model: One model; it is not changed.
        other: Another one of the same network.
        out: The place of the new model, a place of its own.
        config: How the classes of one of them alone are added.
        data: Further contents of the history.
        listener: Called with each event of the work.
        overwrite: Whether an existing model is replaced.

    Raises:
        ModelError: If they are of different networks, differ in a class that both have, or do not
            remember the training rows of all others.
        ClinitError: If the new model cannot be written.
    """
    data = {**data, "models": [model.origin, other.origin]}
    for each in (model, other):
        check_apart(out, Path(each.origin))
    left, images, model = of_both(model, other)
    with listener.training() as seen:
        added = add(model, images, config, left=left, action="merge", data=data, observer=seen)
    with listener.doing("Putting backbone and head together …"):
        write_model(added.model, out, overwrite=overwrite)
    return added


def _grown_heads(
    left: Model,
    images: Source,
    given: Source,
    tested: FeatureSet,
    config: AddConfig,
    observer: Observer,
) -> tuple[dict[NewShare, tuple[Head, LeftOut | None]], str]:
    """Return heads of an experiment of one task, and what stood for images of old classes.

    The first one is as asked for; others weigh the new images differently, if that costs little.
    """
    rows, kind = old_rows(
        config.old_rows, left.head, left.memory, images.train, given=given.train, seed=config.seed
    )
    on_gpu = left.backbone.config.device.startswith("cuda")
    study = Study(
        stream=Stream(
            method="rehearsal" if len(rows.labels) else "naive",
            tasks=1,
            iterations=config.iterations,
            buffer=len(rows.labels) or None,
            eval_every=max(1, config.iterations),
            seed=config.seed,
            class_order=images.class_names,
        ),
        start=Start(init=config.init, new_share=config.new_share),
        training=Training(loss=config.loss, lr=config.lr, device="cuda" if on_gpu else "cpu"),
    )
    tasks = left.facts.tasks
    base = next((row for row, task in enumerate(tasks) if task), len(tasks))
    is_held_out = len(tested.labels) and len(images.val.labels)
    compared = config.init in LEFT_OUT and len(rows.labels) and not config.iterations
    shares = list(dict.fromkeys([config.new_share, *(SHARES if compared else ())]))
    studies = [study.changed({"new_share": share}) for share in shares]
    sides = (
        replace(left.head, fingerprint=""),
        Source(rows, tested),
        Source(images.train, images.val),
    )
    came_with = base or len(tasks)
    if config.iterations:
        (head,) = grown_heads(*sides, studies, came_with=came_with, observer=observer)
        return {config.new_share: (head, None)}, kind
    observer(TaskStarted(1, 1, 0))
    found = {}
    started = started_heads(*sides, studies, came_with=came_with)
    for share, (head, start) in zip(shares, started, strict=True):
        answers = start.left_out if not is_held_out else None
        found[share] = head, answers and answers()
    return found, kind


def _check_first(
    model: Model, names: Sequence[str], config: AddConfig, old: Source | Path | None
) -> None:
    """Check that classes of these names can be the first ones of a model.

    Raises:
        ModelError: If they cannot.
    """
    why = None
    if len(names) < 2:
        why = f"{examples(names)} would be its only class, with no other to separate it from"
    elif config.iterations or config.init != AddConfig().init or old is not None:
        why = "its first head is fitted, and no row is initialised or trained next to old ones"
    if why is not None:
        raise ModelError(
            f"{model.origin} has no classifier: {why}",
            remedy="Give two classes or more, without `--init`, `--iterations` and `--old`.",
        )


def _known_names(
    facts: ModelFacts, names: Sequence[str], *, replacing: bool, more: bool
) -> list[str]:
    """Return the classes that the model has already.

    Raises:
        ModelError: If there are some without need, or some or all are missing.
    """
    known = [name for name in names if name in {*facts.class_names}]
    new = [name for name in names if name not in {*known}]
    if more and new:
        raise ModelError(
            f"{len(new):,} of these {len(names):,} classes are new to the model ({examples(new)})",
            remedy="Add them by themselves, without `--more`: `clinit add MODEL IMAGES --out NEW`.",
        )
    wrong = bool(known) != replacing or (known and len(known) == facts.num_classes)
    if wrong and not more:
        raise ModelError(
            f"{len(known):,} of these {len(names):,} classes are among the {facts.num_classes:,} of"
            f" the model ({examples(known or names)})",
            remedy="More images of its classes: `--more`. Without `--replace`, give none of its"
            " classes; with it some of them, but not all: rename or remove folders. `clinit model"
            " show MODEL` lists the classes.",
        )
    return known


def _given(left: Model, images: Source, old: Source | None) -> Source:
    """Return given rows of old classes with the labels of the head; without any, no rows.

    No row that the model remembers as held out is among those to compute rows from.

    Raises:
        ModelError: If none of their classes is one of the model.
    """
    if old is None:
        nothing = images.train.nothing(left.facts.class_names)
        return Source(nothing, nothing)
    train, held_out = (each.named(left.facts.class_names) for each in (old.train, old.val))
    if not len(train.labels):
        raise ModelError(
            f"no class of {old.path or 'the given features'} ({examples(old.class_names)}) is a"
            " class of the model that stays",
            remedy="Give a cache of the model's own classes, named as the model names them.",
        )
    if left.memory is not None:
        train = train.without(left.memory.held_out)
    return Source(train, held_out)


def _with_summed(left: Model, summed: Summed, like: FeatureSet) -> Memory:
    """Return what a model remembers, and of its other classes what statistics hold."""
    names = left.facts.class_names
    places = [*names, *(name for name in summed.class_names if name not in {*names})]
    statistics = summed.named(places).averaging("class", "a model")
    of_all = Memory.of_statistics(statistics, like.nothing(tuple(places)), left.depends_on)
    found = of_all.of_rows(range(len(names)))
    return found if left.memory is None else found.updated(left.memory)


def _memory(left: Model, images: Source, config: AddConfig, given: Source) -> Memory:
    """Return what the new model remembers.

    It consists of the old memory, the given rows of classes unknown to it, and the new ones.
    """
    memory, depends_on = left.memory, left.depends_on

    def of(rows: Source, *, added: bool = False) -> Memory:
        return Memory.of(rows.train, depends_on, held_out=rows.val, keep=config.keep, added=added)

    if memory is None:
        memory = of(given)
    elif len(given.train.labels):
        memory = of(given).updated(memory)
    return memory.joined(of(images, added=True))
