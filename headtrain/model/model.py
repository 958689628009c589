"""`clinit.Model`: a classifier with the verbs of the commands; `clinit.load` reads one.

What a verb needs is imported when it is called: features are classified without PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clinit.extract.cache.head import Head
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.headtrain.heads.temperature import Activation
from clinit.headtrain.model.classifier import AnyPath, Classifier, Reading
from clinit.headtrain.model.inputs import Inputs, features_in, is_features
from clinit.headtrain.model.settings import AddConfig, Arrival, RememberConfig
from clinit.headtrain.model.storage import facts_of, read_model, write_model

if TYPE_CHECKING:
    from clinit.headtrain.model.addition import Addition
    from clinit.headtrain.model.audit import Audit
    from clinit.headtrain.model.evaluation import Evaluation
    from clinit.headtrain.model.predict import Prediction, Rejection
    from clinit.headtrain.model.storage import Written


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class Model(Classifier):
    """A classifier in use: predict, evaluate, add classes, remove, rename, merge, export."""

    def __init__(
        self,
        head: Head | None = None,
        class_names: Sequence[str] | None = None,
        *,
        activation: Activation = "softmax",
        **parts: Any,
    ) -> None:
        """Make the model of a head on features; `clinit.load` reads one that has a network.

        Args:
            head: Weight and bias; what is known of their origin is kept.
            class_names: One per row, if the head has none.
            activation: What makes probabilities of its logits, unless its origin names it.
            parts: In place of a head: fields of `Classifier`.

        Raises:
            HeadError: If the rows have no class names.
        """
        if head is not None:
            names = head.class_names if class_names is None else tuple(class_names)
            head = replace(head, class_names=names)
            facts = facts_of(head)
            if activation != "softmax":
                facts = replace(facts, activation=activation)
            if facts.temperature is not None:
                head = facts.temperature.multiplied(head)
            parts = {"facts": facts, "linear": head}
        Classifier.__init__(self, **parts)

    def predict(
        self,
        inputs: Any,
        *,
        top: int = 5,
        reject: Rejection | None = None,
        batch_size: int = 64,
        workers: int | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> list[Prediction]:
        """Return a prediction per image or row of features, in order.

        Args:
            inputs: An image file or a folder of images, or a list of files; a PIL image; pixels
                (height, width, 3) of uint8; or features, as an array (rows, dim) or a vector, a
                file of arrays or a feature cache. One image is computed at once.
            top: Maximum number of classes per image.
            reject: Rule by which images belong to no class; None: no rule.
            batch_size: Images per forward pass.
            workers: Threads that read and decode; default: the CPUs that the process may use.
            max_pixels: Maximum number of pixels; a larger image counts as unreadable.

        Raises:
            ClinitError: If the model cannot classify such inputs, or they cannot be read. An
                unreadable image among several does not stop the others.
        """
        from clinit.headtrain.model.predict import predict

        reading = Reading(batch_size=batch_size, workers=workers, max_pixels=max_pixels)
        return predict(self, inputs, top=top, reject=reject, reading=reading)

    def evaluate(
        self, images: Any, *, labels: Any = None, against: Model | None = None
    ) -> Evaluation:
        """Measure the model on labelled images or features.

        Args:
            images: A folder of images, whose class folders are named as the classes, or features:
                a cache, a file of arrays, a `FeatureSet`.
            labels: A table of labels for images, or a file of labels for an array file.
            against: Another model, which classifies the same images.

        Raises:
            ClinitError: If the images cannot be read, or none is of a class of the model.
        """
        from clinit.headtrain.model.evaluation import Questions, evaluate

        asked = Questions.of(images, labels)
        asked.check(self)
        return evaluate(self, asked, against=against)

    def add(
        self,
        given: Any,
        *,
        old: Any = None,
        replace: bool = False,
        more: bool = False,
        labels: AnyPath | None = None,
        features: AnyPath | None = None,
        **settings: Any,
    ) -> Addition[Model]:
        """Add classes, as `clinit add`; nothing is written before `Addition.save`.

        Args:
            given: A folder with a folder of images per class, or features: a cache, a file of
                arrays, a `FeatureSet`, a `Source`, or a pair of an array (rows, dim) and labels.
            old: Features of old classes, used in place of the memory of the model; or statistics of
                old classes that the model does not remember.
            replace: Replace classes that the model already contains.
            more: Add images to classes that the model already contains.
            labels: A table of labels for images, or a file of labels for an array file.
            features: Folder for the features of images, from which an interrupted call resumes;
                default: they are not kept.
            settings: Fields of `clinit.headtrain.model.settings.AddConfig`.

        Raises:
            ValueError: If a setting is wrong.
            ClinitError: If the model, the images or the features cannot be used.
        """
        from clinit.headtrain.model.add import Purpose, add

        kind: Arrival = "more" if more else "replace" if replace else "add"
        purpose = Purpose(config=AddConfig(**settings), kind=kind, old=old)
        return add(self, _inputs_of(self, given, labels, features), purpose)

    def audit(self, given: Any, *, labels: AnyPath | None = None) -> Audit:
        """Check images or features of new classes as `add` does, without adding them."""
        return self.add(given, labels=labels).audit

    def remember(
        self,
        given: Any,
        *,
        labels: AnyPath | None = None,
        features: AnyPath | None = None,
        **settings: Any,
    ) -> Model:
        """Return the model with a memory of images or features of its classes.

        Args:
            given: As in `add`, with the model's class names.
            labels: As in `add`.
            features: As in `add`.
            settings: Fields of `clinit.headtrain.model.settings.RememberConfig`.

        Raises:
            ModelError: If the model has no class of such a name.
        """
        from clinit.headtrain.model.inputs import remember

        inputs = _inputs_of(self, given, labels, features)
        return remember(self, inputs, RememberConfig(**settings))

    def merge(self, other: Model, **settings: Any) -> Addition[Model]:
        """Return this model with the classes of another, as `clinit model merge`.

        Args:
            other: A model of the same network or features; it is not changed.
            settings: Fields of `clinit.headtrain.model.settings.AddConfig`.

        Raises:
            ModelError: If the networks or a shared class differ, or if a model does not remember
                the training rows of all classes that the other model lacks.
        """
        from clinit.headtrain.model.add import merge

        return merge(self, other, AddConfig(**settings))

    def save(self, out: AnyPath, *, overwrite: bool = False) -> Written:
        """Write the model to `out`.

        Args:
            out: A folder; or a file in .safetensors, in which a network has no memory; or, for a
                model without a network, a head file in .npz or .safetensors.
            overwrite: Replace an existing model.

        Raises:
            ClinitError: If `out` exists and may not be replaced, or cannot be written.
        """
        return write_model(self, Path(out), overwrite=overwrite)

    def export(self, out: AnyPath, *, onnx: bool = False, overwrite: bool = False) -> Written:
        """Write the model as `save` does, or its head alone.

        Args:
            out: As in `save`; a name in .npz means the head alone.
            onnx: Also write the network as ONNX into the folder, and compare both on noise.
            overwrite: As in `save`.
        """
        model = self.without_network() if Path(out).suffix == ".npz" else self
        return write_model(model, Path(out), onnx=onnx, overwrite=overwrite)


def load(path: AnyPath, *, device: str = "auto") -> Model:
    """Load a model: a network with its classes, or a head alone, which classifies features.

    Args:
        path: A model folder, a model file, a head file (.npz, .safetensors), or an ONNX file.
        device: `auto` (CUDA if available), `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        ModelError: If there is no model at `path`, if it has changed since it was written, or if
            its memory is damaged or belongs to another backbone.
        HeadError: If a head is damaged or has no class names.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    return read_model(Path(path), Model, device=device)


load_model = load


def _inputs_of(
    model: Classifier, given: Any, labels: AnyPath | None = None, features: AnyPath | None = None
) -> Inputs:
    """Return what is given as inputs: features as they are, a path of images as `ImageFolder`."""
    if is_features(given):
        return features_in(given, labels)
    model.need_engine()
    from clinit.headtrain.model.images import ImageFolder

    place = None if features is None else Path(features)
    return ImageFolder(
        root=Path(given), labels=None if labels is None else str(labels), features=place
    )
