"""Frozen pretrained timm networks as feature extractors.

The penultimate feature of an image x is `forward_head(forward_features(x), pre_logits=True)`:
what the model's own linear classifier reads. That this is so is checked on a batch before
anything is extracted; a model where classifier(penultimate) is not the model's output is refused.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import timm
import timm.data
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from clinit.errors import BackboneError
from clinit.extract.cache.head import Head
from clinit.extract.network.model_args import check_model_args
from clinit.extract.network.weights import failure, network_of_file, pretrained_network
from clinit.machine import choose_device

AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneConfig:
    """Which network, and how it computes."""

    name: str
    """timm's name, with its tag where it has one: `convnextv2_femto.fcmae_ft_in1k`."""
    weights: Path | None = None
    """A safetensors or PyTorch checkpoint; None downloads timm's pretrained weights."""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `timm.create_model`, see `check_model_args`."""
    device: str = "cpu"
    """`cpu`, `cuda` or `cuda:<index>`."""
    autocast: str = "off"
    """`off`, `bfloat16` or `float16`: the arithmetic of the forward pass."""

    def __post_init__(self) -> None:
        if self.autocast not in ("off", *AUTOCAST_DTYPES):
            raise ValueError(f"autocast must be off, bfloat16 or float16, got {self.autocast!r}")

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return the context in which the network computes."""
        if self.autocast == "off":
            return nullcontext()
        device_type = torch.device(self.device).type
        return torch.autocast(device_type, dtype=AUTOCAST_DTYPES[self.autocast])


@dataclass(frozen=True, slots=True, eq=False)
class Backbone:
    """A network in evaluation mode, with its classifier set apart."""

    config: BackboneConfig
    network: nn.Module
    head: Head
    """The pretrained classifier; its class names are those stored with the weights, if any."""
    data_config: Mapping[str, Any]
    """timm's preprocessing of this model."""
    weights_sha256: str
    """SHA-256 over the names, types and bytes of the state dict, whatever the file format."""

    @property
    def dim(self) -> int:
        """Width of the penultimate feature."""
        return self.head.dim

    @torch.inference_mode()
    def features(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """Return the penultimate features of normalised images, in float32."""
        with self.config.arithmetic():
            maps = self.network.forward_features(batch)  # type: ignore[operator]
            features: Tensor = self.network.forward_head(  # type: ignore[operator]
                maps, pre_logits=True
            )
        return features.float()

    @torch.inference_mode()
    def logits(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch rows"]:
        """Return the network's own output for normalised images, in float32."""
        with self.config.arithmetic():
            logits: Tensor = self.network(batch)
        return logits.float()


def load_backbone(config: BackboneConfig) -> Backbone:
    """Build the network, load its weights and set its classifier apart.

    Raises:
        BackboneError: If timm does not know the name, an argument does not belong to an
            architecture, the weights cannot be had, do not fit or are not finite, or the
            classifier is not one linear layer.
        MachineError: If the memory does not suffice.
        DeviceError: If the device is absent.
    """
    choose_device(config.device)
    _check_name(config.name)
    try:
        check_model_args(config.model_args)
    except ValueError as error:
        raise BackboneError(
            f"{config.name}: {error}", remedy="Give other arguments, or build it without them."
        ) from error
    if config.weights is None:
        network = pretrained_network(config.name, config.model_args)
    else:
        network = network_of_file(config.name, config.weights, config.model_args)
    classifier = network.get_classifier()  # type: ignore[operator]
    if not isinstance(classifier, nn.Linear):
        raise BackboneError(
            f"the classifier of {config.name} is {type(classifier).__name__}, not one linear layer",
            remedy="Choose a backbone whose classifier is torch.nn.Linear, such as"
            " convnextv2_femto, vit_tiny_patch16_224 or resnet18.",
        )
    network.eval().requires_grad_(False)
    weight = classifier.weight.detach().float().numpy().copy()
    bias = np.zeros(len(weight), np.float32)
    if classifier.bias is not None:
        bias = classifier.bias.detach().float().numpy().copy()
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise BackboneError(
            f"{config.weights or 'timm'}: the classifier of {config.name} holds values that are not"
            " finite",
            remedy="Give an undamaged checkpoint with `--weights FILE`; training has probably"
            " diverged.",
        )
    names = None if config.weights is None else _stored_names(config.weights, len(weight))
    sha256 = state_sha256(network.state_dict())
    # Channels last: 1.3 to 1.6 times the rate of convolutions on a CPU too, the same for others.
    network.to(device=config.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    data_config = timm.data.resolve_model_data_config(network)
    return Backbone(config, network, Head(weight, bias, names), data_config, sha256)


def _check_name(name: str) -> None:
    """Refuse all but a model of timm's own, with its tag or without: no address, no folder."""
    architecture, _, tag = name.partition(".")
    if architecture not in timm.list_models():
        near = difflib.get_close_matches(architecture, timm.list_models(), n=5)
        raise BackboneError(
            f"timm {timm.__version__} has no model {name!r}",
            remedy=f"Models like it: {', '.join(near)}." if near else "See `timm.list_models()`.",
        )
    try:
        known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError as error:
        tags = timm.list_models(f"{architecture}.*", pretrained=True)
        raise BackboneError(
            f"timm {timm.__version__} has no weights {tag!r} of {architecture}",
            remedy=f"Those that it has: {', '.join(tags) or 'none'}. Or give a checkpoint with"
            f" `--weights FILE`, and the name {architecture}.",
        ) from error
    if isinstance(getattr(known, "classifier", None), tuple | list):
        raise BackboneError(
            f"{name} averages two classifiers", remedy="Choose its variant without distillation."
        )


def check_penultimate(backbone: Backbone, batch: Float[Tensor, "batch 3 height width"]) -> None:
    """Check on one batch that the classifier of the penultimate features is the model's output.

    Raises:
        BackboneError: If it is not, or if the features are not finite.
    """
    try:
        features, expected = backbone.features(batch), backbone.logits(batch)
    except Exception as error:  # whatever a size or an argument leads to
        size = " x ".join(map(str, batch.shape[2:]))
        raise failure(
            error,
            f"{backbone.config.name} cannot process images of {size} pixels",
            "Leave out `--input-size`, or check `--model-arg`.",
        ) from error
    if features.shape[1:] != (backbone.dim,) or not torch.isfinite(features).all():
        raise BackboneError(
            f"{backbone.config.name} gives penultimate features of shape {tuple(features.shape)},"
            f" expected {backbone.dim} finite numbers per image",
            remedy="Choose another backbone, or check the weights and `--autocast`.",
        )
    weight = torch.from_numpy(backbone.head.weight).to(features.device)
    found = features @ weight.T + torch.from_numpy(backbone.head.bias).to(features.device)
    scale = float(expected.abs().max().clamp(min=1))
    # Autocast rounds the model's own logits, but not the product formed here.
    tolerance = 1e-3 if backbone.config.autocast == "off" else 3e-2
    if found.shape != expected.shape or not (
        float((found - expected).abs().max()) <= tolerance * scale  # not true of NaN either
    ):
        raise BackboneError(
            f"the classifier of {backbone.config.name}, applied to its penultimate features,"
            " does not give the model's own logits",
            remedy="Choose another backbone: something follows or surrounds its classifier.",
        )


def _stored_names(path: Path, rows: int) -> tuple[str, ...] | None:
    if path.suffix != ".safetensors":
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
        found = json.loads(metadata.get("class_names", "null"))
        if "clinit_model" in metadata:  # a model of `clinit export` is a backbone too
            found = json.loads(metadata["clinit_model"])["class_names"]
        names = msgspec.convert(found, tuple[str | int, ...] | None)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        return None  # whoever wrote the weights names no classes in our way
    if names is not None and len(names) != rows:
        raise BackboneError(
            f"{path} names {len(names)} classes, its classifier has {rows} rows",
            remedy="Give the right names with `--head-classes FILE`, one per line.",
        )
    return None if names is None else tuple(map(str, names))


def state_sha256(state: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over the names, types, shapes and bytes of a state dict."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().view(-1)
        if values.stride(0) != 1:  # a single number that was spread out counts as contiguous
            values = values.clone(memory_format=torch.contiguous_format)
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def body_sha256(network: nn.Module) -> str:
    """Return the SHA-256 of a network without its classifier: what its features depend on."""
    classifier = {id(each) for each in network.get_classifier().parameters()}  # type: ignore[operator]
    state = network.state_dict(keep_vars=True)
    return state_sha256({name: v for name, v in state.items() if id(v) not in classifier})
