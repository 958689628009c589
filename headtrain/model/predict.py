"""Classify images with a model, and rows of features with its head alone.

The same code as in the extraction of the training features decodes, resizes and normalises images.
Logits are computed by the engine: PyTorch, in the arithmetic of that extraction, or onnxruntime,
after Pillow. PyTorch is imported only for the first.

Probabilities are the softmax of the logits, or a sigmoid of each if the classes exclude nothing.
An image that belongs to no class has a low score. With the logits z of the head as it was trained,
`energy` is the negative free energy, log sum_k exp z_k; `max-logit` is max_k z_k; `probability` is
the largest probability. The threshold rejects a given share of held-out images of known classes.

Sources: W. Liu, X. Wang, J. Owens, Y. Li, "Energy-based Out-of-distribution Detection", NeurIPS
2020. D. Hendrycks, S. Basart, M. Mazeika and others, "Scaling Out-of-Distribution Detection for
Real-World Settings", ICML 2022. D. Hendrycks, K. Gimpel, "A Baseline for Detecting Misclassified
and Out-of-Distribution Examples in Neural Networks", ICLR 2017.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from clinit.errors import ImageError, ModelError
from clinit.extract.dataset import tree
from clinit.extract.dataset.decode import MISSING
from clinit.extract.dataset.names import title
from clinit.files.arrays import FORMATS
from clinit.files.paths import instead_of
from clinit.headtrain.heads.temperature import PROBABILITIES, Activation
from clinit.headtrain.model.engine import AnsweredBatch, AnyPath, Logits
from clinit.headtrain.model.facts import ModelFacts
from clinit.headtrain.model.inputs import FeatureInput, features_in, is_features
from clinit.headtrain.model.model import Model
from clinit.headtrain.model.reading import AS_USUAL, Reading
from clinit.words import printable

RULES = ("energy", "max-logit", "probability")


def scores(rule: str, logits: Logits, activation: Activation) -> Float[np.ndarray, " images"]:
    """Return the score of each image by one of `RULES`, from logits as they were trained."""
    if rule == "energy":
        from scipy.special import logsumexp

        return np.asarray(logsumexp(logits, axis=1))
    values = PROBABILITIES[activation](logits) if rule == "probability" else logits
    return np.asarray(values.max(axis=1))


@dataclass(frozen=True, slots=True)
class Rejection:
    """Rule that an image belongs to no class if its score is below a threshold."""

    rule: str
    """One of `RULES`."""
    threshold: float

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, got {self.threshold}")

    @classmethod
    def at_rate(cls, model: Model, rule: str = "auto", rate: float = 0.05) -> Rejection:
        """Return the rule that rejects at most a share of held-out or left-out images.

        Args:
            model: The model; its recorded scores of images, else the images that it holds out.
            rule: One of `RULES`, or `auto`: `default_rule`.
            rate: The share, in [0, 1).

        Raises:
            ModelError: If no image was held out, or the head is unknown.
        """
        if not 0 <= rate < 1:
            raise ValueError(f"rate must lie in [0, 1), got {rate}")
        known, memory, activation = model.facts.known, model.memory, model.facts.activation
        if rule == "auto":
            rule = default_rule(model.facts)
        cls(rule, 0.0)  # refuses other words
        if known is not None:
            return cls(rule, known.levels[rule][math.floor(100 * rate + 1e-9)])
        if model.linear is None or memory is None or not len(memory.held_out.labels):
            raise ModelError(
                "the model remembers no image of old classes, from which to choose a threshold for"
                " unknown images",
                remedy="Let the model remember some, `clinit remember MODEL IMAGES --out NEW`, and"
                " give the new model.",
            )
        rows = memory.held_out.features.astype(np.float32)
        logits = rows @ model.head.weight.T.astype(np.float32) + model.head.bias
        found = np.sort(scores(rule, logits, activation))
        # The number of scores below this score is the share, rounded down.
        return cls(rule, float(found[math.floor(rate * len(found))]))


def default_rule(facts: ModelFacts) -> str:
    """Return the score of `auto`: the best on left-out images, if it was measured."""
    if facts.known is not None:
        return facts.known.rule
    return "probability" if facts.activation == "sigmoid" else "energy"


@dataclass(frozen=True, slots=True)
class Guess:
    """One class that an image may belong to."""

    name: str
    """Name in the data set: `n02979186`, `campsite`."""
    title: str
    """Name in words: `cassette player`, `campsite`."""
    probability: float
    """Of the class, in [0, 1]; the probabilities of sigmoids do not sum to 1."""
    row: int
    """Row of the classifier."""
    task: int
    """The task in which the class arrived; 0 for the classes of the base."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Result for one image, or for one row of features."""

    path: Path
    """The image, or the file or cache of features; empty for images and arrays in memory."""
    guesses: tuple[Guess, ...]
    """Most probable class first; empty if the image is unreadable."""
    reason: str | None = None
    """Why the image is unreadable."""
    score: float | None = None
    """Score for the rejection rule; None without a rule."""
    unknown: bool = False
    """Whether the score is below the threshold: the image belongs to no class."""
    row: int | None = None
    """Number of the row of features; None for an image."""


def predict(
    model: Model,
    inputs: Any,
    *,
    top: int = 5,
    reject: Rejection | None = None,
    reading: Reading = AS_USUAL,
) -> list[Prediction]:
    """Classify images or features; see `Model.predict`."""
    if index(top) < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    if not isinstance(reject, Rejection | None):
        raise TypeError(f"reject takes a Rejection or the name of a score, got {reject!r}")
    is_grey = model.engine is not None and getattr(inputs, "dtype", None) == np.uint8
    if is_features(inputs) and not is_grey:
        rows = features_in(inputs)
        found = [Prediction(rows.path, (), row=row) for row in range(len(rows.features))]
        batches = of_features(model, rows)
    else:
        engine, images = model.need_engine(), _images(inputs)
        paths = [each if isinstance(each, Path) else Path() for each in images]
        found = [Prediction(path, (), MISSING) for path in paths]
        batches = engine.answered(images, reading)
    with closing(batches):
        for rows_of_batch, logits, reasons in batches:
            answers = _answers(model.facts, logits, top, reject)
            for row, answer in zip(rows_of_batch, answers, strict=True):
                told = {} if row in reasons else answer
                found[row] = replace(found[row], reason=reasons.get(row), **told)
    return [
        replace(each, reason=". ".join(filter(None, (MISSING, near(each.path, "")))))
        if each.reason == MISSING
        else each
        for each in found
    ]


def near(path: Path, remedy: str) -> str:
    """Return a question with the most similar image, file of features or folder."""
    kinds = (*tree.IMAGE_SUFFIXES, *FORMATS, *(() if path.suffix else ("",)))
    return instead_of(path, remedy, lambda each: each.suffix.lower() in kinds)


def _answers(
    facts: ModelFacts, logits: Logits, top: int, reject: Rejection | None
) -> Iterator[dict[str, Any]]:
    """Yield guesses, score and `unknown` for each row of logits."""
    # Sorted by logits, because probabilities may round to the same number.
    found = best_classes(logits, top)
    chances = np.take_along_axis(PROBABILITIES[facts.activation](logits), found, axis=1)
    judged: list[Any] = [None] * len(logits)
    if reject is not None:
        judged = scores(reject.rule, as_trained(facts, logits), facts.activation).tolist()
    for chance, rows, score in zip(chances.tolist(), found.tolist(), judged, strict=True):
        guesses = []
        for row, probability in zip(rows, chance, strict=True):
            name = facts.class_names[row]
            guesses.append(Guess(name, title(name), probability, row, facts.tasks[row]))
        unknown = reject is not None and not score >= reject.threshold
        yield {"guesses": tuple(guesses), "score": score, "unknown": unknown}


def best_classes(logits: Logits, top: int) -> np.ndarray:
    """Return the rows of the `top` largest logits of each image, the largest first."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :top]


def as_trained(facts: ModelFacts, logits: Logits) -> Logits:
    """Return the logits of the head as it was trained, without its temperature."""
    return logits if facts.temperature is None else logits * np.float32(facts.temperature.value)


def _images(inputs: Any) -> list[Any]:
    """Return files, PIL images and arrays of pixels, one per image."""
    if isinstance(inputs, str | os.PathLike):
        return list(find_images([Path(inputs)]))
    if getattr(inputs, "ndim", None) == 4:
        return list(inputs)
    if not isinstance(inputs, Iterable) or hasattr(inputs, "ndim") or hasattr(inputs, "convert"):
        return [inputs]
    return [Path(each) if isinstance(each, str | os.PathLike) else each for each in inputs]


BLOCK_ROWS = 4096
NOT_FINITE = "its features are not finite"
OVERFLOW = "its logits overflow: the head was trained on features of another size"


def of_features(model: Model, rows: FeatureInput) -> Generator[AnsweredBatch]:
    """Yield the logits of rows of features, in blocks.

    Raises:
        ModelError: If the features have another width or come from another backbone.
    """
    rows.check(model)
    for start in range(0, len(rows.features), BLOCK_ROWS):
        block = np.asarray(rows.features[start : start + BLOCK_ROWS], dtype=np.float64)
        finite = np.asarray(np.isfinite(block).all(axis=1))
        with np.errstate(over="ignore", invalid="ignore"):
            logits = model.logits(np.where(finite[:, None], block, 0)).astype(np.float32)
            fits = np.isfinite(as_trained(model.facts, logits)).all(axis=1)
        logits[~fits] = 0
        numbers = range(start, start + len(block))
        why = dict.fromkeys((start + np.flatnonzero(~fits)).tolist(), OVERFLOW)
        why |= dict.fromkeys((start + np.flatnonzero(~finite)).tolist(), NOT_FINITE)
        yield numbers, logits, why


def find_images(
    paths: Iterable[AnyPath], on_left_out: Callable[[Sequence[str]], object] = lambda files: None
) -> list[Path]:
    """Return the files among `paths`, and the images in the folders among them, sorted.

    A file in `paths` may have any name. In folders and their subfolders, names must have the suffix
    of an image, and must not begin with a dot.

    Args:
        paths: Files and folders.
        on_left_out: Called with the other files of a folder, if it contains any.

    Raises:
        ImageError: If a folder contains no image or cannot be read.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not os.path.isdir(path):  # noqa: PTH112  (False for a name that is too long, too)
            found.append(path)
            continue
        images: list[Path] = []
        others: list[str] = []
        for name, below, files in os.walk(path, onerror=_refuse):
            below[:] = sorted(each for each in below if not tree.is_left_by_others(each))
            there = [Path(name, each) for each in sorted(files) if not tree.is_left_by_others(each)]
            images += [each for each in there if each.name.lower().endswith(tree.IMAGE_SUFFIXES)]
            others += [printable(each) for each in there if each not in {*images}]
        if others:
            on_left_out(others)
        if not images:
            ends = ", ".join(tree.IMAGE_SUFFIXES)
            remedy = f"Give a folder with files that end in {ends}, or any other file by its name."
            if any(each.lower().endswith(tree.HEIC_SUFFIXES) for each in others):
                remedy = f"{tree.HEIC_READER} lets clinit read its photographs in HEIC."
            raise ImageError(f"no image in {printable(path)}", remedy=remedy)
        found += images
    return found


def _refuse(error: OSError) -> None:
    raise ImageError(
        f"cannot read the folder {printable(error.filename)}: {error.strerror}",
        remedy="Check that you may read it, or give the files by their names.",
    ) from error
