"""The input of a model: images of classes, or their features.

Features come from a cache, a file of arrays, or memory, and are used as they are; a folder of
images (`clinit.headtrain.model.images`) is computed by the network of the model. Both become
`Arrived`, so that adding and remembering classes need not know which of the two was given.

h5py, Polars and SciPy are imported when they are needed, because one prediction needs none of them.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clinit.errors import CacheError, HeadError, ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import accuracy
from clinit.extract.cache.plan import caches_in
from clinit.extract.dataset.names import by_word, in_words, near_names, plain
from clinit.files.arrays import FEATURES, FORMATS, LABELS, open_arrays, widened
from clinit.files.paths import is_folder
from clinit.headtrain.heads.array import as_array, missing_rows, to_numpy
from clinit.headtrain.heads.groups import in_whole_groups
from clinit.headtrain.heads.seeds import Draw, generator
from clinit.headtrain.model.audit import AuditedImages
from clinit.headtrain.model.facts import Change
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.model import Model, check_name
from clinit.headtrain.model.settings import HELD_OUT, ArrivalKind, RememberConfig
from clinit.observer import Noted, Observer, Warned
from clinit.words import examples, number_of

LEAST_TO_MEASURE = 5
"""Least number of images of a class from which images are held out."""
LARGEST = 1e15
"""Largest absolute value of a feature to learn from."""
MOST_ASKED = 100
"""Maximum number of new names that are compared with names of the model letter by letter."""
LISTED = 20
"""Maximum number of unreadable images that the history of a model lists."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Arrived:
    """Features of classes, with all that a model records of them."""

    train: FeatureSet
    """Rows to learn from."""
    val: FeatureSet
    """Rows held out; may have no row."""
    listed: AuditedImages
    """All of them, as the audit sees them."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    data: Mapping[str, Any] = field(default_factory=dict)
    """Origin of the images and what is wrong with them, for the history."""
    place: str = ""
    """Where features that were computed of images are kept."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class."""
        return self.train.class_names


class Inputs:
    """Images or features of classes, before they are read or computed."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class."""
        raise NotImplementedError

    def arrive(self, model: Model, share: float, observe: Observer) -> Arrived:
        """Return the features; `share` of each class is held out (`held_out`)."""
        raise NotImplementedError


def is_features(given: Any) -> bool:
    """Return whether features are given, not images."""
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        return bool(_cache_at(path)) if is_folder(path) else path.suffix.lower() in FORMATS
    if isinstance(given, FeatureInput | FeatureSet) or hasattr(given, "train"):
        return True
    if _is_pair(given):
        return True
    if isinstance(given, list) and given and not hasattr(given[0], "convert"):
        return np.ndim(given[0]) < 2 and np.asarray(given[0]).dtype.kind in "fiub"
    return getattr(given, "ndim", 0) in (1, 2) or hasattr(given, "to_numpy")


def _is_pair(given: Any) -> bool:
    """Return whether features and their labels are given."""
    if not isinstance(given, list | tuple) or len(given) != 2:
        return False
    dims = tuple(map(np.ndim, given))
    if dims == (1, 1) and np.asarray(given[1]).dtype.kind in "US":
        return True
    return dims == (2, 1) or (isinstance(given, tuple) and (dims[0] in (1, 2) or dims[1] == 1))


def _cache_at(path: Path) -> Path | None:
    """Return the cache that `path` is or is a split of."""
    return next((each for each in caches_in(path) if each in (path, path.parent)), None)


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureInput(Inputs):
    """Features that are given in place of images."""

    path: Path = Path()
    """The cache or the file; empty if they are in memory."""
    splits: Mapping[str, FeatureSet]
    """`train`, `val` or both; without labels, one set of a nameless class."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    names: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """By split, a name of each row, if they have names."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Digests of their manifests."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class with rows."""
        first = next(iter(self.splits.values()))
        return tuple(first.class_names[label] for label in np.unique(first.labels))

    @cached_property
    def features(self) -> Any:
        """All rows."""
        first, *others = (each.features for each in self.splits.values())
        return np.concatenate([first[:], *(each[:] for each in others)]) if others else first

    @property
    def told(self) -> str:
        """The features in words, for messages."""
        return str(self.path) if self.path.name else "the given features"

    def row_names(self, split: str) -> list[str]:
        """Return a name for each row of a split: its number, from 0, if it has no other."""
        numbers, of = range(len(self.splits[split].labels)), f"{split} " * (len(self.splits) > 1)
        return [*self.names.get(split, [f"{of}row {n}" for n in numbers])]

    def need_labels(self) -> None:
        """Check that the classes of the rows are known.

        Raises:
            CacheError: If they are not.
        """
        if self.class_names == ("",):
            raise CacheError(
                f"{self.told} has no labels: the classes of its rows are unknown",
                remedy="Give a file with one label per row, `--labels FILE`; or name the array of"
                " labels in it `labels`.",
            )

    def check(self, model: Model) -> None:
        """Check the width and, if both are known, the backbone of the features.

        Raises:
            HeadError: If the features have another width than the head reads.
            ModelError: If another network computed them.
        """
        dim, shapes = model.head.dim, [tuple(each.features.shape) for each in self.splits.values()]
        if shape := next((each for each in shapes if each[1:] != (dim,)), None):
            raise HeadError(
                f"{self.told}: shape {shape}, the head reads (rows, {dim})",
                remedy="Give features of the backbone that the head was trained on.",
            )
        if differing := differences(model, self.fingerprint):
            raise ModelError(
                f"the features in {self.told} do not come from the network of {model.origin}: they"
                f" differ in {differing}",
                remedy="Give features of this network, or images: `clinit remember`."
                if model.engine is not None
                else "Give features of the backbone that the head was trained on.",
            )

    def arrive(self, model: Model, share: float, observe: Observer) -> Arrived:
        """Return the rows that are finite; see `Inputs.arrive`."""
        self.check(model)
        self.need_labels()
        if "train" not in self.splits:
            raise CacheError(
                f"{self.told} contains rows to test, but none to learn from",
                remedy="Give a cache with the split train.",
            )
        train, data = self.splits["train"], dict(self.data)
        ask_names(train.class_names, model, self.told, observe)
        finite = {n: self.finite(each.features[:]) for n, each in self.splits.items()}
        learnt = np.unique(train.labels[finite["train"]])
        given = tuple(train.class_names[label] for label in learnt)
        if lost := [name for name in train.class_names if name not in given]:
            told = f"{number_of(len(lost), 'class')} without a row left out: {examples(lost)}"
            observe(Warned(told))
            data["lost"] = lost
        parts, names, bad = [train.nothing(given)] * 2, list[str](), list[str]()
        for place, (split, good) in enumerate(finite.items()):
            rows, called = self.splits[split], self.row_names(split)
            bad += [name for name, is_good in zip(called, good, strict=True) if not is_good]
            kept = good & np.isin(rows.labels, learnt)
            names += [name for name, is_kept in zip(called, kept, strict=True) if is_kept]
            part = rows if kept.all() else rows.part(kept)
            features = np.asarray(part.features[:])
            if features.dtype not in (np.float16, np.float32):  # as a memory stores them
                features = features.astype(np.float32)
            parts[place] = replace(part, features=features).named(given)
        if bad:
            told = f"{number_of(len(bad), 'row')} not finite: left out ({examples(bad)})"
            observe(Warned(told))
            first = [{"image": each, "error": "not finite"} for each in bad[:LISTED]]
            data["unreadable"] = {"count": len(bad), "first": first}
        if not given:
            raise CacheError(f"{self.told} contains no finite row", remedy="Give other features.")
        listed = AuditedImages.stored(parts[0], parts[1], names, noun="row")
        train, val = held_out(parts[0], parts[1], share)
        data = {"model": model.origin, "features": self.told, **data}
        return Arrived(train=train, val=val, listed=listed, fingerprint=self.fingerprint, data=data)

    def finite(self, features: Any) -> np.ndarray:
        """Return which rows are finite; refuse features whose squares overflow."""
        finite = np.isfinite(features)
        if (most := float(np.abs(features).max(where=finite, initial=0))) > LARGEST:
            raise CacheError(
                f"{self.told}: features up to {most:.0e}; sums of their squares exceed float32"
                f" above {LARGEST:.0e}",
                remedy="Scale all features, also those that the head was trained on.",
            )
        return np.asarray(finite.all(axis=1))


def ask_names(names: Sequence[str], model: Model, told: str, observe: Observer) -> None:
    """Ask about names that no class of the model has, but nearly."""
    if near := near_names(names, model.class_names, told, "the model"):
        observe(Warned(near))
    if similar := similar_names(names, model):
        observe(Noted(similar))


def similar_names(names: Sequence[str], model: Model) -> str:
    """Return questions about names that may be misspelt; empty if there are none."""
    known = by_word(model.class_names)
    task_of = dict(zip(model.class_names, model.facts.tasks, strict=True))
    new, asked, pairs = [n for n in names if plain(n) not in known], list[str](), list[str]()
    for name in new[:MOST_ASKED]:
        found = get_close_matches(plain(name), known, n=1, cutoff=0.88)
        if found and _letters(found[0]) != _letters(plain(name)):  # `row 1` is not `row 2`
            old = known[found[0]]
            asked.append(f"{name}: is it {in_words(old)}?")
            pairs += [shlex.quote(f"{old}={name}")] if task_of.get(old) else []
        known[plain(name)] = name  # the next folder may be this one, misspelt
    or_class = (
        f"; if the class is the misspelt one: `clinit rename MODEL {pairs[0]}`" if pairs else ""
    )
    return f"{examples(asked)} If so, rename or join the folders{or_class}" if asked else ""


def _letters(name: str) -> str:
    return "".join(each for each in name if not each.isdecimal())


def differences(model: Model, found: Fingerprint) -> str:
    """Return in which facts features differ from a model's; empty if in none known.

    They may come from its network, or from the network that its base head was trained on.
    """
    if not found.fields:
        return ""
    own = [model.facts.fingerprint] if model.facts.fingerprint.fields else []
    own += [model.engine.fingerprint(found.dtype or "float16")] if model.engine is not None else []
    free = ("dtype",) if model.engine is not None else ("dtype", "timm")
    every = [found.without_rows.differences(one.without_rows) for one in own]
    differing = [[str(each) for each in some if each.name not in free] for some in every]
    if differing:
        return "" if not all(differing) else ", ".join(differing[0])
    kinds = [Fingerprint({**found.fields, "dtype": kind}) for kind in ("float16", "float32")]
    fits = any(each.fits(model.head.fingerprint) for each in (found, *kinds))
    return "" if fits else f"their backbone, {found.backbone or 'unknown'}"


def features_in(given: Any, labels: Any = None) -> FeatureInput:
    """Read features from a cache, a file of arrays, or memory.

    Args:
        given: See `Model.add`.
        labels: For an array file or an array: a file of labels, or the labels.

    Raises:
        ClinitError: If there are no such features.
    """
    if isinstance(given, FeatureInput):
        return given
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        return _of_cache(path) if is_folder(path) else _of_file(path, labels)
    if isinstance(given, FeatureSet):
        return FeatureInput(splits={"train": given})
    if hasattr(given, "train"):  # a `Source`, or any other pair of splits
        splits = {"train": given.train} | ({"val": given.val} if len(given.val.labels) else {})
        path = Path(getattr(given, "path", ""))
        fingerprint = getattr(given, "fingerprint", Fingerprint())
        if fingerprint.backbone == "arrays":  # `clinit.Features` without a name
            fingerprint = Fingerprint()
        return FeatureInput(path=path, splits=splits, fingerprint=fingerprint)
    if _is_pair(given):
        given, labels = given
    return FeatureInput(splits={"train": _labelled(given, labels, "the array of labels")})


def _labelled(given: Any, labels: Any, origin: str, names: Any = None) -> FeatureSet:
    rows = to_numpy(as_array(given))
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        raise CacheError(
            f"the features: {rows.dtype} {rows.shape}, expected numbers (rows, dim)",
            remedy="Give an array of numbers with one row per image.",
        )
    if not len(rows):
        raise CacheError("the features have no row", remedy="Give one row per image.")
    if labels is None:
        return FeatureSet(rows, np.zeros(len(rows), np.int64), ("",))
    found = to_numpy(as_array(labels))
    if missing := missing_rows(labels, found):
        raise CacheError(
            f"{origin}: no label in {number_of(len(missing), 'row')} (row {examples(missing)})",
            remedy="Give these rows a label, or leave them out.",
        )
    if names is None and found.ndim == 1 and found.dtype.kind in "iu" and (found >= 0).all():
        kinds, found = np.unique(found, return_inverse=True)  # a few rows can have any number
        names = tuple(map(str, kinds))
    told = found.tolist() if found.dtype.kind in "UO" else found
    from clinit.extract.work.import_features import number_labels

    return FeatureSet(rows, *number_labels(told, len(rows), names, origin))


def _of_cache(path: Path) -> FeatureInput:
    place = _cache_at(path)
    if place is None:
        raise CacheError(f"no feature cache at {path}", remedy="Give one of `clinit extract`.")
    from clinit.extract.cache.read import open_cache

    cache = open_cache(place)
    splits = {n: each for n, each in cache.splits.items() if place == path or n == path.name}
    first = next(iter(splits.values()))
    return FeatureInput(
        path=path,
        splits={name: each.load() for name, each in splits.items()},
        fingerprint=first.fingerprint,
        names={
            name: each.manifest.table["path"].to_numpy()[each.valid]
            for name, each in splits.items()
        },
        data={f"{name}_manifest": each.fingerprint.manifest for name, each in splits.items()},
    )


def _of_file(path: Path, labels: Any) -> FeatureInput:
    file = open_arrays(path)
    stored = file.features(
        file.find(None, (*FEATURES, "x", "X"), "clinit cache import --features-name")
    )
    rows = np.asarray(widened(stored))
    place, names, origin = path if labels is None else labels, None, "the array of labels"
    if isinstance(place, str | os.PathLike):
        target = file if labels is None else open_arrays(Path(place))
        known, every = target.names(), (*LABELS, "y")
        if labels is not None or (known is not None and {*every}.intersection(known)):
            labels = target.labels(target.find(None, every, "clinit cache import --labels-name"))
            names, origin = target.class_names(), f"the array of labels in {place}"
            if names is None and "class_names" in (known or ()):
                names = tuple(map(str, target.labels("class_names")))
    return FeatureInput(path=path, splits={"train": _labelled(rows, labels, origin, names)})


def held_out(train: FeatureSet, val: FeatureSet, share: float) -> tuple[FeatureSet, FeatureSet]:
    """Hold images out: the split `val` if it exists, else a share of each class.

    At least one image of each class of five or more is held out, and none of smaller classes. The
    choice depends only on the name of the class and on the number and order of its images, neither
    on a seed nor on other classes: a folder always gives the same held-out images. Images that
    repeat each other count as one, and stay together.

    Args:
        train: Features to learn from.
        val: Features that are held out already; may be empty.
        share: Share of the images of a class, in [0, 1).
    """
    if len(val.labels) or not share or not len(train.labels):
        return train, val

    def choose(firsts: np.ndarray) -> np.ndarray:
        chosen = [firsts[:0]]
        for label, name in enumerate(train.class_names):
            of_class = firsts[train.labels[firsts] == label]
            digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
            random = generator(0, Draw.ASIDE, int.from_bytes(digest[:4]))
            if len(of_class) >= LEAST_TO_MEASURE:
                shuffled = random.permutation(of_class)
                chosen.append(shuffled[: max(1, round(share * len(of_class)))])
        return np.concatenate(chosen)

    from clinit.headtrain.heads.repeats import groups_of

    aside = in_whole_groups(groups_of(train), choose)
    return train.taken(np.flatnonzero(~aside)), train.taken(np.flatnonzero(aside))


def remember(model: Model, inputs: Inputs, config: RememberConfig, observe: Observer) -> Model:
    """Return the model with a memory of images of its classes.

    The memory of other classes stays. The shared covariance becomes the average of two covariances,
    of the given images and of the other classes, weighted by their numbers of classes.

    Args:
        model: The model; it is not changed.
        inputs: The images.
        config: Settings of the memory.
        observe: Called with each event of the work.

    Raises:
        ModelError: If the model has no class with the name of a given class.
        ClinitError: If the images or features cannot be used.
    """
    check_names(model, inputs.class_names, "remember")
    row_of = {name: row for row, name in enumerate(model.class_names)}
    share = HELD_OUT if config.hold_out is None else config.hold_out
    arrived, learnt, notes = _with_learnt(model, inputs.arrive(model, share, observe))
    none, classes = np.count_nonzero(arrived.val.counts() == 0), len(arrived.class_names)
    if config.hold_out is not None and "val" in arrived.listed.splits:
        notes.append(f"--hold-out {share:g} has no effect: val is held out")
    elif config.hold_out and none:
        notes.append(
            f"--hold-out {share:g}: no image of {none:,} of {number_of(classes, 'class')} is held"
            f" out; it takes {LEAST_TO_MEASURE} images of a class, or a folder val"
        )
    for note in notes:
        observe(Noted(note))
    model = model.knowing(arrived.fingerprint)
    train, aside = (each.named(model.class_names) for each in (arrived.train, arrived.val))
    memory = Memory.of(train, model.depends_on, held_out=aside)
    if model.memory is not None:
        known, learnt = model.memory.left_out, learnt.named(model.class_names)
        memory = replace(memory, learnt=learnt, left_out=known)
        others = model.memory.held_out.without(aside)
        if np.array_equal(train.counts(), learnt.counts()):
            # No statistics change, and their covariance stays exact.
            both = FeatureSet.joined([others, aside], model.class_names)
            memory = replace(model.memory, held_out=both)
        else:
            memory = model.memory.updated(memory)
    counts = train.counts()
    named = sorted(arrived.class_names, key=row_of.__getitem__)
    change = Change.now(
        "remember",
        named,
        images={name: int(counts[row_of[name]]) for name in named},
        data={**arrived.data, **({"notes": notes} if notes else {})},
        settings=asdict(config),
        accuracy={"old": accuracy(model.head, aside)},
    )
    return replace(model, memory=memory).after(change)


def check_names(model: Model, names: Sequence[str], kind: ArrivalKind) -> None:
    """Check that the model has none of the named classes, if they are added, or else all of them.

    Raises:
        ModelError: If it has too many or too few.
    """
    old = {*model.class_names}
    known, new = ([name for name in names if (name in old) is there] for there in (True, False))
    of = f"of {number_of(len(names), 'class')}"
    if kind != "add" and new:
        near = near_names(new, model.class_names, "the folder", "the model")
        near = near or similar_names(new, model)
        raise ModelError(
            f"new to the model: {len(new):,} {of} ({examples(new)})"
            + (f"; {near}" if near else ""),
            remedy="Name folders as the classes (`clinit model show MODEL` lists them). New classes"
            f" take `clinit add`{', without `--more`' if kind == 'more' else ''}.",
        )
    for name in names if kind == "add" and tuple(names) != ("",) else ():  # no labels
        check_name(name)
    if kind == "add" and known:
        raise ModelError(
            f"already classes of the model: {len(known):,} {of} ({examples(known)})"
            + (f"; new: {examples(new)}" if new else ""),
            remedy="With `--more`, these become more images of the known classes"
            + (" (without the folders of new ones)" if new else "")
            + ". If they are other classes, give their folders other names.",
        )


def _with_learnt(model: Model, arrived: Arrived) -> tuple[Arrived, FeatureSet, list[str]]:
    """Take the stored rows of classes that the model learnt, and hold out their other images.

    Returns:
        What arrived, so changed; the learnt rows of its classes; a note on how many of its images
        are stored already.
    """
    names, nothing = arrived.class_names, arrived.train.nothing()
    stored = [] if model.memory is None else [model.memory.learnt, model.memory.held_out]
    learnt, aside = (each.named(names) for each in stored) if stored else (nothing, nothing)
    is_learnt = learnt.counts() > 0
    train, val = (each.part(~is_learnt[each.labels]) for each in (arrived.train, arrived.val))
    every = FeatureSet.joined([arrived.train, arrived.val], names)
    aside = aside.part(is_learnt[aside.labels])
    fresh = every.without(FeatureSet.joined([learnt, aside], names))
    fresh = fresh.part(is_learnt[fresh.labels])
    known = int(is_learnt[every.labels].sum()) - len(fresh.labels)
    of = number_of(len(every.labels), arrived.listed.noun)
    note = f"{known:,} of {of} known already: learnt or held out as before; they add no test"
    changed = replace(
        arrived,
        train=FeatureSet.joined([train, learnt], names),
        val=FeatureSet.joined([val, aside, fresh], names),
    )
    return changed, learnt, [note] if known else []
