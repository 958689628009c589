"""Check the images of new classes for probable mistakes.

*Known already*: the model has another class of the same name (only letters and digits are compared,
and synonyms of ImageNet count), or it assigns two thirds of the images to another class.

*Misfits*: features are centred and scaled to length 1. The distance of row i from its own class is
its distance from the mean of the other n - 1 rows; squared, (n / (n - 1))^2 |h_i - mu|^2. The row
may not belong to its class if, in squared distance, another new class is nearer by more than
`MARGIN`, or its own class is further than the median of all rows by `FAR` deviations. Classes of
fewer than `LEAST` images are not checked. Rows furthest from their class come first. If another
class has a copy, that class counts as the nearest.

*Look-alikes*: two classes, if the new head confuses their images, or if images of one are nearer to
the other (new) class.

*Repeats*: files of equal content, or two rows whose distance is at most `NEAR` times the distance
of each to its fifth nearest row. Different photographs are hardly ever that near. Rows that only
`clinit.headtrain.heads.repeats` takes for one may be different photographs of a narrow cluster,
such as tents in a class of camp sites: they are *of one series*.

*Turned wrong*: real rows of old classes that the model classifies correctly without the new
classes, but not with them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.extract.cache.features import FeatureSet
from clinit.extract.cache.head import Head, best_rows
from clinit.extract.dataset.names import by_word, in_words, plain, synonyms
from clinit.headtrain.heads.temperature import PROBABILITIES, logits_of
from clinit.words import SHOWN, examples, number_of

KNOWN = 2 / 3
LEAST, MARGIN, FAR = 5, 0.3, 3.0
ALIKE, LEAST_ALIKE = 0.1, 3
"""Least share (of the images of the smaller class) and least number of confused images of two
look-alike classes."""
NEAR, NEIGHBOURS = 0.5, 5
PLACES = ("across classes", "within a class", "in train and val", "or of one series")
UNIT = "squared distance"
MOST_FILES = 12
"""Maximum number of listed images of two classes that look alike, and of repeats across classes."""
MOST_EQUALS = 4
"""Maximum number of names in one line for a set of images that repeat each other."""
MOST_COMPARED = 2**13
"""With more images, earlier ones included, only equal earlier ones are looked for."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AuditedImages:
    """All images of new classes, including held-out images."""

    rows: FeatureSet
    paths: Sequence[str]
    splits: Sequence[str]
    """`train` or `val`, one per row."""
    digests: Sequence[str]
    """SHA-256 of the files."""
    odd: Mapping[str, str]
    """Why images hardly show anything, by path."""
    noun: str = "image"
    """Their name in sentences: `row` of features, or `image`."""

    @classmethod
    def stored(
        cls, rows: FeatureSet, tested: FeatureSet, names: Sequence[str] | None = None, *, noun: str
    ) -> AuditedImages:
        """Return images of which only the features are known; without names, they get numbers."""
        both = FeatureSet.joined([rows, tested], rows.class_names)
        splits = ["train"] * len(rows.labels) + ["val"] * len(tested.labels)
        number, paths = Counter[str](), []
        for label in both.labels:
            number[name := both.class_names[label]] += 1
            paths.append(f"{name} {number[name]}")
        digests = [hashlib.sha256(row.tobytes()).hexdigest() for row in both.features]
        names = names or paths
        return cls(rows=both, paths=names, splits=splits, digests=digests, odd={}, noun=noun)

    def of(self, rows: FeatureSet) -> list[str]:
        """Return the paths of images whose class has their features in `rows`."""
        fresh = self.rows.fresh(rows, in_class=True)
        return [path for path, is_fresh in zip(self.paths, fresh, strict=True) if not is_fresh]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The findings as plain values."""

    images: int = 0
    classes: int = 0
    known: list[dict[str, Any]] = field(default_factory=list)
    """`class`, the `old` class that it equals, and how many `of` its `images` the model assigns to
    `old`; None if only the names are equal."""
    alike: list[dict[str, Any]] = field(default_factory=list)
    """Two `classes`, the number of confused `images`, and some of them as `files`, each with its
    `class`, the `nearest` other one, and the `scores` of both in a `unit`: `UNIT`, or for a class
    of the old model `probability`."""
    repeated: list[dict[str, Any]] = field(default_factory=list)
    """`images` that repeat each other, and `where`: one of `PLACES`. Those of several classes come
    first, one of each class before others; images that the model already has, by their class, and
    how many are `given`; all their `classes`."""
    misfits: list[dict[str, Any]] = field(default_factory=list)
    """`image`, its `class`, the `nearest` other class (None if the image is far from all), and the
    `scores` of its own class and of the nearest one, with the `unit` as above; furthest first."""
    odd: list[dict[str, Any]] = field(default_factory=list)
    """`image` and `why`."""
    turned: dict[str, Any] = field(default_factory=dict)
    """Numbers of old images `right` before, and of these `wrong` now, with counts of `answers`."""
    noun: str = "image"
    """Name of the images in sentences; `row` for features."""

    @property
    def lines(self) -> list[str]:
        """The findings, in a few lines."""
        noun = self.noun
        parts = {
            "classes that may be known already": [
                f"{in_words(each['class'])} has the name of {in_words(each['old'])}"
                if each["images"] is None
                else f"{each['images']:,} of {number_of(each['of'], noun)} given as"
                f" {in_words(each['class'])} taken for {in_words(each['old'])}"
                for each in self.known
            ],
            "pairs of classes that look alike": [
                f"{' and '.join(map(in_words, each['classes']))} ({each['images']:,} {noun}s)"
                for each in self.alike
            ],
            **{
                f"{noun}s {repeats_in_words(place)}": [
                    _equals(each["images"], " and " if place == PLACES[3] else " = ")
                    for each in self.repeated
                    if each["where"] == place
                ]
                for place in PLACES
            },
            f"{noun}s that may not belong to their class, oddest first": [
                f"{each['image']} ({in_words(each['nearest'] or 'like no class')}?)"
                for each in self.misfits
            ],
            "images that hardly show anything": [f"{it['image']} ({it['why']})" for it in self.odd],
        }
        lines = [
            f"{what} ({len(each):,}): {examples(each, SHOWN if PLACES[1] in what else MOST_FILES)}"
            for what, each in parts.items()
            if each
        ]
        if wrong := self.turned.get("wrong"):
            answers = [f"{n:,} as {in_words(name)}" for name, n in self.turned["answers"].items()]
            right = number_of(self.turned["right"], f"correctly classified old {noun}")
            lines.append(f"{wrong:,} of {right} now misclassified: {examples(answers)}")
        return lines

    @property
    def content(self) -> dict[str, Any]:
        """The findings as a mapping."""
        return asdict(self)


def repeats_in_words(place: str) -> str:
    """Return what images are that repeat each other at one of `PLACES`."""
    return "nearly alike, counted as one" if place == PLACES[3] else f"repeated {place}"


def _equals(names: Sequence[str], sign: str) -> str:
    rest = len(names) - MOST_EQUALS
    return sign.join([*names[:MOST_EQUALS], *([f"{rest:,} more"] if rest > 0 else [])])


def audit(
    images: AuditedImages, before: Head, after: Head, old: FeatureSet, earlier: FeatureSet
) -> Audit:
    """Check images of new classes, and the effect of their rows on images of old classes.

    Args:
        images: The new images.
        before: The head before; it has the classes already if they have more images now.
        after: The head with the new classes.
        old: Real rows of old classes; may be empty.
        earlier: Rows of images that the model has learnt or held out, of which none may come again.
    """
    rows, names = images.rows, images.rows.class_names
    own = np.array(names)[rows.labels]
    place, is_nearer, is_far, distances = misfits(rows)
    nearest = np.array(names)[place]
    answers = answered(after, rows.features)
    taken = np.where(np.isin(answers, names), nearest, answers)

    def shown(row: int, other: str) -> dict[str, Any]:
        if other in names:
            scores, unit = distances[row, [rows.labels[row], names.index(other)]], UNIT
        else:
            chances = PROBABILITIES["softmax"](logits_of(after, rows, np.array([row])))[0]
            of = (after.class_names or ()).index
            scores, unit = chances[[of(own[row]), of(other)]], "probability"
        found = {"image": images.paths[row], "class": str(own[row]), "nearest": other}
        return {**found, "unit": unit, "scores": [round(float(each), 3) for each in scores]}

    to_own = distances[np.arange(len(own)), rows.labels]
    repeats, strange = repeated(images, earlier, to_own), []
    classes_of = {path: each["classes"] for each in repeats for path in each["images"]}
    order = np.argsort(-to_own, kind="stable")
    for row in order[(is_nearer | is_far)[order]].tolist():
        those = [name for name in classes_of.get(images.paths[row], ()) if name != own[row]]
        far = [distances[row, names.index(n)] if n in names else np.inf for n in those]
        other = those[int(np.argmin(far))] if those else names[place[row]]
        is_known = those or is_nearer[row]
        strange.append(shown(row, other) | ({} if is_known else {"nearest": None}))
    alike = look_alikes(own, taken)
    for pair in alike:
        both = (own != taken) & np.isin(own, pair["classes"]) & np.isin(taken, pair["classes"])
        some = np.flatnonzero(both)[:MOST_FILES].tolist()
        pair["files"] = [shown(row, str(taken[row])) for row in some]
    return Audit(
        images=len(own),
        classes=len(names),
        known=known_classes(own, before, answered(before, rows.features)),
        alike=alike,
        repeated=repeats,
        misfits=strange,
        odd=[{"image": path, "why": why} for path, why in images.odd.items()],
        turned=turned(old, answered(before, old.features), answered(after, old.features)),
        noun=images.noun,
    )


def answered(head: Head, features: Float[np.ndarray, "rows dim"]) -> np.ndarray:
    """Return the name of the predicted class of each row; empty if the head has no class."""
    if not head.num_classes:
        return np.full(len(features), "")
    return np.asarray(np.array(head.class_names)[best_rows(head, features)])


def known_classes(own: np.ndarray, before: Head, answers: np.ndarray) -> list[dict[str, Any]]:
    """Return the classes that a head contains as others, by name or by its predictions.

    The surest come first.
    """
    row_of = by_word(before.class_names or ())
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(own.tolist()):
        (answer, count), *_ = Counter(answers[own == name].tolist()).most_common(1)
        total = int((own == name).sum())
        answers_so = answer not in ("", name) and count >= max(2, KNOWN * total)
        old = next(filter(None, map(row_of.get, map(plain, synonyms(name)))), name)
        if old == name and answers_so:
            old = answer
        if old != name:
            images = count if answers_so and answer == old else None
            found.append({"class": name, "old": old, "images": images, "of": total})
    return sorted(
        found, key=lambda each: -1 if each["images"] is None else -each["images"] / each["of"]
    )


def misfits(rows: FeatureSet) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return each row's nearest class, whether it clearly is another class, if its own is far.

    These three are (rows,); the last value are the squared distances of the rows from the classes,
    (rows, classes).
    """
    from sklearn.metrics.pairwise import euclidean_distances

    counts, features = rows.counts(), rows.features.astype(np.float64)
    features -= features.mean(axis=0)
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-30)
    means = np.zeros((len(counts), rows.dim))
    np.add.at(means, rows.labels, features)
    n, own = counts[rows.labels], (np.arange(len(features)), rows.labels)
    means /= np.maximum(counts, 1)[:, None]
    distances = euclidean_distances(features, means, squared=True)
    distances[own] *= (n / np.maximum(n - 1, 1)) ** 2
    judged, to_own = n >= LEAST, distances[own]
    nearest = np.where(judged, distances.argmin(axis=1), rows.labels)
    is_nearer = judged & (to_own - distances.min(axis=1) > MARGIN)
    if not judged.any():
        return nearest, is_nearer, judged, distances
    middle = np.median(to_own[judged])
    deviation = 1.4826 * np.median(np.abs(to_own[judged] - middle))
    return nearest, is_nearer, judged & (to_own > middle + FAR * deviation), distances


def look_alikes(own: np.ndarray, answers: np.ndarray) -> list[dict[str, Any]]:
    """Return pairs of classes of which enough images are confused."""
    sizes = Counter(own.tolist())
    wrong = Counter(
        tuple(sorted(pair)) for pair in zip(own, answers, strict=True) if pair[0] != pair[1]
    )
    return [
        {"classes": [*pair], "images": count}
        for pair, count in wrong.most_common()
        if count >= max(LEAST_ALIKE, ALIKE * min(sizes[name] for name in pair if name in sizes))
    ]


def repeated(
    images: AuditedImages, earlier: FeatureSet, to_own: Float[np.ndarray, " rows"]
) -> list[dict[str, Any]]:
    """Return sets of images that repeat each other or earlier ones, and where (`PLACES`).

    Copies in several classes are in the order of `to_own`, their distances from their classes.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    from clinit.headtrain.heads.repeats import groups_of

    rows, first = images.rows, dict[str, int]()
    count = len(rows.labels)
    if count + len(earlier.labels) > MOST_COMPARED:
        earlier = earlier.part(~np.array(earlier.fresh(rows), dtype=bool))
    features = np.concatenate([rows.features[:], earlier.features[:]])
    same = [(first.setdefault(digest, row), row) for row, digest in enumerate(images.digests)]
    same += near_pairs(features)
    near, part = (  # of pairs as int32: older versions of SciPy count no others
        connected_components(coo_array((np.ones(len(pairs)), np.array(pairs, np.int32).T),
                                       (len(features),) * 2))[1]
        for pairs in (same, [*same, *zip(groups_of(rows).tolist(), range(count), strict=True)])
    )  # fmt: skip
    names = np.array([s.class_names[label] for s in (rows, earlier) for label in s.labels], str)
    _, kinds = np.unique(names, return_inverse=True)
    crosses = (np.bincount(np.unique([near, kinds], axis=1)[0]) > 1)[near]
    # Copies in several classes are a set, before all others, which stay within their classes.
    number, found = np.where(crosses, near, len(near) * (1 + part) + kinds), []
    for each in np.unique(number):
        every = np.flatnonzero(number == each)
        of, others = every[every < count], every[every >= count]
        known = {*names[others]} - {*names[of]}
        if not len(of) or len(of) + len(known) == 1:  # nothing repeats it, or only its own class
            continue
        of = of[np.argsort(to_own[of], kind="stable")] if crosses[every[0]] else of
        _, firsts = np.unique(rows.labels[of], return_index=True)
        told = [f"a known {images.noun} of {in_words(name)}" for name in sorted(known)]
        told += [images.paths[row] for row in dict.fromkeys([*of[np.sort(firsts)], *of])]
        splits = {images.splits[row] for row in of}
        where = PLACES[3] if len({*near[of]}) > 1 else PLACES[2 if len(splits) > 1 else 1]
        where = PLACES[0] if crosses[every[0]] else where
        classes = np.unique(names[every]).tolist()
        found.append({"images": told, "classes": classes, "where": where, "given": len(of)})
    return found


def near_pairs(features: Float[np.ndarray, "rows dim"]) -> list[tuple[int, int]]:
    """Return pairs of rows that are equal, or far nearer to each other than to other rows.

    Of equal rows, each is paired with the first only: n equal rows have n^2 / 2 pairs. Of other
    pairs, a row has fewer than `NEIGHBOURS`.
    """
    from sklearn.neighbors import NearestNeighbors

    _, first, place = np.unique(features, axis=0, return_index=True, return_inverse=True)
    same = first[place.reshape(-1)]
    pairs = [(i, j) for j, i in enumerate(same.tolist()) if i < j]
    number = np.sort(first)
    rows = features[number].astype(np.float64)
    k = min(NEIGHBOURS, len(rows) - 1)
    if k < 2:
        return pairs
    rows -= rows.mean(axis=0)  # far from 0, differences of squares cancel
    gaps, others = NearestNeighbors(n_neighbors=k).fit(rows).kneighbors()
    reach = NEAR * gaps[:, -1]
    low, place = np.nonzero(gaps <= np.minimum(reach[:, None], reach[others]))
    near = zip(number[low].tolist(), number[others[low, place]].tolist(), strict=True)
    return sorted([*pairs, *(pair for pair in near if pair[0] < pair[1])])


def turned(old: FeatureSet, before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """Count the old rows that were right before, and of these the rows that are wrong now."""
    own = np.array([old.class_names[label] for label in old.labels], dtype=np.str_)
    right = before == own
    wrong = Counter(after[right & (after != own)].tolist())
    return {"right": int(right.sum()), "wrong": wrong.total(), "answers": dict(wrong.most_common())}
