"""Classify images with a model, and rows of features with a head alone.

The same code as in the extraction of the training features decodes, resizes and normalises images.
Logits are computed by PyTorch, in the arithmetic of that extraction, or by onnxruntime
(`clinit.headtrain.model.onnx`).

An image that belongs to no class has a low score. With the logits z of the head as it was trained,
`energy` is the negative free energy, log sum_k exp z_k; `max-logit` is max_k z_k; `probability` is
max_k softmax(z)_k. The threshold rejects a given share of held-out images of known classes.

Sources: W. Liu, X. Wang, J. Owens, Y. Li, "Energy-based Out-of-distribution Detection", NeurIPS
2020. D. Hendrycks, S. Basart, M. Mazeika and others, "Scaling Out-of-Distribution Detection for
Real-World Settings", ICML 2022. D. Hendrycks, K. Gimpel, "A Baseline for Detecting Misclassified
and Out-of-Distribution Examples in Neural Networks", ICLR 2017.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clinit.errors import CacheError, HeadError, ImageError, ModelError
from clinit.extract.cache.head import Head, read_head
from clinit.extract.dataset.decode import MISSING
from clinit.extract.dataset.images import ImageFiles
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.dataset.names import title
from clinit.extract.dataset.tree import IMAGE_SUFFIXES, is_left_by_others
from clinit.extract.network.compiled import Compile
from clinit.extract.work.pipeline import Decoder, ImageBatch, Timing, features_of
from clinit.files.arrays import FEATURES, open_arrays, widened
from clinit.files.paths import exists, is_file, is_folder
from clinit.headtrain.heads.array import as_array, to_numpy
from clinit.headtrain.model.facts import METADATA, Known, ModelFacts, caution
from clinit.headtrain.model.memory import Memory
from clinit.machine import cpu_count, out_of_memory
from clinit.words import printable

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "energy": lambda logits: logits.logsumexp(dim=1),
    "max-logit": lambda logits: logits.amax(dim=1),
    "probability": lambda logits: logits.softmax(dim=1).amax(dim=1),
}
AnyPath = str | os.PathLike[str]
AnsweredBatch = tuple[Sequence[int], Tensor, Mapping[int, str]]
"""Numbers of images, their logits (images, classes), and by number why an image is unreadable."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Rule that an image belongs to no class if its score is below a threshold."""

    rule: str
    """One of `SCORES`."""
    threshold: float

    def __post_init__(self) -> None:
        if self.rule not in SCORES:
            raise ValueError(f"rule must be one of {', '.join(SCORES)}, got {self.rule!r}")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, got {self.threshold}")

    @classmethod
    def at_rate(
        cls,
        rule: str,
        rate: float,
        head: Head | None,
        memory: Memory | None,
        known: Known | None = None,
    ) -> Rejection:
        """Return the rule that rejects at most a share of held-out or left-out images.

        Args:
            rule: One of `SCORES`, or `auto`: the best of `known`, else `energy`.
            rate: The share, in [0, 1).
            head: The classifier, as it was trained; None if it is unknown.
            memory: Memory with the same classes and features; None if nothing is remembered.
            known: Scores of images of the classes; None takes the held-out images of the memory.

        Raises:
            ModelError: If no image was held out, or the head is unknown.
        """
        if not 0 <= rate < 1:
            raise ValueError(f"rate must lie in [0, 1), got {rate}")
        if rule == "auto":
            rule = "energy" if known is None else known.rule
        if known is not None:
            return cls(rule, known.levels[rule][math.floor(100 * rate + 1e-9)])
        if head is None or memory is None or not len(memory.held_out.labels):
            raise ModelError(
                "the model remembers no image of its classes, from which to choose a threshold for"
                " unknown images",
                remedy="Let the model remember some, `clinit remember MODEL IMAGES --out NEW`, and"
                " give the new folder; or give the lowest score of a known image:"
                " `--threshold VALUE`.",
            )
        rows = torch.from_numpy(memory.held_out.features).float()
        weight, bias = torch.from_numpy(head.weight).float(), torch.from_numpy(head.bias).float()
        scores = SCORES[rule](rows @ weight.T + bias).sort().values
        # The number of scores below this score is the share, rounded down.
        return cls(rule, float(scores[math.floor(rate * len(scores))]))


@dataclass(frozen=True, slots=True)
class Guess:
    """One class that an image may belong to."""

    name: str
    """Name in the data set: `n02979186`, `campsite`."""
    title: str
    """Name in words: `cassette player`, `campsite`."""
    probability: float
    """Softmax of the logits, in [0, 1]."""
    row: int
    """Row of the classifier."""
    task: int
    """The task in which the class arrived; 0 for the classes of the base."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Result for one image, or for one row of features."""

    path: Path
    """The image, or the file of features."""
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


@dataclass(frozen=True, slots=True)
class Named:
    """Classes of the columns of logits."""

    class_names: tuple[str, ...]
    tasks: tuple[int, ...]
    """The task in which each class arrived."""
    temperature: float = 1.0
    """Temperature by which the trained logits were divided."""

    def answers(
        self, logits: Float[Tensor, "images classes"], top: int, reject: Rejection | None
    ) -> Iterator[dict[str, Any]]:
        """Yield guesses, score and `unknown` for each row of logits."""
        # Sorted by logits, because probabilities may round to the same number.
        found = logits.topk(min(top, len(self.class_names)), dim=1).indices
        chances = logits.softmax(dim=1).gather(1, found)
        scores: list[Any] = [None] * len(logits)
        if reject is not None:
            scores = SCORES[reject.rule](logits * self.temperature).tolist()
        for probabilities, rows, score in zip(
            chances.tolist(), found.tolist(), scores, strict=True
        ):
            guesses = []
            for row, probability in zip(rows, probabilities, strict=True):
                name = self.class_names[row]
                guesses.append(Guess(name, title(name), probability, row, self.tasks[row]))
            unknown = reject is not None and not score >= reject.threshold
            yield {"guesses": tuple(guesses), "score": score, "unknown": unknown}


class Predictor(ABC):
    """A network with named classes; subclasses compute its logits."""

    __slots__ = ()
    facts: ModelFacts
    """The model's own facts."""

    @property
    def device(self) -> str:
        """Device for the batches."""
        return "cpu"

    @abstractmethod
    def logits(
        self, images: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images classes"]:
        """Return the logits of normalised images."""

    def on_its_way(
        self, wanted: Compile, images: int, batch_size: int, on_note: Callable[[str], object]
    ) -> Predictor:
        """Return this predictor, or a compiled predictor if that saves time for `images` images."""
        return self

    def _logits(
        self, pixels: UInt8[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images classes"]:
        try:
            return self.logits(self.facts.transform.normalise(pixels.to(self.device)))
        except Exception as error:  # PyTorch and onnxruntime have a dozen types
            if out_of_memory(error) or isinstance(error, torch.AcceleratorError):
                raise
            size = " x ".join(map(str, self.facts.transform.crop))
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"the network of the model cannot process images of {size} pixels, the size in its"
                f" file: {why}",
                remedy="Export the run again.",
            ) from error

    def predict(
        self,
        images: AnyPath | Sequence[AnyPath],
        *,
        top: int = 5,
        batch_size: int = 64,
        workers: int | None = None,
        max_pixels: int = MAX_PIXELS,
        reject: Rejection | None = None,
        compile: Compile = "auto",
        on_images: Callable[[int], None] = lambda done: None,
        on_note: Callable[[str], object] = lambda note: None,
    ) -> list[Prediction]:
        """Return a prediction per image, in order; continue after unreadable images.

        Args:
            images: Files; or one file, or one folder, which is searched for images.
            top: Maximum number of classes per image.
            batch_size: Images per forward pass.
            workers: Threads that read and decode; default: the CPUs that the process may use.
            max_pixels: Maximum number of pixels; a larger image counts as unreadable.
            reject: Rule by which images belong to no class; None: no rule.
            compile: Whether the network computes as one program (`extract.network.compiled`).
            on_images: Called after every batch with the number of finished images.
            on_note: Called with a note on `compile`, if it is `auto`.

        Raises:
            ImageError: If the folder contains no image or cannot be read.
            ModelError: If the network cannot process the images.
            MachineError: If the memory does not suffice, or the storage fails.
        """
        if isinstance(images, str | os.PathLike):
            paths = find_images([Path(images)])
        else:
            paths = [Path(image) for image in images]
        facts, temperature = self.facts, self.facts.temperature
        divisor = 1.0 if temperature is None else temperature.value
        named = Named(facts.class_names, facts.tasks, divisor)
        found = [Prediction(path, (), MISSING) for path in paths]
        for rows, logits, reasons in self.batches(
            paths,
            batch_size=batch_size,
            workers=workers,
            max_pixels=max_pixels,
            compile=compile,
            on_images=on_images,
            on_note=on_note,
        ):
            answers = named.answers(logits, top, reject)
            for row, answer in zip(rows, answers, strict=True):
                told = {"guesses": (), "reason": reasons[row]} if row in reasons else answer
                found[row] = Prediction(paths[row], **told)
        return found

    def batches(
        self,
        paths: Sequence[Path],
        *,
        batch_size: int = 64,
        workers: int | None = None,
        max_pixels: int = MAX_PIXELS,
        compile: Compile = "auto",
        on_images: Callable[[int], None] = lambda done: None,
        on_note: Callable[[str], object] = lambda note: None,
    ) -> Iterator[AnsweredBatch]:
        """Yield the logits of existing images; arguments and errors as in `predict`."""
        there = [row for row, path in enumerate(paths) if _exists(path)]
        device = torch.device(self.device)
        batches = load_files(
            [paths[row] for row in there],
            self.facts,
            batch_size=batch_size,
            workers=workers or cpu_count(),
            max_pixels=max_pixels,
            pin_memory=device.type == "cuda",
        )
        network = self.on_its_way(compile, len(there), batch_size, on_note)
        for batch, logits in features_of(batches, network._logits, device, Timing()):
            reasons = {there[row]: reason for row, reason in batch.reasons.items()}
            yield [there[row] for row in batch.rows], logits, reasons
            on_images(there[batch.rows[-1]] + 1)
        on_images(len(paths))


def load_files(
    paths: Sequence[Path],
    facts: ModelFacts,
    *,
    batch_size: int,
    workers: int,
    max_pixels: int = MAX_PIXELS,
    pin_memory: bool = False,
) -> Iterable[ImageBatch]:
    """Yield the pixels of existing files, resized for the model."""
    images = ImageFiles(
        Path("/"),  # links may lead anywhere
        [str(path.absolute()) for path in paths],
        need_rights=False,  # an unreadable file must not stop the rest
    )
    starts = range(0, len(paths), batch_size)
    decoder = Decoder(
        images=images,
        transform=facts.transform,
        workers=workers,
        max_pixels=max_pixels,
        pin_memory=pin_memory,
    )
    return decoder.batches(range(start, min(start + batch_size, len(paths))) for start in starts)


def find_images(
    paths: Iterable[Path], on_left_out: Callable[[Sequence[str]], object] = lambda files: None
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
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112  (False for a name that is too long, too)
            found.append(path)
            continue
        images: list[Path] = []
        others: list[str] = []
        for name, below, files in os.walk(path, onerror=_refuse):
            below[:] = sorted(each for each in below if not is_left_by_others(each))
            for file in sorted(each for each in files if not is_left_by_others(each)):
                if file.lower().endswith(IMAGE_SUFFIXES):
                    images.append(Path(name, file))
                else:
                    others.append(printable(Path(name, file)))
        if others:
            on_left_out(others)
        if not images:
            raise ImageError(
                f"no image in {printable(path)}",
                remedy=f"Give a folder with files that end in {', '.join(IMAGE_SUFFIXES)}, or any"
                " other file by its name.",
            )
        found += images
    return found


def _refuse(error: OSError) -> None:
    raise ImageError(
        f"cannot read the folder {printable(error.filename)}: {error.strerror}",
        remedy="Check that you may read it, or give the files by their names.",
    ) from error


def _exists(path: Path) -> bool:
    try:
        return exists(path)
    except OSError:  # a name that is too long, a folder that may not be read
        return False


BLOCK_ROWS = 4096
NOT_FINITE = "its features are not finite"
OVERFLOW = "its logits overflow: the head was trained on features of another size"


def is_head_file(path: Path) -> bool:
    """Return whether the file at `path` contains a head alone, not a network."""
    if path.suffix != ".safetensors" or not is_file(path):
        return path.suffix == ".npz"
    try:
        with safe_open(path, framework="numpy") as file:
            return METADATA not in (file.metadata() or {}) and {"weight", "bias"} <= {*file.keys()}
    except (SafetensorError, OSError):
        return False


def caution_of_head(head: Head) -> str | None:
    """Return why softmax of a head gives no probabilities, as in `ModelFacts.caution`.

    None if it does, or if the file of the head does not record its origin.
    """
    origin = head.origin or {}
    if origin.get("temperature") is not None:
        return None
    return caution({"method": origin.get("fitted"), **origin})


def predict_features(
    head: Head | str | Path,
    features: Float[Any, "rows dim"] | str | Path,
    *,
    top: int = 5,
    features_name: str | None = None,
    reject: Rejection | None = None,
) -> list[Prediction]:
    """Classify rows of features with a head.

    Args:
        head: A head with class names, or its file, from `clinit export` or elsewhere.
        features: An array of NumPy, torch or CuPy, or a file: .npy, .npz, .safetensors or
            .parquet.
        top: Maximum number of classes per row.
        features_name: Name of the array in a file; default: `features`.
        reject: Rule by which rows belong to no class; None: no rule.

    Raises:
        ValueError: If an array has another width than the head.
        HeadError: If the head is missing or has no class names, or if the features in the file
            have another width.
        CacheError: If the file contains no such features.
    """
    head = head if isinstance(head, Head) else read_head(Path(head))
    named, path = named_head(head), Path()
    if isinstance(features, str | Path):
        path = Path(features)
        array = _stored(path, features_name)
        if array.ndim != 2 or array.shape[1] != head.dim:
            raise HeadError(
                f"{path} holds features of shape {array.shape}, the head reads (rows, {head.dim})",
                remedy="Give features of the backbone that the head was trained on.",
            )
    else:
        array = to_numpy(as_array(features))
        if array.ndim != 2 or array.shape[1] != head.dim:
            raise ValueError(f"features have shape {array.shape}, expected (rows, {head.dim})")
    found: list[Prediction] = []
    for start in range(0, len(array), BLOCK_ROWS):
        rows = np.asarray(array[start : start + BLOCK_ROWS], dtype=np.float64)
        finite = np.asarray(np.isfinite(rows).all(axis=1))
        with np.errstate(over="ignore", invalid="ignore"):
            wide = np.where(finite[:, None], rows, 0) @ head.weight.T.astype(np.float64) + head.bias
            logits = wide.astype(np.float32)
            # Rejection scores use the logits as they were trained.
            fits = np.isfinite(logits * np.float32(max(1.0, named.temperature)))
            fits = np.asarray(fits.all(axis=1))
        logits[~fits] = 0
        answers = named.answers(torch.from_numpy(logits), top, reject)
        for answer, good, fit in zip(answers, finite, fits, strict=True):
            told = answer
            if not (good and fit):
                told = {"guesses": (), "reason": OVERFLOW if good else NOT_FINITE}
            found.append(Prediction(path, row=len(found), **told))
    return found


def named_head(head: Head) -> Named:
    """Return the classes of the rows of a head.

    Raises:
        HeadError: If the head has no class names.
    """
    if head.class_names is None:
        raise HeadError(
            f"the {head.num_classes:,} rows of the head have no class names",
            remedy="Write it again with `clinit.save_head(path, weight, bias, class_names)`.",
        )
    origin: Mapping[str, Any] = head.origin or {}
    temperature = origin.get("temperature") or 1.0
    if isinstance(temperature, Mapping):
        temperature = temperature["value"]
    tasks = origin.get("tasks") or [0] * head.num_classes
    return Named(head.class_names, tuple(tasks), float(temperature))


def _stored(path: Path, name: str | None) -> np.ndarray:
    if is_folder(path):
        raise CacheError(
            f"{path} is a folder, not a file of features",
            remedy="Give a file; `clinit cache export CACHE FOLDER` writes the files of a feature"
            " cache.",
        )
    file = open_arrays(path)
    return widened(file.features(file.find(name, FEATURES, "--features-name")))
