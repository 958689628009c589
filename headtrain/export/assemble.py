"""A backbone and a head as one network, as timm builds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import timm
import torch
from torch import nn

from clinit.errors import BackboneError, HeadError
from clinit.extract.backbone import Backbone
from clinit.extract.head import Head
from clinit.extract.transform import Transform

TOLERANCE = 1e-5
"""Between the network's logits and features times head, relative to what is added up in them."""


def assemble(backbone: Backbone, head: Head) -> nn.Module:
    """Build the network of `backbone` with `head` as its classifier, as timm builds it.

    Raises:
        HeadError: If the head reads features of another width.
        BackboneError: If the network cannot hold the head.
    """
    if head.dim != backbone.dim:
        raise HeadError(
            f"the head reads features of width {head.dim}, {backbone.config.name} gives"
            f" {backbone.dim}",
            remedy="Export the run with the cache that it was trained on: `--base CACHE`.",
        )
    name = _classifier_name(backbone.network)
    state = dict(backbone.network.state_dict())
    state[f"{name}.weight"] = torch.from_numpy(head.weight.astype(np.float32))
    if state.pop(f"{name}.bias", None) is not None:
        state[f"{name}.bias"] = torch.from_numpy(head.bias.astype(np.float32))
    elif head.bias.any():
        raise BackboneError(
            f"the classifier of {backbone.config.name} has no bias, the head has one",
            remedy="Choose a backbone whose classifier has a bias.",
        )
    config = backbone.config
    network: nn.Module = timm.create_model(
        config.name, pretrained=False, num_classes=head.num_classes, **model_args(backbone)
    )
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
def check_same_logits(
    network: nn.Module, backbone: Backbone, head: Head, transform: Transform
) -> None:
    """Check, on seeded noise, that `network` computes `head` on the features of `backbone`.

    Raises:
        BackboneError: If it does not.
    """
    exact = replace(backbone, config=replace(backbone.config, autocast="off"))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, 3, *transform.crop), generator=generator, dtype=torch.uint8)
    images = transform.normalise(noise)
    features = exact.features(images).numpy()
    expected = features @ head.weight.T + head.bias
    scale = np.abs(features) @ np.abs(head.weight).T + np.abs(head.bias)
    # In the memory format of the backbone: another one rounds otherwise in every layer.
    found = network.to(memory_format=torch.channels_last)(images).numpy()
    if found.shape != expected.shape or (abs(found - expected) > TOLERANCE * scale.max()).any():
        raise BackboneError(
            f"{backbone.config.name} with the head in place of its classifier does not give the"
            " logits of the head on its features",
            remedy="Choose another backbone: something follows or surrounds its classifier.",
        )


def model_args(backbone: Backbone) -> dict[str, Any]:
    """Return the keyword arguments of `timm.create_model`, the number of classes left out."""
    return {k: v for k, v in backbone.config.model_args.items() if k != "num_classes"}


def _classifier_name(network: nn.Module) -> str:
    classifier = network.get_classifier()  # type: ignore[operator]
    names = (name for name, module in network.named_modules() if module is classifier)
    return str(next(names))
