"""Add classes to a model: compute their rows from images, train on request, measure the result.

Adding classes is one task of the experiment that `clinit train-head` runs: the old classes are the
base, real or drawn features of old classes are the buffer, and the added classes are the task. If
the network has no classifier, a head is fitted to the images (`clinit.headtrain.probe`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, Top1, accuracy
from clinit.extract.dataset.names import near_names
from clinit.extract.work.run import ExtractConfig
from clinit.files.lock import claim_file
from clinit.headtrain.heads.groups import count_repeats
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.repeats import groups_of
from clinit.headtrain.heads.start.scale import Initialisation
from clinit.headtrain.heads.start.settings import Start
from clinit.headtrain.model.again import of_both, with_more
from clinit.headtrain.model.audit import Audit, Images, audit
from clinit.headtrain.model.facts import Action, Change, Known, ModelFacts
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
from clinit.headtrain.model.measure import Examined, Price, first_left_out
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.old_rows import DRAWN, old_rows
from clinit.headtrain.model.onnx import OnnxCheck
from clinit.headtrain.model.reading import open_model
from clinit.headtrain.model.settings import AddConfig
from clinit.headtrain.model.writing import check_free, write_model
from clinit.headtrain.probe.protocol import probe
from clinit.headtrain.probe.settings import HeadFit, ProbeConfig
from clinit.headtrain.protocol.events import TaskStarted
from clinit.headtrain.protocol.experiment import grown_heads, started_heads
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.stream.summed import Summed
from clinit.headtrain.protocol.study.parts import Stream, Training
from clinit.headtrain.protocol.study.study import Study
from clinit.observer import Observer, ignore
from clinit.words import examples, number_of

FIRST_FIT: HeadFit = "ridge"
"""How the first head of a network is fitted. With 3 to 50 classes of 1 to 20 images, `ridge` is up
to 3 points more accurate than `logistic`, which also needs two images of a class."""
PRICES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Values of `--max-old-loss` that are compared with the requested value."""


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """Result of adding classes; accuracies are top-1, among all classes of the model."""

    model: Model
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
    prices: tuple[Price, ...] = ()
    """Accuracies for several values of `--max-old-loss`, ascending, the requested value among them.
    Empty unless the rows are discriminants and images of old classes are held out."""
    taken: Top1 | None = None
    """Without held-out images of old classes: how many of the features that stand in for them
    (`total`) new classes take (`correct`). An estimate; None for rows that are not discriminants.
    """
    audit: Audit | None = None
    """Audit of the images; None if `add` was called with features only."""
    onnx: OnnxCheck | None = None
    """Comparison with the ONNX file of the model; None if no ONNX file was written."""


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

    The numbers match `clinit add`. Rerun an interrupted call to resume: existing features are kept.

    Args:
        model: Folder or file of a model; it is not changed.
        images: A folder that contains one folder of images per class, or folders `train` and `val`
            of such folders.
        out: Folder of the new model, or a file that ends in .safetensors.
        settings: Fields of `clinit.headtrain.model.settings.AddConfig`, by name.
        old: Features of old classes, used in place of the memory of the model; or statistics of
            old classes that the model does not remember.
        replace: Replace classes that the model already contains.
        more: Add images to classes that the model already contains.
        strict: Fail if the audit of the images warns, or if an image is unreadable.
        features: Folder for the features of the images; default: `out` with `-features`.
        overwrite: Replace an existing model at `out`.
        device: `auto`, `cuda` or `cpu`.
        observer: Called with each event of the training.

    Raises:
        ValueError: If a setting is wrong.
        ClinitError: If the model, the images or the features cannot be used, or if `out` exists
            and may not be replaced.
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
        job: The images, and the path of the new model.
        config: Settings.
        old: Features or statistics of old classes, as in `add_classes`.
        replacing: Replace classes that the model already contains.
        more: Add images to classes that the model already contains.
        onnx: Also write the network as ONNX, and compare both forms on some of the images.
        strict: Fail if the audit of the images warns, or if an image is unreadable.

    Raises:
        ClinitError: If the model, the images or the features cannot be used, or if `job.out`
            exists and may not be replaced.
    """
    listener = job.listener
    if config.init in ("random", "zero") and not config.iterations:
        listener.warn(
            f"{config.init} rows recognise nothing until they are trained: leave out"
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
    with listener.doing("Looking at the images …"):
        listed = images_to_audit(job)
    if more:
        action = "more"
        left, images, facts = with_more(model, images, old, listener, listed)
        data |= facts
        if old is not None and {*old.class_names}.isdisjoint(left.facts.class_names):
            old = None
    if old is not None:
        old = measured(old, config.aside)
    with listener.training() as observer:
        added = add(
            model, images, config, left=left, old=old, action=action, data=data, observer=observer
        )
    added = _audited(added, model, old, listed, listener)
    assert added.audit is not None
    if strict and (count := len(added.audit.lines) + ("unreadable" in data)):
        raise ModelError(
            f"the audit of {job.images} found {number_of(count, 'problem')}; no class was added",
            remedy="Fix the images, or leave out `--strict`; `--json` prints all problems.",
        )
    with listener.doing("Putting backbone and head together …"):
        written = write_model(added.model, job.out, onnx=onnx, overwrite=job.overwrite)
    return replace(added, onnx=written.onnx)


def _audited(
    added: Addition, model: Model, old: Source | None, images: Images, listener: Listener
) -> Addition:
    """Return the addition with an audit of its images, which is also recorded in the history."""
    every = model.facts.class_names
    with listener.doing("Looking for odd images …"):
        left = model.of_rows(
            [r for r, name in enumerate(every) if name not in images.rows.class_names]
        )
        names, memory = left.facts.class_names, left.memory
        real = [] if old is None else [old.train.named(names), old.val.named(names)]
        real += [] if memory is None else [memory.held_out, memory.kept]
        rows = FeatureSet.joined([images.rows.nothing(names), *real], names)
        found = audit(images, left.head, added.model.head, rows)
    for line in found.lines:
        listener.warn(line)
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
        images: Features of the new images, computed by the model's own network; `val` is held out.
        config: Settings.
        left: The model without the classes that `images` replaces; None if it contains none of
            the classes of `images`.
        old: Features of old classes, used in place of the memory of the model; `val` is held out.
        action: Name of the change in the history.
        data: Origin of the images, for the history.
        observer: Called with each event of the experiment.

    Raises:
        ModelError: If the model lacks data that the settings require, or if `lda` rows of single
            images would not be trained.
    """
    if config.init == "lda" and not config.iterations and images.train.counts().max() == 1:
        # Calibrating a discriminant against the rows of old classes takes a second image.
        raise ModelError(
            "discriminants (`--init lda`) of classes of a single image recognise nothing until"
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
        head, start, kind = _grown_head(left, images, given, tested, config, observer)
        is_held_out = len(tested.labels) and len(images.val.labels)
        answers = None if is_held_out or start.left_out is None else start.left_out()
    else:
        head, start = probe(images, ProbeConfig(method=FIRST_FIT)).head, None
        answers = first_left_out(images.train, head)
        kind = f"none, because the model had no classes; its head was fitted ({FIRST_FIT})"
    assert head.class_names is not None
    own = Examined.of(head, answers, tested, images.val)
    is_left_out, found = answers is not None and not len(images.val.labels), None
    known: Known | None = None
    # Images of new classes alone, or drawn features of old ones, would bias the temperature.
    is_real = len(tested.labels) or not left.facts.class_names
    if (is_real or (len(own.old.labels) and DRAWN not in kind)) and len(own.new.labels):
        found, known = own.temperature(), own.known()
    if found is None and left.facts.temperature is not None:
        found = left.facts.temperature.unmeasured
    # A task number that is unused in the whole history, which includes removed tasks.
    task = 1 + max([0, *model.facts.tasks, *(each.task or 0 for each in model.facts.history)])
    tasks = (*left.facts.tasks, *(task for _ in images.class_names))
    facts = replace(
        left.facts, class_names=head.class_names, tasks=tasks, temperature=found, known=known
    )
    grown = replace(left, facts=facts, head=head, memory=_memory(left, images, config, given))
    if replaced := model.facts.num_classes - left.facts.num_classes:  # keep the order of rows
        row_of = {name: row for row, name in enumerate(head.class_names)}
        rows_then = [row_of.pop(name) for name in model.facts.class_names]
        grown = grown.of_rows([*rows_then, *row_of.values()])
    after = own.price(config.max_old_loss)
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
        action,
        images.class_names,
        task=task,
        images=dict(zip(images.class_names, images.train.counts().tolist(), strict=True)),
        data={
            **(data or {}),
            "old_rows": kind,
            "left_out": is_left_out,
            **({} if start is None or start.shrinkage is None else {"start": start.chosen}),
            "repeats": count_repeats(images.train.labels, groups_of(images.train)),
        },
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
        prices=tuple(prices),
        taken=taken,
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
    """Write a model that contains the classes of two models.

    The result is the same as adding, at once, all classes that only one of the models contains to
    the classes that both contain.

    Args:
        model: One model; it is not changed.
        other: A second model with the same network; it is not changed.
        out: Path of the new model, outside both models.
        config: Settings for the classes that only one of the models contains.
        data: Further contents of the history.
        listener: Called with each event of the work.
        overwrite: Replace an existing model at `out`.

    Raises:
        ModelError: If the networks differ, if a shared class differs, or if a model does not
            remember the training rows of all classes that the other model lacks.
        ClinitError: If the new model cannot be written.
    """
    data = {**data, "models": [model.origin, other.origin]}
    for each in (model, other):
        check_apart(out, Path(each.origin))
    theirs = (model.facts.class_names, other.facts.class_names)
    if near := near_names(*theirs, model.origin, other.origin):
        listener.warn(near)
    left, images, model, notes = of_both(model, other)
    for note in notes:
        listener.warn(note)
    data |= {"notes": notes} if notes else {}
    if images is None:
        none = Top1(0, 0)
        merged = left.after(Change.now("merge", (), data=data))
        added = Addition(merged, 0, none, none, none, left_out=False)
    else:
        with listener.training() as seen:
            added = add(model, images, config, left=left, action="merge", data=data, observer=seen)
        added = _audited(added, left, None, Images.stored(images.train, images.val), listener)
    with listener.doing("Putting backbone and head together …"):
        write_model(added.model, out, overwrite=overwrite)
    return added


def _grown_head(
    left: Model,
    images: Source,
    given: Source,
    tested: FeatureSet,
    config: AddConfig,
    observer: Observer,
) -> tuple[Head, Initialisation, str]:
    """Run one task; return the head, how its rows started, and the kind of old rows used.

    Discriminants read only old rows that are known. If images of old classes are held out, these
    set the price.
    """
    rows, kind, known = old_rows(
        config.old_rows, left.head, left.memory, images.train, given=given.train, seed=config.seed
    )
    init, least = config.init, left.facts.num_classes / 2
    if init == "auto":
        init = "discriminant" if len(np.unique(known.labels)) >= least else "fitted"
    if init == "discriminant" and len(known.labels) and not config.iterations:
        rows = known
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
        start=Start(init=init, new_share=config.new_share, max_old_loss=config.max_old_loss),
        training=Training(
            protocol="keep",
            loss=config.loss,
            lr=config.lr,
            device="cuda" if on_gpu else "cpu",
        ),
    )
    tasks = left.facts.tasks
    base = next((row for row, task in enumerate(tasks) if task), len(tasks))
    sides = (
        replace(left.head, fingerprint=""),
        Source(rows, tested),
        Source(images.train, images.val),
    )
    came_with = base or len(tasks)
    if config.iterations:
        (head,) = grown_heads(*sides, [study], came_with=came_with, observer=observer)
        return head, Initialisation(Rows.of_head(head)), kind
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
    return head, start, kind


def _check_first(
    model: Model, names: Sequence[str], config: AddConfig, old: Source | Path | None
) -> None:
    """Check that classes of these names can be the first classes of a model.

    Raises:
        ModelError: If they cannot.
    """
    remedy = "Leave out `--init`, `--iterations` and `--old`."
    why = "its first head is fitted to all classes together, so there are no old rows"
    if len(names) < 2:
        why = f"{examples(names)} would be its only class, and the answer for every image"
        remedy = "Give two classes or more."
    elif not (config.iterations or config.init != AddConfig().init or old is not None):
        return
    raise ModelError(f"{model.origin} has no classifier: {why}", remedy=remedy)


def _known_names(
    facts: ModelFacts, names: Sequence[str], *, replacing: bool, more: bool
) -> list[str]:
    """Return the named classes that the model already contains.

    Raises:
        ModelError: If the model contains too few or too many of the names: with `more`, it must
            contain all of them; with `replacing`, at least one, and other classes; otherwise none.
    """
    known = [name for name in names if name in {*facts.class_names}]
    new = [name for name in names if name not in {*known}]
    if more and new:
        raise ModelError(
            f"{len(new):,} of these {len(names):,} classes are new to the model ({examples(new)})",
            remedy="Add new classes separately, without `--more`: `clinit add MODEL IMAGES --out"
            " NEW`.",
        )
    wrong = bool(known) != replacing or (known and len(known) == facts.num_classes)
    if wrong and not more:
        raise ModelError(
            f"{len(known):,} of these {len(names):,} classes are among the {facts.num_classes:,} of"
            f" the model ({examples(known or names)})",
            remedy="To add images to existing classes, use `--more`; to replace some classes of"
            " the model, but not all, `--replace`. Otherwise rename or remove their folders;"
            " `clinit model show MODEL` lists the classes.",
        )
    return known


def _given(left: Model, images: Source, old: Source | None) -> Source:
    """Return the rows of `old`, labelled as in the head; without `old`, return empty row sets.

    Rows that the model remembers as held out are removed from the training rows.

    Raises:
        ModelError: If no class of `old` is a class of the model.
    """
    if old is None:
        nothing = images.train.nothing(left.facts.class_names)
        return Source(nothing, nothing)
    train, held_out = (each.named(left.facts.class_names) for each in (old.train, old.val))
    if not len(train.labels):
        raise ModelError(
            f"no class of {old.path or 'the given features'} ({examples(old.class_names)}) is a"
            " class that the model keeps",
            remedy="Give a cache of the model's own classes, with the class names of the model.",
        )
    if left.memory is not None:
        train = train.without(left.memory.held_out)
    return Source(train, held_out)


def _with_summed(left: Model, summed: Summed, like: FeatureSet) -> Memory:
    names = left.facts.class_names
    places = [*names, *(name for name in summed.class_names if name not in {*names})]
    statistics = summed.named(places).averaging("class", "a model")
    of_all = Memory.of_statistics(statistics, like.nothing(tuple(places)), left.depends_on)
    found = of_all.of_rows(range(len(names)))
    return found if left.memory is None else found.updated(left.memory)


def _memory(left: Model, images: Source, config: AddConfig, given: Source) -> Memory:
    """Return the memory of the new model.

    It joins the old memory, the given rows of classes that the old memory lacks, and the added
    images.
    """
    memory, depends_on = left.memory, left.depends_on

    def of(rows: Source, *, added: bool = False) -> Memory:
        return Memory.of(rows.train, depends_on, held_out=rows.val, keep=config.keep, added=added)

    if memory is None:
        memory = of(given)
    elif len(given.train.labels):
        memory = of(given).updated(memory)
    return memory.joined(of(images, added=True))
