"""Facts about a model: the classes of its rows, their history, their probabilities.

The metadata of a model file contains them as JSON under `clinit_model`, next to the facts about its
network. The file of a head alone contains them in its `origin`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from clinit.errors import ModelError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.head import Top1
from clinit.files.documents import Count, DocumentKind, content_sha256
from clinit.headtrain.heads.temperature import Activation, Temperature
from clinit.machine import now

Word = Annotated[str, Meta(max_length=64)]
Action = Literal["run", "add", "replace", "more", "merge", "remove", "rename", "remember"]


NOT_PROBABILISTIC = ("ncm", "ridge", "simplecil")
"""Methods whose logits are scores: only their order is meaningful, not their softmax."""
FEW = 30
"""With fewer test images, accuracies are given as counts: 30 images give an error of 9 points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step in the life of a model: a training run, or a later change of its classes."""

    action: Action
    date: Word
    """UTC in ISO format, to the second."""
    clinit: Word
    """Version of clinit."""
    task: int | None = None
    """The task in which the classes arrived; None if they arrived in several tasks or in none."""
    classes: tuple[str, ...]
    """Affected classes, in the order of their rows; renamed classes by their new names."""
    images: Mapping[str, Count] = field(default_factory=dict)
    """Training images by class name."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Origin of the images: caches, roots, digests of manifests, the run."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Mapping[str, Top1] = field(default_factory=dict)
    """On `old` classes, on `earlier` added ones that are computed anew, on `new` classes, on `all`,
    and on `task 1`, … if a run had several tasks; groups that were not measured are absent."""

    @classmethod
    def now(
        cls, action: Action, classes: Sequence[str], accuracy: Mapping[str, Top1] = {}, **more: Any
    ) -> Change:
        """Return a change made now, by this version of clinit."""
        return cls(
            action=action,
            date=now(),
            clinit=version("clinit"),
            classes=tuple(classes),
            accuracy={name: part for name, part in accuracy.items() if part.total},
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Scores of held-out or left-out images, below which an image seems to be of no class."""

    rule: str
    """The score that best tells images from images of classes that the head would lack."""
    images: Count
    levels: Mapping[str, tuple[float, ...]]
    """By score: k % of the images have a lower score than the number k, rounded down; k < 100."""


DOCUMENT = DocumentKind(
    title="the description of a model",
    format="clinit-model/4",
    older=("clinit-model/3", "clinit-model/2", "clinit-model/1"),
    error=ModelError,
    remedy="Export the run again with this version of clinit.",
)
METADATA = "clinit_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model in its own file."""

    backbone: str = ""
    """timm's name of the network, or the name under which features were imported; empty if
    unknown."""
    class_names: tuple[str, ...]
    """One per row of the classifier."""
    tasks: tuple[int, ...]
    """The task in which each class arrived; 0 for the classes of the base."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    """Fingerprint of the features that the head was trained on; empty if unknown."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The run: id, configuration, final accuracies."""
    history: tuple[Change, ...] = ()
    """All changes of the classes, oldest first; empty in files of earlier versions."""
    temperature: Temperature | None = None
    """Temperature by which the trained rows of the classifier were divided, and its effect on the
    probabilities; None if the rows were not divided."""
    known: Known | None = None
    """Scores of images of the classes; None if they were not measured for these classes."""
    activation: Activation = "softmax"
    """What makes probabilities of logits: `softmax` over classes, or a `sigmoid` for each class."""
    digest: str = ""
    """SHA-256 of the description, which names the weights too; empty unless read from a file."""

    def __post_init__(self) -> None:
        if len(self.tasks) != len(self.class_names):
            raise ValueError(f"{len(self.tasks)} tasks for {len(self.class_names)} class names")

    @property
    def num_classes(self) -> int:
        """Number of rows of the classifier."""
        return len(self.class_names)

    @property
    def assumed(self) -> str | None:
        """What names were assumed for rows without names; None if the names are known."""
        source = self.record.get("assumed_names", "").replace("rows", "classes")
        return f"the weights name no classes: assumed those of {source}" if source else None

    @property
    def name(self) -> str:
        """The network, or whose features the head reads, in words."""
        return self.backbone or "a head on features"

    def since(self, task: int) -> str:
        """Return when the classes of a task came: the day they were added, or the task of a run."""
        days = (each.date[:10] for each in self.history if each.task == task)
        return next(days, f"task {task}") if task else "base"

    @property
    def parents(self) -> Mapping[str, str]:
        """Digests of the models that the last change was made of, with their paths then."""
        return self.history[-1].data.get("parents", {}) if self.history else {}

    @property
    def leaves_untested(self) -> bool:
        """Whether the last addition tested no image of some of the other classes."""
        last = next((each for each in self.history[::-1] if "tested_classes" in each.data), None)
        others = self.num_classes - (len(last.classes) if last else 0)
        return last is not None and last.data["tested_classes"] < others

    @property
    def caution(self) -> str | None:
        """Why the probabilities cannot be trusted; None if they can.

        If a temperature was measured, they can. Otherwise the training of the head decides.
        """
        if self.temperature is not None and self.temperature.measured_rows:
            return None
        config = self.record.get("config")
        settings = config if isinstance(config, Mapping) else {}
        if (method := settings.get("method")) in NOT_PROBABILISTIC:
            origin = f"solved ({method})"
        elif settings.get("loss") == "mse":
            origin = "trained with squared error"
        else:
            return None
        return (
            f"the head was {origin}, not with cross entropy: the order of the classes counts,"
            " their probabilities do not"
        )

    @property
    def probabilities(self) -> str:
        """The temperature in words, or why there is none; empty if nothing is known of it."""
        if self.temperature is not None:
            return self.temperature.describe()
        if not (self.history or self.fingerprint.weights):
            return ""
        if not self.history or self.history[-1].task is None:
            return "not calibrated; `clinit add` does it with tested images of old classes"
        which = "no image is tested"
        if len(self.history[-1].classes) < self.num_classes:
            which = "no image of old classes is tested (`clinit remember` or `--old` gives some)"
        return f"perhaps too high or low: {which}"


def accuracy_in_words(part: Top1 | None) -> str:
    """Return the accuracy in percent; for few images, as counts, which suggest no precision."""
    if part is None or part.percent is None:
        return "-"
    return f"{part.correct} of {part.total}" if part.total < FEW else f"{part.percent:.2f} %"


def parse_facts(text: str, path: Path) -> tuple[ModelFacts, dict[str, Any]]:
    """Return the facts in a sealed description, found in the file at `path`, and all its fields.

    Raises:
        ModelError: If the facts are damaged.
    """
    origin = f"the description in {path}"
    content = DOCUMENT.parse(text, origin=origin)
    content["digest"] = content_sha256(content)
    content["fingerprint"] = {"fields": content.get("fingerprint")}
    return DOCUMENT.convert(content, ModelFacts, origin=origin), content
