"""`clinit.Model`: a classifier with the verbs of the commands; `clinit.load` reads one.

It is a head with named classes, perhaps a memory of their images, and perhaps an engine, the
network that makes features of images. Without an engine, features are given. What a verb needs is
imported when it is called: features are classified without PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from jaxtyping import Float

from clinit.errors import HeadError, ModelError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.extract.dataset.names import by_word, in_words, meant, plain
from clinit.files.text import is_text
from clinit.headtrain.heads.temperature import Activation, divided
from clinit.headtrain.model.engine import AnyPath, Engine
from clinit.headtrain.model.facts import Change, ModelFacts
from clinit.headtrain.model.memory import Memory
from clinit.headtrain.model.reading import Reading
from clinit.headtrain.model.settings import AddConfig, ArrivalKind, RememberConfig
from clinit.observer import Event, Warned, ignore
from clinit.words import examples, number_of, visible

if TYPE_CHECKING:
    from clinit.headtrain.model.addition import Addition
    from clinit.headtrain.model.audit import Audit
    from clinit.headtrain.model.evaluation import Evaluation
    from clinit.headtrain.model.inputs import Inputs
    from clinit.headtrain.model.predict import Prediction, Rejection
    from clinit.headtrain.model.storage import Written


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class Model:
    """A classifier in use: predict, evaluate, add classes, remove, rename, merge, export."""

    facts: ModelFacts
    """Class names, history, temperature."""
    linear: Head | None
    """`head`; None if only the graph of an ONNX file contains it."""
    memory: Memory | None = None
    """None if the model remembers nothing."""
    origin: str = "the model"
    """Path of the model, or name of the network, for messages and the history."""
    engine: Engine | None = None
    """Computes the logits of images; None if the model classifies features."""

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
            parts: In place of a head: the fields.

        Raises:
            ValueError: If the activation is another word.
            TypeError: If an argument is unknown, or `head` is no `Head`, or nothing is given.
            HeadError: If the rows have no class names, or two the same, or are not finite.
        """
        if unknown := sorted({*parts} - {each.name for each in fields(self)}):
            raise TypeError(f"a model takes no {unknown[0]!r}")
        if activation not in get_args(Activation):
            raise ValueError(f"activation takes softmax or sigmoid, got {activation!r}")
        if "facts" not in parts:
            if not isinstance(head, Head):
                read = "clinit.Head(weight, bias, class_names); clinit.load reads a model"
                raise TypeError(f"head is a {type(head).__name__}, expected {read}")
            from clinit.headtrain.model.storage import facts_of

            names = head.class_names if class_names is None else tuple(class_names)
            head = replace(head, class_names=names)
            facts = facts_of(head)
            if activation != "softmax":
                facts = replace(facts, activation=activation)
            if facts.temperature is not None:
                head = facts.temperature.multiplied(head)
            if not (np.isfinite(head.weight).all() and np.isfinite(head.bias).all()):
                raise HeadError(
                    "the head contains weights that are not finite",
                    remedy="Train the head again: its training has probably diverged.",
                )
            parts = {"facts": facts, "linear": head}
        for name, part in ({each.name: each.default for each in fields(self)} | parts).items():
            object.__setattr__(self, name, part)

    @property
    def noun(self) -> str:
        """Name of what it classifies, in sentences."""
        return "row" if self.engine is None else "image"

    def __repr__(self) -> str:
        memory = "no memory" if self.memory is None else self.memory.describe(self.noun)
        return f"<{self.origin}: {self.facts.num_classes:,} classes, {memory}>"

    @property
    def head(self) -> Head:
        """The classifier as it was trained, with class names.

        Its logits are the logits of the network times the temperature, so that the rows of added
        classes match the scale of the trained rows.

        Raises:
            ModelError: If the model is an ONNX file.
        """
        if self.linear is None:
            raise ModelError(
                f"{self.origin} is an ONNX file, which only classifies images",
                remedy="Give the model folder that contains it.",
            )
        return self.linear

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per row of the classifier."""
        return self.facts.class_names

    def need_engine(self) -> Engine:
        """Return the engine.

        Raises:
            ModelError: If the model has none.
        """
        if self.engine is None:
            raise ModelError(
                f"{self.origin} has features only: it is a head without a network, and reads no"
                " images",
                remedy="Give features of the backbone that it was trained on: a feature cache"
                " (`clinit extract`, `clinit cache import`), or a file .npy, .npz or"
                " .safetensors.",
            )
        return self.engine

    @property
    def depends_on(self) -> dict[str, str]:
        """The facts that the features of the model depend on, as in its memory."""
        if self.engine is not None:
            return self.engine.depends_on
        return described(self.facts.fingerprint)

    def with_rows_of(self, *others: Model) -> Model:
        """Return a model whose network gives the logits of its head, and then of other heads."""
        if self.engine is None:
            return self
        heads = [divided(each.head, each.facts.temperature) for each in (self, *others)]
        return replace(self, engine=self.engine.with_heads(heads))

    def after(self, change: Change) -> Model:
        """Return the model with one more change, and with the digest of the model before it."""
        known = {self.facts.digest: self.origin} if self.facts.digest else {}
        parents = {"parents": known, "total": self.facts.num_classes, **change.data}
        history = (*self.facts.history, replace(change, data=parents))
        return replace(self, facts=replace(self.facts, history=history, digest=""))

    def knowing(self, fingerprint: Fingerprint) -> Model:
        """Return the model with the fingerprint of its features, if that was unknown."""
        if self.engine is not None or self.facts.fingerprint.fields or not fingerprint.fields:
            return self
        found = fingerprint.without_rows
        facts = replace(self.facts, fingerprint=found, backbone=str(found.backbone or ""))
        memory = self.memory and replace(self.memory, backbone=described(found))
        return replace(self, facts=facts, memory=memory)

    def of_rows(self, rows: Sequence[int]) -> Model:
        """Return the model with the classes `rows` only, in this order."""
        picked = list(rows)
        names = tuple(self.facts.class_names[row] for row in picked)
        tasks = tuple(self.facts.tasks[row] for row in picked)
        weight, bias = self.head.weight[picked], self.head.bias[picked]
        return replace(
            self,
            facts=replace(self.facts, class_names=names, tasks=tasks),
            linear=replace(self.head, weight=weight, bias=bias, class_names=names),
            memory=None if self.memory is None else self.memory.of_rows(picked),
        ).with_rows_of()

    def remove(self, names: str | Sequence[str], data: Mapping[str, Any] = {}) -> Model:
        """Return the model without the named classes; its history records the removal.

        Args:
            names: Class names, or words for synsets of ImageNet; one may be given alone.
            data: Further contents of the history.

        Raises:
            ModelError: If a class does not exist, or if no class would be left.
        """
        if not (names := self._meant(names)):
            return self
        rows = [row for row, name in enumerate(self.class_names) if name not in {*names}]
        if not rows:
            raise ModelError(
                f"without {number_of(len({*names}), 'class')}, none would be left",
                remedy="Leave at least one class.",
            )
        left = self.of_rows(rows)
        if self.memory is not None:
            left = replace(left, memory=self.memory.without({*names}))
        temperature = left.facts.temperature and left.facts.temperature.unmeasured
        left = replace(left, facts=replace(left.facts, temperature=temperature, known=None))
        return left.after(Change.now("remove", tuple(dict.fromkeys(names)), data=data))

    def rename(self, new_names: Mapping[str, str], data: Mapping[str, Any] = {}) -> Model:
        """Return the model with renamed classes; its history records the new names.

        Args:
            new_names: New names by present name.
            data: Further contents of the history.

        Raises:
            ModelError: If a class does not exist, two classes would have the same name, or a name
                cannot be printed.
        """
        if not isinstance(new_names, Mapping):
            raise TypeError(f"rename takes {{'old name': 'new name'}}, got {new_names!r}")
        new_names = dict(zip(self._meant([*new_names]), map(str, new_names.values()), strict=True))
        names = tuple(new_names.get(name, name) for name in self.facts.class_names)
        for name in new_names.values():
            check_name(name, "two classes would have it" if names.count(name) > 1 else "")
        renamed = replace(
            self,
            facts=replace(self.facts, class_names=names),
            linear=replace(self.head, class_names=names),
            memory=None if self.memory is None else self.memory.renamed(names),
        )
        told = {"names": dict(new_names)}
        return renamed.after(Change.now("rename", [*new_names.values()], data=data, settings=told))

    def _meant(self, names: str | Sequence[Any]) -> list[str]:
        names = [names] if isinstance(names, str) else [*map(str, names)]
        found = {name: meant(name, self.class_names) for name in names}
        if unknown := [name for name, classes in found.items() if len(classes) != 1]:
            words = by_word(self.class_names)
            close = [words[each] for each in get_close_matches(plain(unknown[0]), words)]
            near = ", ".join(map(in_words, found[unknown[0]] or dict.fromkeys(close)))
            raise ModelError(
                f"the model has no class {examples(unknown)}"
                + (f"; its classes of similar names: {near}" if near else ""),
                remedy="`clinit model show MODEL` lists its classes.",
            )
        return [found[name][0] for name in names]

    def logits(self, features: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows classes"]:
        """Return the logits of features, divided by the temperature, in float64."""
        divisor = 1.0 if self.facts.temperature is None else self.facts.temperature.value
        found = np.asarray(features, dtype=np.float64) @ self.head.weight.T.astype(np.float64)
        return np.asarray((found + self.head.bias) / divisor)

    def predict(
        self,
        inputs: Any,
        *,
        top: int = 5,
        reject: Rejection | str | None = None,
        batch_size: int = 64,
        workers: int | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> list[Prediction]:
        """Return a prediction per image or row of features, in order.

        Args:
            inputs: An image file or a folder of images, or a list of files; a PIL image; pixels
                (height, width, 3) of uint8; or features, as an array (rows, dim) or a vector, a
                file of arrays or a feature cache. One image is computed at once.
            top: Maximum number of classes per image, at least 1.
            reject: Rule by which images belong to no class, or the name of a score, as in
                `Rejection.at_rate`; None: no rule.
            batch_size: Images per forward pass.
            workers: Threads that read and decode; default: the CPUs that the process may use.
            max_pixels: Maximum number of pixels; a larger image counts as unreadable.

        Raises:
            ClinitError: If the model cannot classify such inputs, or they cannot be read. An
                unreadable image among several does not stop the others.
        """
        from clinit.headtrain.model.predict import Rejection, predict

        if isinstance(reject, str):
            reject = Rejection.at_rate(self, reject)
        reading = Reading(batch_size=batch_size, workers=workers, max_pixels=max_pixels)
        return predict(self, inputs, top=top, reject=reject, reading=reading)

    def evaluate(
        self, images: Any, *, labels: Any = None, against: Model | AnyPath | None = None
    ) -> Evaluation:
        """Measure the model on labelled images or features.

        Args:
            images: A folder of images, whose class folders are named as the classes, or features:
                a cache, a file of arrays, a `FeatureSet`.
            labels: A table of labels for images, or a file of labels for an array file.
            against: Another model, or its path, which classifies the same images.

        Raises:
            ClinitError: If the images cannot be read, or none is of a class of the model.
        """
        from clinit.headtrain.model.evaluation import Questions, evaluate

        asked = Questions.of(images, labels)
        asked.check(self)
        return evaluate(self, asked, against=None if against is None else _model_at(against))

    def add(
        self,
        given: Any,
        *,
        old: Any = None,
        more: bool = False,
        labels: AnyPath | None = None,
        features: AnyPath | None = None,
        **settings: Any,
    ) -> Addition:
        """Add classes, as `clinit add`; nothing is written before `Addition.save`.

        Args:
            given: A folder with a folder of images per class, or features: a cache, a file of
                arrays, a `FeatureSet`, a `Source`, or a pair of an array (rows, dim) and labels.
            old: Features of old classes, used in place of the memory of the model; or statistics of
                old classes that the model does not remember. Their order decides which are held
                out.
            more: Add images to classes that the model already contains.
            labels: A table of labels for images, or a file of labels for an array file.
            features: Folder for the features of images, from which an interrupted call resumes;
                default: they are not kept.
            settings: Fields of `clinit.headtrain.model.settings.AddConfig`.

        Raises:
            ValueError: If a setting is wrong.
            ClinitError: If the model, the images or the features cannot be used.
        """
        from clinit.headtrain.model.add import add

        kind: ArrivalKind = "more" if more else "add"
        inputs, heard = _inputs_of(self, given, labels, features), list[Event]()
        config = AddConfig.by_name(settings)
        added = add(self, inputs, config, kind=kind, old=old, observe=heard.append)
        return replace(added, heard=tuple(e.warning for e in heard if isinstance(e, Warned)))

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
        return remember(self, inputs, RememberConfig.by_name(settings), ignore)

    def merge(self, other: Model | AnyPath, **settings: Any) -> Addition:
        """Return this model with the classes of another, as `clinit model merge`.

        Args:
            other: A model of the same network or features, or its path; it is not changed.
            settings: Fields of `clinit.headtrain.model.settings.AddConfig`.

        Raises:
            ModelError: If the networks or a shared class differ, or if a model does not remember
                the training rows of all classes that the other model lacks.
        """
        from clinit.headtrain.model.add import merge

        return merge(self, _model_at(other), AddConfig.by_name(settings))

    def save(self, out: AnyPath, *, overwrite: bool = False) -> Written:
        """Write the model to `out`.

        Args:
            out: A folder; or a file in .safetensors, in which a network has no memory; or, for a
                model without a network, a head file in .npz or .safetensors.
            overwrite: Replace an existing model.

        Raises:
            ClinitError: If `out` exists and may not be replaced, or cannot be written.
        """
        from clinit.headtrain.model.storage import write_model

        return write_model(self, Path(out), overwrite=overwrite)

    def export(self, out: AnyPath, *, onnx: bool = False, overwrite: bool = False) -> Written:
        """Write the model as `save` does, or its head alone.

        Args:
            out: As in `save`; a name in .npz means the head alone.
            onnx: Also write the network as ONNX into the folder, and compare both on noise.
            overwrite: As in `save`.
        """
        from clinit.headtrain.model.storage import write_model

        model = self
        if Path(out).suffix == ".npz":
            backbone = described(self.facts.fingerprint)
            memory = self.memory and replace(self.memory, backbone=backbone)
            model = replace(self, linear=self.head, memory=memory, engine=None)
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
    from clinit.headtrain.model.storage import read_model

    return read_model(Path(path), device=device)


load_model = load


def _model_at(given: Model | AnyPath) -> Model:
    return given if isinstance(given, Model) else load(given)


def check_name(name: str, why: str = "") -> None:
    """Refuse the name of a class that is not printable, or for another reason."""
    if not (name.strip() and is_text(name) and visible(name) == name):
        why = "it is blank or not printable"
    if why:
        raise ModelError(
            f"{visible(name)!r} cannot be the name of a class: {why}",
            remedy="Choose another name; `clinit model show MODEL` lists its classes.",
        )


def described(fingerprint: Fingerprint) -> dict[str, str]:
    """Return what features depend on; their type and the version of timm may differ."""
    fields = fingerprint.without_rows.fields
    return {name: text for name, text in fields.items() if name not in ("dtype", "timm")}


def _inputs_of(
    model: Model, given: Any, labels: AnyPath | None = None, features: AnyPath | None = None
) -> Inputs:
    """Return what is given as inputs: features as they are, a path of images as `ImageFolder`."""
    from clinit.headtrain.model.inputs import features_in, is_features

    if is_features(given):
        return features_in(given, labels)
    model.need_engine()
    from clinit.headtrain.model.images import ImageFolder

    place = None if features is None else Path(features)
    return ImageFolder(
        root=Path(given), labels=None if labels is None else str(labels), features=place
    )
