"""Add classes to a model in use: rows computed from their images, trained on request, measured.

One task of the experiment of `clinit train-head`: the old classes are the base, with real or drawn
rows as the buffer, the added ones the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clinit.errors import BackboneError, ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, top1
from clinit.extract.work.run import ExtractConfig
from clinit.headtrain.events import Observer, ignore
from clinit.headtrain.experiment import run_experiment
from clinit.headtrain.model.edit import (
    Classes,
    Extra,
    Model,
    check_features,
    no_extra,
    write_classes,
)
from clinit.headtrain.model.images import (
    SILENT,
    Listener,
    Measured,
    image_features,
    measured,
    where_from,
)
from clinit.headtrain.model.memory import Memory, without_rows_of
from clinit.headtrain.model.model_file import Change, ModelFacts
from clinit.headtrain.model.old_rows import in_rows_of, old_rows
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.stream.source import Source, read_source
from clinit.headtrain.study import Start, Stream, Study, Training
from clinit.headtrain.temperature import Temperature, temperature_of
from clinit.words import examples


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """What adding classes led to; nothing is written yet."""

    classes: Classes
    """Facts (their history and task included), rows and memory of the new model."""
    replaced: int
    """How many of the classes the model had before."""
    old_before: Top1
    """Correct on held-out images of old classes with the model as it was."""
    old: Top1
    """The same with the new model: among all classes."""
    new: Top1
    """Correct on held-out images of the added classes, among all classes."""
    old_kind: str
    """What stood for the old images."""
    old_tested: str
    """Which held-out images of old classes these are; empty where there are none."""
    record: RunRecord
    """The task as a run."""


def add(
    model: Model,
    images: Source,
    config: AddConfig,
    *,
    old: Source | None = None,
    replacing: bool = False,
    data: Mapping[str, Any] | None = None,
    observer: Observer = ignore,
) -> Addition:
    """Add the classes of `images` to a model, as one task of an experiment.

    Args:
        model: The model; it is not changed.
        images: Features of the new images, of the model's own network.
        config: How.
        old: Features of old classes, in place of what the model remembers.
        replacing: Whether classes that the model has are replaced.
        data: Where the images are from, for the history.
        observer: Called with each event of the experiment.

    Raises:
        ModelError: If the model has one of the classes already, has none that could be replaced,
            or lacks what is asked for; or if discriminants of single images would not be trained.
        BackboneError: If its classifier has no biases.
    """
    _check_bias(model)
    arriving = measured(images, config.hold_out)
    if config.init == "lda" and not config.iterations and arriving.train.counts().max() == 1:
        # Only a second image says how high a discriminant is beside the rows of the old classes.
        raise ModelError(
            "discriminants (`--init lda`) of classes of a single image recognise nothing unless"
            " they are trained",
            remedy="Leave out `--init`, give a second image of a class, or train the head with"
            " `--iterations 200`.",
        )
    before = Classes.of(model)
    places = replaced_rows(before.facts, images.class_names, allowed=replacing)
    left = before.without([before.facts.class_names[row] for row in places]) if places else before
    given = None if old is None else _given(left, old, config.hold_out)
    known = None if given is None else given.train
    rows = old_rows(
        config.old_rows, left.head, left.memory, arriving.train, given=known, seed=config.seed
    )
    tested, old_tested = _tested(left, given)
    study = _study(config, len(rows.rows.labels), arriving, model.backbone.config.device)
    base = Source(train=rows.rows, val=tested)
    new = Source(train=arriving.train, val=arriving.held_out)
    plain = replace(left.head, fingerprint="")
    (record,) = run_experiment(base, new, plain, [study], observer=observer)
    head = record.head
    assert head is not None
    memory = _memory(model, left, arriving, config, given)
    facts = replace(
        left.facts,
        class_names=head.class_names or (),
        tasks=(
            *left.facts.tasks,
            *(_next_task(before.facts) for _ in arriving.train.class_names),
        ),
    )
    held = FeatureSet(
        arriving.held_out.features,
        arriving.held_out.labels + left.head.num_classes,
        facts.class_names,
    )
    facts = replace(facts, temperature=_temperature(left.facts, head, tested, held))
    grown = Classes(facts, head, memory)
    old_before = _accuracy(before.head, in_rows_of(before.head, tested))
    old_after = _accuracy(head, tested)
    new_after = _accuracy(head, held)
    counts = arriving.train.counts().tolist()
    change = Change.now(
        "replace" if places else "add",
        arriving.train.class_names,
        task=max(facts.tasks),
        images=dict(zip(arriving.train.class_names, counts, strict=True)),
        data={**(data or {}), "old_rows": rows.kind},
        settings=asdict(config),
        accuracy={"old": old_after, "new": new_after, "all": old_after + new_after},
    )
    return Addition(
        classes=_in_place(grown, before, places).after(change),
        replaced=len(places),
        old_before=old_before,
        old=old_after,
        new=new_after,
        old_kind=rows.kind,
        old_tested=old_tested,
        record=record,
    )


def _temperature(
    before: ModelFacts, head: Head, old: FeatureSet, new: FeatureSet
) -> Temperature | None:
    """Fit a temperature to held-out rows of old and new classes.

    Without both, it is that of the model before: rows of one kind alone say little of the others.
    """
    if len(old.labels) and len(new.labels):
        rows = FeatureSet(
            np.concatenate([old.features, new.features]),
            np.concatenate([old.labels, new.labels]),
            new.class_names,
        )
        if (found := temperature_of(head, rows)) is not None:
            return found
    return None if before.temperature is None else before.temperature.unmeasured


def replaced_rows(facts: ModelFacts, names: Sequence[str], *, allowed: bool) -> dict[int, str]:
    """Return the rows of the classes that the model has already, with their names.

    Raises:
        ModelError: If there are some and they are not to be replaced, or none and they are.
    """
    row_of = {name: row for row, name in enumerate(facts.class_names)}
    known = [name for name in names if name in row_of]
    if len(known) == len(row_of):
        raise ModelError(
            f"the images are of all {len(known):,} classes of the model: nothing would be left of"
            " it",
            remedy="Leave one class out, or start from a network of timm: `clinit add --backbone`.",
        )
    if known and not allowed:
        raise ModelError(
            f"the model has {len(known):,} of these classes already ({examples(known)})",
            remedy="Replace them with `--replace`, or rename or remove their folders.",
        )
    if allowed and not known:
        raise ModelError(
            f"there is nothing to replace: the model has no class {examples(names)}",
            remedy="Add the classes without `--replace`, or name the folders as the classes of the"
            " model; `clinit model show MODEL` lists them.",
        )
    return {row_of[name]: name for name in known}


def _check_bias(model: Model) -> None:
    classifier = model.backbone.network.get_classifier()  # type: ignore[operator]
    if classifier.bias is None:
        raise BackboneError(
            f"the classifier of {model.facts.backbone} has no biases, the rows of added classes"
            " need some",
            remedy="Train heads on cached features instead: `clinit train-head`.",
        )


def _next_task(facts: ModelFacts) -> int:
    """Return a number that no task of the model has had, not even one that was removed."""
    return 1 + max([*facts.tasks, *(change.task or 0 for change in facts.history)])


def _given(left: Classes, old: Source, share: float) -> Measured:
    """Return given features of old classes, and others of them that are held out.

    No row that the model remembers as held out is among those to compute rows from.

    Raises:
        ModelError: If none of their classes is one of the model.
    """
    parts = measured(old, share)
    train, held_out = (in_rows_of(left.head, each) for each in (parts.train, parts.held_out))
    if not len(train.labels):
        raise ModelError(
            f"no class of {old.path or 'the given features'} ({examples(old.class_names)}) is a"
            " class of the model that stays",
            remedy="Give a cache of the model's own classes, named as the model names them.",
        )
    if left.memory is not None:
        train = without_rows_of(train, left.memory.held_out)
    return Measured(train, held_out)


def _tested(left: Classes, given: Measured | None) -> tuple[FeatureSet, str]:
    """Return held-out rows of old classes, given or else remembered, and in words which."""
    if given is not None and len(given.held_out.labels):
        return given.held_out, "of the cache given with --old"
    if left.memory is not None and len(left.memory.held_out.labels):
        rows = left.memory.held_out
        most = int(rows.counts().max())
        return rows, f"features that the model keeps aside, at most {most:,} per class"
    names = left.facts.class_names
    none = FeatureSet(np.empty((0, left.head.dim), np.float16), np.empty(0, dtype=np.int64), names)
    return none, ""


def _study(config: AddConfig, num_old: int, arriving: Measured, device: str) -> Study:
    return Study(
        stream=Stream(
            method="rehearsal" if num_old else "naive",
            tasks=1,
            iterations=config.iterations,
            buffer=num_old or None,
            eval_every=max(1, config.iterations),
            seed=config.seed,
            class_order=arriving.train.class_names,
        ),
        start=Start(init=config.init),
        training=Training(
            loss=config.loss, lr=config.lr, device="cuda" if device.startswith("cuda") else "cpu"
        ),
    )


def _memory(
    model: Model,
    left: Classes,
    arriving: Measured,
    config: AddConfig,
    given: Measured | None,
) -> Memory:
    """Return what the new model remembers.

    That is what the old one did, the given rows where it knew nothing of a class, and the new ones.
    """
    depends_on, memory = model.depends_on, left.memory
    variances = config.variances or (memory is not None and memory.variances is not None)
    if given is not None:
        found = Memory.of(
            given.train,
            depends_on,
            held_out=given.held_out,
            keep=config.keep,
            with_variances=variances,
        )
        memory = found if memory is None else found.updated(memory)
    if memory is None:
        nothing = FeatureSet(
            arriving.train.features[:0], arriving.train.labels[:0], left.facts.class_names
        )
        memory = Memory.of(nothing, depends_on)
    new = Memory.of(
        arriving.train,
        depends_on,
        held_out=arriving.held_out,
        keep=config.keep,
        with_variances=variances,
    )
    return memory.joined(new)


def _in_place(grown: Classes, before: Classes, places: Mapping[int, str]) -> Classes:
    """Return the classes with those that replace others in the rows of these."""
    if not places:
        return grown
    row_of = {name: row for row, name in enumerate(grown.facts.class_names)}
    old = [row_of[name] for name in before.facts.class_names]
    return grown.of_rows([*old, *(row for row in range(len(row_of)) if row not in set(old))])


def _accuracy(head: Head, rows: FeatureSet) -> Top1:
    return top1(head, rows.features, rows.labels, np.arange(len(rows.class_names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """What is to be added, and where it goes."""

    images: Path
    """A folder of images for each class, or `train` and `val` with such folders."""
    out: Path
    """Folder of the new model, or a file that ends in .safetensors."""
    config: AddConfig
    extraction: ExtractConfig
    overwrite: bool = False
    """Whether a model that is at `out` is replaced."""
    replacing: bool = False
    """Whether classes that the model has are replaced."""
    old: Source | Path | None = None
    """Features of old classes, in place of what the model remembers."""
    features: Path | None = None
    """Folder of the features of the images; None for one beside `out`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the history is to say beside where everything is from."""


def add_images(
    model: Model, request: AddRequest, *, listener: Listener = SILENT, extra: Extra = no_extra
) -> tuple[Addition, Path]:
    """Add the classes of a folder of images to a model, and write the new model.

    What is there of the features is kept: work that was interrupted goes on.

    Args:
        model: The model; it is not changed.
        request: What is to be added.
        listener: Hears of it.
        extra: Writers of further files of the model folder; see `write_classes`.

    Returns:
        What it led to, and the folder of the features.

    Raises:
        ClinitError: If the model, the images or the features cannot be used, or there is
            something at `request.out`.
    """
    if request.config.recognises_nothing:
        listener.warn(
            f"{request.config.init} rows that are not trained recognise nothing: leave out"
            " `--init`, or train the head with `--iterations 200`"
        )
    check = partial(replaced_rows, model.facts, allowed=request.replacing)
    images, folder = image_features(
        model,
        request.images,
        out=request.out,
        features=request.features,
        config=request.extraction,
        check=check,
        listener=listener,
    )
    old = None if request.old is None else _old_classes(request.old, model, listener)
    with listener.training() as observer:
        added = add(
            model,
            images,
            request.config,
            old=old,
            replacing=request.replacing,
            data={
                **request.data,
                **where_from(model, request.images, images),
                **({} if old is None else {"old": old.description}),
            },
            observer=observer,
        )
    with listener.doing("Putting backbone and head together …"):
        write_classes(model, added.classes, request.out, extra, overwrite=request.overwrite)
    return added, folder


def _old_classes(given: Source | Path, model: Model, listener: Listener) -> Source:
    if isinstance(given, Source):
        source = given
    else:
        with listener.doing("Reading the features of old classes …"):
            source = read_source(given)
    check_features(model, source)
    known = set(model.facts.class_names)
    if unknown := [name for name in source.class_names if name not in known]:
        listener.note(
            f"{len(unknown):,} of {len(source.class_names):,} classes in {source.path} are none of"
            f" the model ({examples(unknown)}): they are left out"
        )
    return source
