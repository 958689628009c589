"""A model loaded from its file, which classifies images with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.extract.network.backbone import Backbone
from clinit.extract.network.compiled import Compile, on_its_way
from clinit.headtrain.model.facts import ModelFacts
from clinit.headtrain.model.predict import AnyPath, Predictor
from clinit.headtrain.model.reading import read_facts, read_network


@dataclass(frozen=True, slots=True, eq=False)
class Classifier(Predictor):
    """A network in PyTorch with named classes."""

    facts: ModelFacts
    backbone: Backbone
    """The network with its classifier, on its device."""

    def __repr__(self) -> str:
        return f"<Classifier: {self.facts} on {self.device}>"

    @property
    def device(self) -> str:
        """Device of the network."""
        return self.backbone.config.device

    def logits(
        self, images: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images classes"]:
        """Return the logits of normalised images."""
        if self.backbone.program is None:
            return self.backbone.logits(images)
        head, features = self.backbone.head, self.backbone.features(images)
        assert head is not None
        weight, bias = (torch.from_numpy(each).to(self.device) for each in (head.weight, head.bias))
        return features @ weight.T + bias

    def on_its_way(
        self, wanted: Compile, images: int, batch_size: int, on_note: Callable[[str], object]
    ) -> Classifier:
        """Return the classifier with a compiled network, if compiling saves time."""
        backbone = on_its_way(
            self.backbone,
            self.facts.transform,
            wanted,
            device=torch.device(self.device),
            batch_size=batch_size,
            images=images,
            on_note=on_note,
        )
        return replace(self, backbone=backbone)


def load_model(path: AnyPath, *, device: str = "auto") -> Classifier:
    """Load a model written by `clinit export`.

    Args:
        path: The model file, or its folder.
        device: `auto` (CUDA if available), `cpu`, `cuda` or `cuda:<index>`.

    Raises:
        ModelError: If there is no model at `path`, or if it has changed since it was written.
        BackboneError: If this version of timm cannot build the network.
        DeviceError: If the device is absent.
    """
    facts = read_facts(path := Path(path))
    return Classifier(facts, read_network(path, facts, device))
