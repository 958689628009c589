"""A classifier in use: a network, the names of its classes, and what it remembers of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from clinit.errors import ModelError
from clinit.extract.backbone import Backbone
from clinit.extract.dataset.decode import decoder_version
from clinit.extract.fingerprint import Fingerprint
from clinit.extract.head import Head
from clinit.extract.head_names import name_rows
from clinit.extract.run import ExtractConfig, Network, load_network
from clinit.headtrain.export.classifier import load_model
from clinit.headtrain.export.memory import Memory, check_backbone
from clinit.headtrain.export.memory_file import memory_in
from clinit.headtrain.export.model_file import ModelFacts, features_of
from clinit.headtrain.export.model_folder import MEMORY_FILE, read_whole
from clinit.headtrain.stream.source import Source


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model that classes can be added to."""

    facts: ModelFacts
    backbone: Backbone
    """The network on its device, its classifier included."""
    memory: Memory | None
    """None where it remembers nothing."""
    origin: str
    """Where it is from, for messages and its history."""

    def __repr__(self) -> str:
        return f"<Model {self.origin}: {self.facts}, memory {self.memory}>"

    @property
    def head(self) -> Head:
        """The classifier as it was trained, with the names of its classes.

        Its logits are those of the network times the temperature, so that rows of added classes
        start at the scale that the training left the old ones at.
        """
        exported = replace(self.backbone.head, class_names=self.facts.class_names)
        temperature = self.facts.temperature
        return exported if temperature is None else temperature.multiplied(exported)

    @property
    def depends_on(self) -> dict[str, str]:
        """What the features of the model depend on, as its memory says it."""
        return features_of(self.facts, self.backbone)

    def network(self, dtype: str) -> Network:
        """Return the network as an extraction needs it.

        Its features do not depend on the classifier: models with other classes on the same body
        have features of the same fingerprint.

        Args:
            dtype: How features are stored.
        """
        import timm

        fingerprint = Fingerprint.of_network(
            backbone=self.facts.backbone,
            weights=self.depends_on["body"],
            model_args=self.facts.model_args,
            timm=timm.__version__,
            transform=self.facts.transform.describe(),
            decoder=decoder_version(),
            dtype=dtype,
            autocast=self.facts.autocast,
        )
        return Network(self.backbone, self.facts.transform, fingerprint)


def check_features(model: Model, source: Source) -> None:
    """Check that the features of a cache are those of a model.

    They are, where they were computed by its network, or by the one that its base head was trained
    on.

    Raises:
        ModelError: If neither is the case; the message names what differs.
    """
    found = source.fingerprint.without_rows
    own = model.network(found.dtype or "float16").fingerprint
    differing = [found.differences(each.without_rows) for each in (model.facts.fingerprint, own)]
    if all(differing):
        raise ModelError(
            f"the features in {source.path} are not of the network of {model.origin}: they differ"
            f" in {', '.join(map(str, differing[0]))}",
            remedy="Give the cache of this network, or the images: `clinit remember`.",
        )


def open_model(path: str | os.PathLike[str], *, device: str = "auto") -> Model:
    """Open a model folder or file of `clinit export`.

    Raises:
        ModelError: If there is none, or it or its memory is damaged or of another backbone.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    path = Path(path)
    return read_whole(path, lambda: _open_model(path, device))


def _open_model(path: Path, device: str) -> Model:
    classifier = load_model(path, device=device)
    memory = memory_in(path, classifier.facts)
    model = Model(classifier.facts, classifier.backbone, memory, str(path))
    if memory is None:
        return model
    if memory.dim != model.head.dim:
        raise ModelError(
            f"{path / MEMORY_FILE} remembers features of width {memory.dim}, the model's are"
            f" {model.head.dim} wide",
            remedy="Remember the classes anew: `clinit remember MODEL IMAGES --out NEW`.",
        )
    check_backbone(model.depends_on, memory.backbone)
    return model


def stock_model(config: ExtractConfig) -> Model:
    """Return a pretrained network of timm as a model that remembers nothing.

    Args:
        config: Backbone and transform; `head_classes` names its rows, where they are not stored
            with the weights and not those of ImageNet-1K.

    Raises:
        BackboneError: If it cannot be had or does not serve.
        ModelError: If nobody says what its rows stand for.
    """
    network = load_network(config)
    head, _ = name_rows(network.backbone.head, (), config.head_classes)
    if head.class_names is None:
        raise ModelError(
            f"the {head.num_classes:,} rows of {config.backbone.name} have no class names",
            remedy="Give a file with one name per row: `--head-classes FILE`.",
        )
    facts = ModelFacts(
        backbone=config.backbone.name,
        model_args={k: v for k, v in config.backbone.model_args.items() if k != "num_classes"},
        class_names=head.class_names,
        tasks=(0,) * head.num_classes,
        transform=network.transform,
        autocast=config.backbone.autocast,
        weights=network.backbone.weights_sha256,
        fingerprint=network.fingerprint,
        record={},
    )
    return Model(facts, network.backbone, None, config.backbone.name)
