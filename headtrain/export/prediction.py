"""What a model says of images: names with probabilities, and whether an image is of none of them.

Images are decoded, resized and normalised as in the extraction that the head was trained on,
by the same code, whatever computes the logits.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from clinit.extract.dataset.class_names import title
from clinit.extract.dataset.decode import MAX_PIXELS, MISSING
from clinit.extract.dataset.images import ImageFiles
from clinit.extract.loader import ImageBatch, load_batches
from clinit.headtrain.export.image_files import find_images
from clinit.headtrain.export.model_file import ModelFacts
from clinit.headtrain.export.rejection import Rejection
from clinit.machine import cpu_count

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Guess:
    """One class that an image may belong to."""

    name: str
    """As in the data set: `n02979186`, `campsite`."""
    title: str
    """The same in words: `cassette player`, `campsite`."""
    probability: float
    """Softmax of the logits, in [0, 1]."""
    row: int
    """Row of the classifier."""
    task: int
    """The task in which the class arrived; 0 for the classes of the base."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says of one image, or of one row of features."""

    path: Path
    """The image, or the file of features."""
    guesses: tuple[Guess, ...]
    """The likeliest classes first; empty for a bad image."""
    reason: str | None = None
    """Why the image cannot be read."""
    score: float | None = None
    """How well the model knows what is in the image; None where nothing is rejected."""
    unknown: bool = False
    """Whether the score is below the threshold: the image is of none of the classes."""
    row: int | None = None
    """Row of features; None for an image."""


@dataclass(frozen=True, slots=True)
class Named:
    """What the columns of logits stand for."""

    class_names: tuple[str, ...]
    tasks: tuple[int, ...]
    """The task in which each class arrived."""
    temperature: float = 1.0
    """What the logits were divided by after the training."""

    @classmethod
    def of(cls, facts: ModelFacts) -> Named:
        """Return what a model file says of them."""
        temperature = facts.temperature
        value = 1.0 if temperature is None else temperature.value
        return cls(facts.class_names, facts.tasks, value)


class Predictor(ABC):
    """A network with named classes, whatever computes it."""

    __slots__ = ()
    facts: ModelFacts
    """What the model says of itself."""

    @abstractmethod
    def logits(self, batch: ImageBatch) -> Float[Tensor, "images classes"]:
        """Return the answers of the network to resized pixels."""

    @property
    def pins_memory(self) -> bool:
        """Whether batches are for a CUDA device."""
        return False

    def predict(
        self,
        images: AnyPath | Sequence[AnyPath],
        *,
        top: int = 5,
        batch_size: int = 64,
        workers: int | None = None,
        max_pixels: int = MAX_PIXELS,
        reject: Rejection | None = None,
        on_images: Callable[[int], None] = lambda done: None,
    ) -> list[Prediction]:
        """Return a prediction per image, in order; a bad image does not stop the others.

        Args:
            images: Files; or one file, or one folder, which is searched for images.
            top: Classes per image; all of them where there are fewer.
            batch_size: Images per forward pass.
            workers: Threads that read and decode; default: the CPUs that the process may use.
            max_pixels: Largest image that is decoded; a larger one is a bad image.
            reject: When an image is of none of the classes; None for never.
            on_images: Called after every batch with the number of images done.

        Raises:
            ImageError: If the folder holds no image or cannot be read.
            MachineError: If the memory does not suffice, or the storage fails.
        """
        if min(top, batch_size, max_pixels) < 1:
            raise ValueError(
                "top, batch_size and max_pixels must be positive, got"
                f" {top}, {batch_size} and {max_pixels}"
            )
        if isinstance(images, str | os.PathLike):
            paths = find_images([Path(images)])
        else:
            paths = [Path(image) for image in images]
        there = [row for row, path in enumerate(paths) if _exists(path)]
        batches = load_files(
            [paths[row] for row in there],
            self.facts,
            batch_size=batch_size,
            workers=workers or cpu_count(),
            max_pixels=max_pixels,
            pin_memory=self.pins_memory,
        )
        found: list[Prediction] = []
        for batch in batches:
            answers = told(Named.of(self.facts), self.logits(batch), top, reject)
            for row, answer in zip(batch.rows, answers, strict=True):
                found += (Prediction(each, (), MISSING) for each in paths[len(found) : there[row]])
                reason, path = batch.reasons.get(row), paths[there[row]]
                found.append(Prediction(path, (), reason) if reason else Prediction(path, *answer))
            on_images(len(found))
        found += (Prediction(path, (), MISSING) for path in paths[len(found) :])
        on_images(len(paths))
        return found


def load_files(
    paths: Sequence[Path],
    facts: ModelFacts,
    *,
    batch_size: int,
    workers: int,
    max_pixels: int = MAX_PIXELS,
    pin_memory: bool = False,
) -> Iterable[ImageBatch]:
    """Yield the pixels of files that exist, resized as the model asks for."""
    starts = range(0, len(paths), batch_size)
    images = ImageFiles(
        Path("/"),  # a link may lead anywhere: there is no root to stay in
        [str(path.absolute()) for path in paths],
        need_rights=False,  # the others are of no less use without it
    )
    return load_batches(
        images,
        [range(start, min(start + batch_size, len(paths))) for start in starts],
        facts.transform,
        workers=workers,
        max_pixels=max_pixels,
        pin_memory=pin_memory,
    )


Told = tuple[tuple[Guess, ...], None, float | None, bool]
"""The fields of a prediction behind its path."""


def told(
    named: Named,
    logits: Float[Tensor, "images classes"],
    top: int,
    reject: Rejection | None,
) -> Iterator[Told]:
    """Yield what is said of each image of a batch, or of each row of features."""
    # By logits: probabilities that round to the same number would leave the order to chance.
    found = logits.topk(min(top, len(named.class_names)), dim=1).indices
    chances = logits.softmax(dim=1).gather(1, found)
    scores: list[Any] = [None] * len(logits)
    if reject is not None:
        scores = reject.scores(logits * named.temperature).tolist()
    for probabilities, rows, score in zip(chances.tolist(), found.tolist(), scores, strict=True):
        pairs = zip(probabilities, rows, strict=True)
        guesses = tuple(_guess(named, probability, row) for probability, row in pairs)
        yield guesses, None, score, reject is not None and not score >= reject.threshold


def _guess(named: Named, probability: float, row: int) -> Guess:
    name = named.class_names[row]
    return Guess(name, title(name), probability, row, named.tasks[row])


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that may not be read
        return False
