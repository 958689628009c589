"""A model at work in PyTorch: images in, class names with probabilities out.

The network computes in the arithmetic of the extraction that the head was trained on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from clinit.errors import ModelError
from clinit.extract.backbone import Backbone, BackboneConfig, load_backbone
from clinit.extract.device import choose_device
from clinit.extract.loader import ImageBatch
from clinit.headtrain.export.model_file import ModelFacts, read_facts
from clinit.headtrain.export.model_folder import model_file_of, read_whole
from clinit.headtrain.export.prediction import Predictor
from clinit.headtrain.export.probabilities import caution
from clinit.machine import out_of_memory
from clinit.words import contrast_digests


@dataclass(frozen=True, slots=True, eq=False)
class Classifier(Predictor):
    """A network with named classes."""

    facts: ModelFacts
    backbone: Backbone
    """The network on its device, its classifier included."""

    def __repr__(self) -> str:
        return f"<Classifier: {self.facts} on {self.backbone.config.device}>"

    def logits(self, batch: ImageBatch) -> Float[Tensor, "images classes"]:
        """Return the answers of the network to resized pixels.

        Raises:
            ModelError: If it does not compute on them.
        """
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

    @property
    def pins_memory(self) -> bool:
        """Whether batches are for a CUDA device."""
        return self.backbone.config.device.startswith("cuda")

    @property
    def caution(self) -> str | None:
        """Why the probabilities are not to be taken at their word, None where they are."""
        return caution(self.facts)


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
    path = Path(path)
    return read_whole(path, lambda: _load_model(path, device))


def _load_model(path: Path, device: str) -> Classifier:
    path = model_file_of(path)
    if path.suffix == ".onnx":
        raise ModelError(
            f"{path} is an ONNX file, not one of weights",
            remedy="`clinit predict` reads it; in Python, `load_onnx` of"
            " clinit.headtrain.export.onnx_classifier.",
        )
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
        found, exported = contrast_digests(backbone.weights_sha256, facts.weights)
        raise ModelError(
            f"the weights in {path} are not those that were exported: SHA-256 {found} instead of"
            f" {exported}",
            remedy="Export the run again; this file is damaged.",
        )
    return Classifier(facts, backbone)
