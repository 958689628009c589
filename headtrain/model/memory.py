"""A model's memory of the images of its classes: statistics, and some of the features.

The statistics of a class c are its number of images n_c and their mean feature mu_c; all classes
share one covariance, the average over classes of the covariance of each around its own mean:

    Sigma = (1 / C) sum_c (1 / n_c) sum_{i in c} (h_i - mu_c)(h_i - mu_c)^T.

With class-balanced averages (`clinit.headtrain.heads.statistics.class_statistics`) the least-square
head, LDA, class means and D_LS are functions of these numbers alone. Held-out features come from
images that no row was computed from: accuracies and the threshold of `clinit predict --reject` are
measured on them. Learnt features are all training features of an added class; the classifier row of
the class can be solved again from them (`clinit.headtrain.model.again`), for which the shared
covariance would not suffice. Some of them are left-out features, too: with what their margin owes
to them, they test the rows of their class as held-out features do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
from jaxtyping import Bool, Float, Int
from msgspec import Meta
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clinit.errors import ModelError
from clinit.extract.cache.features import FeatureSet
from clinit.files.documents import Count, DocumentKind
from clinit.files.paths import check_readable
from clinit.headtrain.heads.repeats import joined
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.words import number_of


@dataclass(frozen=True, slots=True)
class Array:
    """Requirements on an array of a file; numbers are finite, and integers are not negative.

    It is checked when the file is read, like the type of a field of a document.
    """

    dtypes: tuple[str, ...]
    axes: tuple[str, ...]
    """Names of the axes; axes of equal names have equal lengths in all arrays of a file. `classes`
    is the number of class names in the description."""
    below: str | None = None
    """The axis whose length is above all numbers."""
    optional: bool = False

    def problem(self, array: np.ndarray | None, sizes: dict[str, int]) -> str | None:
        """Return why an array is not as declared; add the lengths of its axes to `sizes`."""
        if array is None:
            return None if self.optional else "is missing"
        found = f"is {array.dtype} {array.shape}"
        if array.dtype.name not in self.dtypes:
            return f"{found}, expected {' or '.join(self.dtypes)}"
        if array.ndim == len(self.axes):
            for axis, length in zip(self.axes, array.shape, strict=True):
                sizes.setdefault(axis, length)
                sizes.setdefault(f"{axis}_and_1", length + 1)
        expected = tuple(sizes.get(axis) for axis in self.axes)
        if array.shape != expected:
            return f"{found}, expected {tuple(zip(self.axes, expected, strict=True))}"
        if array.dtype.kind == "f":
            return None if np.isfinite(array).all() else "contains numbers that are not finite"
        most = sizes[self.below] if self.below else np.inf
        if not array.size or (array.min() >= 0 and array.max() < most):
            return None
        return f"contains {array.min()} to {array.max()}, expected numbers from 0 to below {most}"


ARRAYS = {
    "counts": Array(("int64",), ("classes",)),
    "means": Array(("float32",), ("classes", "dim")),
    "covariance": Array(("float32",), ("dim", "dim")),
}
"""Fields that are stored as tensors."""
ROWS = ("held_out", "learnt", "left_out")
"""Fields that are stored as features and labels."""


class Facts(TypedDict):
    """Fields that are stored in the description of the file, under `METADATA`."""

    class_names: tuple[str, ...]
    averaged: Count
    freedom: Annotated[float, Meta(ge=-1, le=1)]
    exact: bool
    backbone: dict[str, str]


STORED = ARRAYS | {
    f"{rows}{part}": Array(dtypes, (rows, *axes), below)
    for rows in ROWS
    for part, dtypes, axes, below in (
        ("", ("float16", "float32"), ("dim_and_1" if rows == "left_out" else "dim",), None),
        ("_labels", ("int64",), (), "classes"),
    )
}
STORED["learnt_groups"] = Array(("int64",), ("learnt",), optional=True)
"""All arrays of the file."""
MOST_LEARNT = 500
"""If an added class has more training rows than this, only its statistics are remembered."""
MOST_LEFT_OUT = 50
"""Maximum number of left-out rows of an added class."""
ROUNDING = 1e-9
"""Differences of `freedom` below this are rounding errors: two images of one class are 1 / 2 C."""
METADATA = "clinit_memory"
"""Key of the description in the metadata of the file. The description is a sealed JSON document
with the digest of the arrays. It is stored under a single key, because safetensors writes several
keys in a random order, and files of equal content should be equal."""
DOCUMENT = DocumentKind(
    title="the description of what a model remembers",
    format="clinit-memory/1",
    error=ModelError,
    remedy="Remember the classes anew: `clinit remember MODEL IMAGES --out NEW`.",
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Memory:
    """Class statistics of a model, in float32, and features of some images of its classes."""

    class_names: tuple[str, ...]
    """One per row of the classifier."""
    counts: Int[np.ndarray, " classes"]
    """n_c; 0 if the class is not remembered."""
    means: Float[np.ndarray, "classes dim"]
    """mu_c; zero if the class is not remembered."""
    covariance: Float[np.ndarray, "dim dim"]
    """Sigma."""
    averaged: int
    """C, the weight of Sigma when it is averaged with another covariance; it counts removed classes
    that Sigma still includes, so that others can be subtracted from it."""
    freedom: float
    """The average of 1 - 1 / n_c over these classes. The expectation of Sigma is the covariance of
    their populations times this factor."""
    exact: bool
    """Whether Sigma and the means come from the same images; false once classes were removed."""
    held_out: FeatureSet
    """Features of images that no row of the head was computed from, in the dtype of the cache."""
    learnt: FeatureSet
    """All training rows of each added class with at most `MOST_LEARNT` rows, in the same dtype."""
    left_out: FeatureSet
    """Training features of added classes with one more column: by how much their rows, computed
    without the image, have a smaller margin for it (own logit less the largest other one)."""
    backbone: Mapping[str, str]
    """Facts that the features depend on: `body` (SHA-256 of the network without its classifier),
    `transform`, `autocast`."""

    @classmethod
    def of(
        cls,
        rows: FeatureSet,
        backbone: Mapping[str, str],
        *,
        held_out: FeatureSet | None = None,
        left_out: FeatureSet | None = None,
        added: bool = False,
    ) -> Memory:
        """Return the memory of training rows.

        Args:
            rows: Features of training images, with a name per row of the classifier.
            backbone: Facts that the features depend on.
            held_out: Features of other images of the same classes.
            left_out: Features of training images with what their margins owe to them.
            added: Keep all features of these classes, so that their rows can be solved again.
        """
        count = len(rows.class_names)
        statistics = ClassStatistics.of(rows.features, rows.labels, num_classes=count)
        learnt = np.flatnonzero((rows.counts() <= MOST_LEARNT)[rows.labels] & added)
        return cls(
            class_names=rows.class_names,
            counts=statistics.totals,
            means=statistics.class_means.astype(np.float32),
            covariance=statistics.within_covariance.astype(np.float32),
            averaged=int((statistics.totals > 0).sum()),
            exact=True,
            freedom=statistics.freedom,
            held_out=rows.nothing() if held_out is None else held_out,
            learnt=rows.taken(learnt),
            left_out=owing_nothing(rows.nothing()) if left_out is None else left_out,
            backbone=dict(backbone),
        )

    @property
    def dim(self) -> int:
        """Width of a feature."""
        return len(self.covariance)

    @property
    def known(self) -> Bool[np.ndarray, " classes"]:
        """Whether each class is remembered."""
        return self.counts > 0

    def describe(self, noun: str = "image") -> str:
        """Return the contents, in words, with `noun` for what the model classifies."""
        count = len(self.learnt.labels)
        learnt = f" and of {number_of(count, f'training {noun}')} of added classes" if count else ""
        also = "" if self.exact else " (including removed classes)"
        held_out = number_of(len(self.held_out.labels), f"held-out {noun}")
        return (
            f"The model stores the means of {number_of(int(self.known.sum()), 'class')}, their"
            f" covariance{also}, features of {held_out}{learnt}: {self.num_bytes / 1e6:,.1f} MB"
        )

    @property
    def num_bytes(self) -> int:
        """Size of the tensors in the file."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all arrays by name, as they are stored."""
        plain = {name: getattr(self, name) for name in ARRAYS}
        for name in ROWS:
            rows: FeatureSet = getattr(self, name)
            half = rows.features.dtype == np.float16
            features = rows.features if half else rows.features.astype(np.float32)
            plain |= {name: features, f"{name}_labels": rows.labels}
        if self.learnt.groups is not None:
            plain["learnt_groups"] = np.unique(self.learnt.groups, return_inverse=True)[1]
        return plain

    @property
    def population_covariance(self) -> Float[np.ndarray, "dim dim"]:
        """Return Sigma without the bias of small classes, in float64: Sigma / `freedom`."""
        covariance = self.covariance.astype(np.float64)
        return covariance / self.freedom if self.freedom > 0 else covariance

    def joined(self, new: Memory) -> Memory:
        """Return a joint memory, in which the classes of `new` follow the classes of this memory.

        Raises:
            ModelError: If the two remember features of different backbones.
        """
        check_backbone(self.backbone, new.backbone)
        names = (*self.class_names, *new.class_names)
        averaged = self.averaged + new.averaged
        shares = np.array([self.averaged, new.averaged]) / max(1, averaged)
        covariance = shares[0] * self.covariance + shares[1] * new.covariance
        places = len(self.class_names) + np.arange(len(new.class_names))

        def both(one: FeatureSet, other: FeatureSet) -> Any:
            return joined([one, other.renumbered(places, names)], names)

        return replace(
            self,
            class_names=names,
            counts=np.concatenate([self.counts, new.counts]),
            means=np.concatenate([self.means, new.means]),
            covariance=np.asarray(covariance, dtype=np.float32),
            averaged=averaged,
            freedom=float(shares @ [self.freedom, new.freedom]),
            exact=self.exact and new.exact,
            **{name: both(getattr(self, name), getattr(new, name)) for name in ROWS},
        )

    def of_rows(self, rows: Sequence[int] | Int[np.ndarray, " left"]) -> Memory:
        """Return the memory of the classes `rows`, in this order.

        Sigma is shared and stays the same, and so does its weight, unless no class remains in it.
        """
        picked = np.asarray(rows, dtype=np.int64)
        names = tuple(self.class_names[row] for row in rows)
        left = int(self.known[picked].sum())
        place = np.full(len(self.class_names), -1)
        place[picked] = np.arange(len(picked))
        return replace(
            self,
            class_names=names,
            counts=self.counts[picked],
            means=self.means[picked],
            averaged=self.averaged if left else 0,
            exact=not left or (self.exact and left == int(self.known.sum())),
            **{name: getattr(self, name).renumbered(place, names) for name in ROWS},
        )

    def before(self, came: FeatureSet) -> Memory:
        """Return the memory before classes were added, by undoing `joined` in float64.

        Args:
            came: All training rows of these classes.
        """
        gone = np.isin(self.class_names, came.class_names)
        left, known = self.of_rows(np.flatnonzero(~gone)), np.flatnonzero(gone & self.known)
        if not left.averaged:
            return left
        new = Memory.of(came.named(tuple(self.class_names[row] for row in known)), self.backbone)
        weights = np.array([self.averaged, -new.averaged]) / (self.averaged - new.averaged)
        covariance = weights[0] * self.covariance.astype(np.float64) + weights[1] * new.covariance
        freedom = float(weights @ [self.freedom, new.freedom])
        if freedom < ROUNDING:  # a single image of each class left
            covariance, freedom = np.zeros_like(covariance), 0.0
        return replace(
            left,
            covariance=covariance.astype(np.float32),
            averaged=self.averaged - new.averaged,
            freedom=freedom,
            exact=self.exact,
        )

    def without(self, names: Collection[str]) -> Memory:
        """Return the memory without classes. Sigma loses those whose training rows are stored.

        Otherwise, rows of classes that are removed and added again would be judged by a covariance
        that has seen their images. If the rows of all classes left are stored, Sigma is theirs.
        """
        stored = self.learnt.counts()
        whole = [
            name
            for row, name in enumerate(self.class_names)
            if name in names and 0 < self.counts[row] == stored[row]
        ]
        left = self.before(self.learnt.named(tuple(whole))) if whole else self
        left = left.of_rows([row for row, n in enumerate(left.class_names) if n not in names])
        if left.exact or not np.array_equal(left.counts, left.learnt.counts()):
            return left
        anew = Memory.of(left.learnt, self.backbone)
        facts = ("covariance", "averaged", "freedom", "exact")
        return replace(left, **{name: getattr(anew, name) for name in facts})

    def updated(self, fresh: Memory) -> Memory:
        """Return this memory, with the facts of `fresh` for all classes that `fresh` remembers.

        The two memories must have equal class names.
        """
        given, others = np.flatnonzero(fresh.known), np.flatnonzero(~fresh.known)
        both = self.without({self.class_names[row] for row in given})
        both = both.joined(fresh.of_rows(given.tolist()))
        return both.of_rows(np.argsort(np.concatenate([others, given])).tolist())

    def renamed(self, class_names: tuple[str, ...]) -> Memory:
        """Return the same memory with other class names."""
        rows = {name: replace(getattr(self, name), class_names=class_names) for name in ROWS}
        return replace(self, class_names=class_names, **rows)


def owing_nothing(rows: FeatureSet) -> FeatureSet:
    """Return rows with one more column of zeros: their margins owe nothing to them."""
    zeros = np.zeros((len(rows.labels), 1), dtype=rows.features.dtype)
    return replace(rows, features=np.concatenate([rows.features[:], zeros], axis=1))


def check_backbone(one: Mapping[str, str], other: Mapping[str, str]) -> None:
    """Check that two sets of features come from one network and one transform.

    Nothing is known of the features of a head of another program: no fact, no refusal.

    Raises:
        ModelError: If they do not; the message lists the differences.
    """
    differing = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    if one and other and differing:
        raise DOCUMENT.refusal(
            "the memory of the model belongs to another backbone: it differs in"
            f" {', '.join(sorted(differing))}"
        )


def memory_bytes(memory: Memory) -> bytes:
    """Return the content of the file of a memory."""
    facts = {name: getattr(memory, name) for name in Facts.__annotations__}
    plain = {name: np.ascontiguousarray(array) for name, array in memory.tensors().items()}
    text = DOCUMENT.text({**facts, "tensors": digest(plain)}, indent=None)
    return save(plain, metadata={METADATA: text})


def read_memory(path: Path) -> Memory:
    """Read the memory of a model.

    Raises:
        StorageError: If the file is missing or may not be read.
        ModelError: If the file is of another kind, or damaged.
    """
    check_readable(path, DOCUMENT.error)
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(METADATA)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise DOCUMENT.refusal(f"{path} is not a safetensors file: {error}") from error
    if text is None:
        raise DOCUMENT.refusal(f"{path} contains no description, so clinit has not written it")
    origin = f"the description in {path}"
    stored = DOCUMENT.parse(text, origin=origin)
    if stored.pop("tensors", None) != digest(tensors):
        raise DOCUMENT.refusal(f"{path} has changed since it was written")
    facts = DOCUMENT.convert(stored, Facts, origin=origin)
    sizes = {"classes": len(facts["class_names"])}
    problems = {name: each.problem(tensors.get(name), sizes) for name, each in STORED.items()}
    problems |= {name: "is unknown" for name in tensors if name not in STORED}
    if why := next((f"{name} {why}" for name, why in problems.items() if why), None):
        raise DOCUMENT.refusal(f"{path} is damaged: its array {why}")
    fields: dict[str, Any] = {**facts, **{name: tensors[name] for name in ARRAYS}}
    for name in ROWS:
        labels, names = tensors[f"{name}_labels"], facts["class_names"]
        fields[name] = FeatureSet(tensors[name], labels, names, tensors.get(f"{name}_groups"))
    return Memory(**fields)


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of arrays."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        found.update(np.ascontiguousarray(tensor).data)
    return found.hexdigest()
