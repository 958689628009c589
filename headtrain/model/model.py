"""A model: a network, its named classes, and its memory of their images.

Classes are removed, renamed and reordered without training. Before a network with other classes is
written, its logits are compared with features times head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
import timm
import torch
from torch import nn

from clinit.errors import BackboneError, ModelError
from clinit.extract.cache.head import Head
from clinit.extract.head_names import ASSUMED, name_rows
from clinit.extract.network.backbone import Backbone, body_sha256
from clinit.extract.work.run import ExtractConfig, Network, load_network
from clinit.files.text import is_text
from clinit.headtrain.model.facts import Change, ModelFacts
from clinit.headtrain.model.memory import Memory
from clinit.words import examples, visible

TOLERANCE = 1e-5
"""Largest difference between logits of the network and features times head, relative to the sum of
absolute terms."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model that classes can be added to, or removed from."""

    facts: ModelFacts
    backbone: Backbone
    """The network on its device, with its original classifier."""
    head: Head
    """The classifier as it was trained, with class names.

    Its logits are the logits of the network times the temperature, so that the rows of added
    classes match the scale of the trained rows.
    """
    memory: Memory | None
    """None if the model remembers nothing."""
    origin: str
    """Path of the model, or name of the network, for messages and the history."""

    def __repr__(self) -> str:
        return f"<Model {self.origin}: {self.facts}, memory {self.memory}>"

    @property
    def depends_on(self) -> dict[str, str]:
        """The facts that the features of the model depend on, as in its memory."""
        return {
            "body": body_sha256(self.backbone.network),
            "transform": self.facts.transform.describe(),
            "autocast": self.facts.autocast,
        }

    def network(self, dtype: str) -> Network:
        """Return the network for an extraction.

        Features do not depend on the classifier: models that differ only in their classes have
        features with the same fingerprint.

        Args:
            dtype: Dtype in which features are stored.
        """
        config = replace(self.backbone.config, model_args=self.facts.model_args)
        body = replace(self.backbone, config=config, weights_sha256=self.depends_on["body"])
        return replace(Network.of(body, self.facts.transform, dtype), backbone=self.backbone)

    def after(self, change: Change) -> Model:
        """Return the model with one more change in its history."""
        history = (*self.facts.history, change)
        return replace(self, facts=replace(self.facts, history=history))

    def of_rows(self, rows: Sequence[int]) -> Model:
        """Return the model with the classes `rows` only, in this order."""
        picked = list(rows)
        names = tuple(self.facts.class_names[row] for row in picked)
        tasks = tuple(self.facts.tasks[row] for row in picked)
        weight, bias = self.head.weight[picked], self.head.bias[picked]
        return replace(
            self,
            facts=replace(self.facts, class_names=names, tasks=tasks),
            head=replace(self.head, weight=weight, bias=bias, class_names=names),
            memory=None if self.memory is None else self.memory.of_rows(picked),
        )

    def without(self, names: Sequence[str]) -> Model:
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

    def removed(self, names: Sequence[str], data: Mapping[str, Any]) -> Model:
        """Return the model without the named classes; its history records the removal.

        Raises:
            ModelError: If a class does not exist, or if no class would be left.
        """
        left = self.without(names)
        temperature = left.facts.temperature and left.facts.temperature.unmeasured
        left = replace(left, facts=replace(left.facts, temperature=temperature, known=None))
        return left.after(Change.now("remove", tuple(dict.fromkeys(names)), data=data))

    def renamed(self, new_names: Mapping[str, str], data: Mapping[str, Any]) -> Model:
        """Return the model with renamed classes; its history records the new names.

        Raises:
            ModelError: If a class does not exist, two classes would have the same name, or a name
                cannot be printed.
        """
        self._check_known(list(new_names))
        names = tuple(new_names.get(name, name) for name in self.facts.class_names)
        for name in new_names.values():
            is_printed = name.strip() and is_text(name) and visible(name) == name
            if not is_printed or names.count(name) > 1:
                raise ModelError(
                    f"{visible(name)!r} cannot be the name of a class: it is blank or not"
                    " printable, or two classes would have it",
                    remedy="Choose another name; `clinit model show MODEL` lists its classes.",
                )
        renamed = replace(
            self,
            facts=replace(self.facts, class_names=names),
            head=replace(self.head, class_names=names),
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


def stock_model(config: ExtractConfig) -> Model:
    """Return a pretrained network of timm as a model that remembers nothing.

    Args:
        config: Backbone and transform; `head_classes` lists the classes, if their names are not
            stored with the weights and are not the classes of ImageNet-1K.

    Returns:
        The model; it has no class if the network has no classifier.

    Raises:
        BackboneError: If the network cannot be loaded or used.
        ModelError: If the classes of its rows are unknown.
    """
    network = load_network(config)
    nothing = np.zeros((0, network.backbone.dim), np.float32)
    head = Head(nothing, nothing.sum(axis=1), ())
    record: dict[str, str] = {}
    if network.backbone.head is not None:
        head, source = name_rows(network.backbone.head, (), config.head_classes)
        record = {"assumed_names": source} if source == ASSUMED else {}
    if head.class_names is None:
        raise ModelError(
            f"the {head.num_classes:,} rows of {config.backbone.name} have no class names",
            remedy="Give a file with one name per row: `--head-classes FILE`.",
        )
    facts = ModelFacts(
        backbone=config.backbone.name,
        model_args=model_args(network.backbone),
        class_names=head.class_names,
        tasks=(0,) * head.num_classes,
        transform=network.transform,
        autocast=config.backbone.autocast,
        weights=network.backbone.weights_sha256,
        fingerprint=network.fingerprint,
        record=record,
    )
    return Model(facts, network.backbone, head, None, config.backbone.name)


def assemble(backbone: Backbone, head: Head) -> nn.Module:
    """Build the network of `backbone` with `head` as its classifier, as timm builds it.

    Raises:
        BackboneError: If the network cannot take the head.
    """
    config = backbone.config
    network: nn.Module = timm.create_model(
        config.name, pretrained=False, num_classes=head.num_classes, **model_args(backbone)
    )
    classifier = network.get_classifier()  # type: ignore[operator]
    has_bias = getattr(classifier, "bias", None) is not None
    if not isinstance(classifier, nn.Linear) or head.bias.any() > has_bias:
        raise BackboneError(
            f"timm gives {config.name} no linear classifier with a bias, and the head has one",
            remedy="Export the head alone: `clinit export RUN --out FILE.npz`.",
        )
    (name,) = (name for name, module in network.named_modules() if module is classifier)
    # Without the layer that the head replaces, if there is one.
    state = {
        parameter: value
        for parameter, value in backbone.network.state_dict().items()
        if not parameter.startswith(f"{name}.")
    }
    state[f"{name}.weight"] = torch.from_numpy(head.weight.astype(np.float32))
    if has_bias:
        state[f"{name}.bias"] = torch.from_numpy(head.bias.astype(np.float32))
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise BackboneError(
            f"{config.name} with {head.num_classes:,} classes differs in more than its classifier:"
            f" {' '.join(str(error).split())[:300]}",
            remedy="Choose another backbone.",
        ) from error
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def checked_network(model: Model, head: Head) -> nn.Module:
    """Return the network of a model with `head`, checked on seeded noise.

    Raises:
        BackboneError: If the network cannot take the head, or computes other logits.
    """
    network = assemble(model.backbone, head)
    backbone, transform = model.backbone, model.facts.transform
    exact = replace(backbone, config=replace(backbone.config, autocast="off"))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, 3, *transform.crop), generator=generator, dtype=torch.uint8)
    images = transform.normalise(noise)
    features = exact.features(images).numpy()
    expected = features @ head.weight.T + head.bias
    scale = np.abs(features) @ np.abs(head.weight).T + np.abs(head.bias)
    # In the memory format of the backbone, because other formats round differently.
    found = network.to(memory_format=torch.channels_last)(images).numpy()
    if found.shape != expected.shape or (abs(found - expected) > TOLERANCE * scale.max()).any():
        raise BackboneError(
            f"{backbone.config.name} with the head in place of its classifier does not give the"
            " logits of the head on its features",
            remedy="Choose another backbone: something follows or surrounds its classifier.",
        )
    return network


def model_args(backbone: Backbone) -> dict[str, Any]:
    """Return the keyword arguments of `timm.create_model`, without the number of classes."""
    return {k: v for k, v in backbone.config.model_args.items() if k != "num_classes"}
