"""A classifier in use: what it is, and how its classes are removed, renamed and reordered.

It is a head with named classes, perhaps a memory of their images, and perhaps an engine, the
network that makes features of images. Without an engine, features are given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from clinit.errors import ModelError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Head
from clinit.extract.dataset.known import MAX_PIXELS
from clinit.files.text import is_text
from clinit.headtrain.heads.temperature import divided
from clinit.headtrain.model.facts import Change, ModelFacts
from clinit.headtrain.model.memory import Memory
from clinit.words import examples, visible

AnyPath = str | os.PathLike[str]
Logits = Float[np.ndarray, "images classes"]
AnsweredBatch = tuple[Sequence[int], Logits, Mapping[int, str]]
"""Numbers of images, their logits, and by number why an image cannot be read."""
Own = TypeVar("Own", bound="Classifier")  # types are checked at run time, which knows no `Self`
MODEL_FILE, MEMORY_FILE = "model.safetensors", "memory.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How images are read and computed; nothing of it changes the predictions."""

    batch_size: int = 64
    """Images per forward pass."""
    workers: int | None = None
    """Threads that read and decode; None: the CPUs that the process may use."""
    max_pixels: int = MAX_PIXELS
    """Maximum number of pixels; a larger image counts as unreadable."""
    compile: str = "auto"
    """Whether the network computes as one program (`extract.network.compiled`)."""
    on_images: Callable[[int], object] = lambda done: None
    """Called after every batch with the number of finished images."""
    on_note: Callable[[str], object] = lambda note: None
    """Called with a note on `compile`, if it is `auto`."""


AS_USUAL = Reading()


@runtime_checkable
class Engine(Protocol):
    """What turns images into logits: a timm network, or an ONNX graph."""

    @property
    def transform(self) -> Any:
        """The transform of the images (`clinit.extract.network.transform.Transform`)."""
        ...

    @property
    def device(self) -> str:
        """Where it computes."""
        ...

    @property
    def depends_on(self) -> dict[str, str]:
        """The facts that the features depend on, as in a memory."""
        ...

    def answered(self, images: Sequence[Any], reading: Reading) -> Iterable[AnsweredBatch]:
        """Yield the logits of images (files, PIL images, arrays of pixels), in batches.

        Raises:
            ModelError: If the network cannot process the images.
            MachineError: If the memory does not suffice, or the storage fails.
        """
        ...

    def fingerprint(self, dtype: str) -> Fingerprint:
        """Return the fingerprint of features that are stored as `dtype`."""
        ...

    def with_heads(self, heads: Sequence[Head]) -> Engine:
        """Return the engine with the logits of these heads, one after the other."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A classifier in use; `clinit.Model` adds the verbs that read and write."""

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

    def __repr__(self) -> str:
        return f"<Model {self.origin}: {self.facts}, memory {self.memory}>"

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

    def without_network(self: Own) -> Own:
        """Return the head alone, which classifies features of the network."""
        backbone = described(self.facts.fingerprint)
        memory = self.memory and replace(self.memory, backbone=backbone)
        return replace(self, linear=self.head, memory=memory, engine=None)

    def with_rows_of(self: Own, *others: Own) -> Own:
        """Return a model whose network gives the logits of its head, and then of other heads."""
        if self.engine is None:
            return self
        heads = [divided(each.head, each.facts.temperature) for each in (self, *others)]
        return replace(self, engine=self.engine.with_heads(heads))

    def after(self: Own, change: Change) -> Own:
        """Return the model with one more change, and with the digest of the model before it."""
        known = {self.facts.digest: self.origin} if self.facts.digest else {}
        parents = {"parents": known, "total": self.facts.num_classes, **change.data}
        history = (*self.facts.history, replace(change, data=parents))
        return replace(self, facts=replace(self.facts, history=history, digest=""))

    def knowing(self: Own, fingerprint: Fingerprint) -> Own:
        """Return the model with the fingerprint of its features, if that was unknown."""
        if self.engine is not None or self.facts.fingerprint.fields or not fingerprint.fields:
            return self
        found = fingerprint.without_rows
        facts = replace(self.facts, fingerprint=found, backbone=str(found.backbone or ""))
        memory = self.memory and replace(self.memory, backbone=described(found))
        return replace(self, facts=facts, memory=memory)

    def of_rows(self: Own, rows: Sequence[int]) -> Own:
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

    def without(self: Own, names: Sequence[str]) -> Own:
        """Return the model without the named classes.

        Raises:
            ModelError: If a class does not exist, or if no class would be left.
        """
        self._check_known(names)
        gone = set(names)
        left = [row for row, name in enumerate(self.facts.class_names) if name not in gone]
        if not left:
            raise ModelError(
                f"without these {len(gone):,} classes, none would be left",
                remedy="Leave at least one class.",
            )
        return self.of_rows(left)

    def remove(self: Own, names: Sequence[str], data: Mapping[str, Any] = {}) -> Own:
        """Return the model without the named classes; its history records the removal.

        Args:
            names: Class names.
            data: Further contents of the history.

        Raises:
            ModelError: If a class does not exist, or if no class would be left.
        """
        left = self.without(names)
        temperature = left.facts.temperature and left.facts.temperature.unmeasured
        left = replace(left, facts=replace(left.facts, temperature=temperature, known=None))
        return left.after(Change.now("remove", tuple(dict.fromkeys(names)), data=data))

    def rename(self: Own, new_names: Mapping[str, str], data: Mapping[str, Any] = {}) -> Own:
        """Return the model with renamed classes; its history records the new names.

        Args:
            new_names: New names by present name.
            data: Further contents of the history.

        Raises:
            ModelError: If a class does not exist, two classes would have the same name, or a name
                cannot be printed.
        """
        self._check_known(list(new_names))
        names = tuple(new_names.get(name, name) for name in self.facts.class_names)
        for name in new_names.values():
            is_printed = name.strip() and is_text(name) and visible(name) == name
            if not is_printed or names.count(name) > 1:
                why = "two classes would have it" if is_printed else "it is blank or not printable"
                raise ModelError(
                    f"{visible(name)!r} cannot be the name of a class: {why}",
                    remedy="Choose another name; `clinit model show MODEL` lists its classes.",
                )
        renamed = replace(
            self,
            facts=replace(self.facts, class_names=names),
            linear=replace(self.head, class_names=names),
            memory=None if self.memory is None else self.memory.renamed(names),
        )
        settings = {"names": dict(new_names)}
        return renamed.after(
            Change.now("rename", [*new_names.values()], data=data, settings=settings)
        )

    def _check_known(self, names: Sequence[str]) -> None:
        known = set(self.facts.class_names)
        if unknown := [name for name in names if name not in known]:
            near = get_close_matches(unknown[0], self.facts.class_names, n=3)
            raise ModelError(
                f"the model has no class {examples(unknown)}"
                + (f"; its classes of similar names: {', '.join(near)}" if near else ""),
                remedy="`clinit model show MODEL` lists its classes.",
            )

    def logits(self, features: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows classes"]:
        """Return the logits of features, divided by the temperature, in float64."""
        divisor = 1.0 if self.facts.temperature is None else self.facts.temperature.value
        found = features.astype(np.float64) @ self.head.weight.T.astype(np.float64)
        return np.asarray((found + self.head.bias) / divisor)


def refused_size(error: Exception, crop: Sequence[int]) -> ModelError:
    """Return the error to raise if a network fails on images of the size in its file."""
    size = " x ".join(map(str, crop))
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return ModelError(
        f"the network of the model cannot process images of {size} pixels, the size in its file:"
        f" {why}",
        remedy="Export the run again.",
    )


def described(fingerprint: Fingerprint) -> dict[str, str]:
    """Return what features depend on; their type and the version of timm may differ."""
    fields = fingerprint.without_rows.fields
    return {name: text for name, text in fields.items() if name not in ("dtype", "timm")}


def same_network(one: Classifier, other: Classifier) -> bool:
    """Return whether two models compute the same features of images."""
    has_both = one.engine is not None and other.engine is not None
    return has_both and bool(one.depends_on) and one.depends_on == other.depends_on


M = TypeVar("M", bound=Classifier)
