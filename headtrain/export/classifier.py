"""A model file at work: images in, class names with probabilities out.

Images are decoded, resized and normalised as in the extraction that the head was trained on,
by the same code, and the network computes in the same arithmetic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import ImageError, ModelError
from clinit.extract.backbone import Backbone, BackboneConfig, load_backbone
from clinit.extract.contrast import DIGEST_LETTERS, contrast
from clinit.extract.decode import MISSING
from clinit.extract.device import choose_device
from clinit.extract.image_size import MAX_PIXELS
from clinit.extract.loader import ImageBatch, load_batches
from clinit.extract.machine import cpu_count, out_of_memory
from clinit.extract.tree import IMAGE_SUFFIXES, printable
from clinit.extract.wordnet import title
from clinit.headtrain.export.model_file import ModelFacts, read_facts
from clinit.headtrain.export.model_folder import model_file_of

NOT_PROBABILISTIC = frozenset({"ncm", "ridge", "simplecil"})
"""Methods whose logits are scores: their order counts, not their softmax."""


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
    """What a model says of one image."""

    path: Path
    guesses: tuple[Guess, ...]
    """The likeliest classes first; empty for a bad image."""
    reason: str | None = None
    """Why the image cannot be read."""


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A network with named classes."""

    facts: ModelFacts
    backbone: Backbone
    """The network on its device, its classifier included."""

    def predict(
        self,
        images: Sequence[str | os.PathLike[str]],
        *,
        top: int = 5,
        batch_size: int = 64,
        workers: int | None = None,
        max_pixels: int = MAX_PIXELS,
        on_images: Callable[[int], None] = lambda done: None,
    ) -> Iterator[Prediction]:
        """Yield a prediction an image, in order; a bad image does not stop the others.

        Args:
            images: Files.
            top: Classes an image; all of them where there are fewer.
            batch_size: Images a forward pass.
            workers: Threads that read and decode; default: the CPUs that the process may use.
            max_pixels: Largest image that is decoded; a larger one is a bad image.
            on_images: Called after every batch with the number of images done.

        Raises:
            MachineError: If the memory does not suffice, or the storage fails.
        """
        if min(top, batch_size, max_pixels) < 1:
            raise ValueError(
                "top, batch_size and max_pixels must be positive, got"
                f" {top}, {batch_size} and {max_pixels}"
            )
        paths = [Path(image) for image in images]
        there = [row for row, path in enumerate(paths) if _exists(path)]
        batches = load_batches(
            Path("/"),  # a link may lead anywhere: there is no root to stay in
            [str(paths[row].absolute()) for row in there],
            [
                range(start, min(start + batch_size, len(there)))
                for start in range(0, len(there), batch_size)
            ],
            self.facts.transform,
            workers=workers or cpu_count(),
            max_pixels=max_pixels,
            need_rights=False,  # the others are of no less use without it
            pin_memory=self.backbone.config.device.startswith("cuda"),
        )
        done = 0
        for batch in batches:
            for row, guesses in zip(batch.rows, self._guesses(batch, top), strict=True):
                yield from (Prediction(path, (), MISSING) for path in paths[done : there[row]])
                reason = batch.reasons.get(row)
                yield Prediction(paths[there[row]], () if reason else guesses, reason)
                done = there[row] + 1
            on_images(done)
        yield from (Prediction(path, (), MISSING) for path in paths[done:])
        on_images(len(paths))

    def _guesses(self, batch: ImageBatch, top: int) -> Iterable[tuple[Guess, ...]]:
        found = self._logits(batch).softmax(dim=1).topk(min(top, self.facts.num_classes), dim=1)
        probabilities, rows = found.values.tolist(), found.indices.tolist()
        for image_probabilities, image_rows in zip(probabilities, rows, strict=True):
            pairs = zip(image_probabilities, image_rows, strict=True)
            yield tuple(self._guess(probability, row) for probability, row in pairs)

    def _logits(self, batch: ImageBatch) -> Float[Tensor, "images classes"]:
        images = self.facts.transform.normalise(batch.pixels.to(self.backbone.config.device))
        try:
            return self.backbone.logits(images)
        except (RuntimeError, ValueError, AssertionError) as error:
            if out_of_memory(error) or isinstance(error, torch.AcceleratorError):
                raise
            size = " x ".join(map(str, self.facts.transform.crop))
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"the network of the model does not take the images of {size} pixels that its file"
                f" asks for: {why}",
                remedy="Export the run again.",
            ) from error

    def _guess(self, probability: float, row: int) -> Guess:
        name = self.facts.class_names[row]
        return Guess(name, title(name), probability, row, self.facts.tasks[row])

    @property
    def caution(self) -> str | None:
        """Why the probabilities are not to be taken at their word, None where they are."""
        config = self.facts.record.get("config") or {}
        if config.get("method") in NOT_PROBABILISTIC:
            origin = f"solved ({config['method']})"
        elif config.get("loss") == "mse":
            origin = "trained with squared error"
        else:
            return None
        return (
            f"the head was {origin}, not with cross entropy: the order of the classes counts,"
            " their probabilities do not"
        )


def load_model(path: str | os.PathLike[str], *, device: str = "auto") -> Classifier:
    """Load a model written by `clinit export`.

    Args:
        path: The model file, or the folder that it is in.
        device: `auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        ModelError: If there is no model at `path`, it has changed since it was written, or its
            folder says otherwise than its file.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    path = model_file_of(Path(path))
    facts = read_facts(path)
    config = BackboneConfig(
        name=facts.backbone,
        weights=path,
        model_args={**facts.model_args, "num_classes": facts.num_classes},
        device=str(choose_device(device)),
        autocast=facts.autocast,
    )
    backbone = load_backbone(config)
    if backbone.weights_sha256 != facts.weights:
        found, exported = contrast(backbone.weights_sha256, facts.weights, letters=DIGEST_LETTERS)
        raise ModelError(
            f"the weights in {path} are not those that were exported: SHA-256 {found} instead of"
            f" {exported}",
            remedy="Export the run again; this file is damaged.",
        )
    return Classifier(facts, backbone)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that may not be read
        return False


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Return the files among `paths`, and the images in the folders among them, sorted.

    A file is taken whatever its name; in a folder and those below it, files whose names end as
    those of images do and begin with no dot.

    Raises:
        ImageError: If a folder holds no image or cannot be read.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
        elif images := _images_in(path):
            found += images
        else:
            raise ImageError(
                f"no image in {printable(path)}",
                remedy=f"Files that end in {', '.join(IMAGE_SUFFIXES)} are looked for; any other"
                " file can be given by its name.",
            )
    return found


def _images_in(folder: Path) -> list[Path]:
    images: list[Path] = []
    for name, below, files in os.walk(folder, onerror=_refuse):
        below[:] = sorted(each for each in below if not each.startswith("."))
        images += (
            Path(name, file)
            for file in sorted(files)
            if file.lower().endswith(IMAGE_SUFFIXES) and not file.startswith(".")
        )
    return images


def _refuse(error: OSError) -> None:
    raise ImageError(
        f"cannot read the folder {printable(error.filename)}: {error.strerror}",
        remedy="Check that you may read it, or give the files by their names.",
    ) from error
