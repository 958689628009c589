"""The families of timm networks that can be cut between blocks, one file each."""

from __future__ import annotations

from torch import nn

from clinit.errors import BackboneError
from clinit.headtrain.top.network.families.beit import BEIT
from clinit.headtrain.top.network.families.convnext import CONVNEXT
from clinit.headtrain.top.network.families.efficientnet import EFFICIENTNET
from clinit.headtrain.top.network.families.eva import EVA
from clinit.headtrain.top.network.families.interface import Family, Step
from clinit.headtrain.top.network.families.resnet import RESNET
from clinit.headtrain.top.network.families.staged import STAGED
from clinit.headtrain.top.network.families.vit import VIT

FAMILIES: tuple[Family, ...] = (CONVNEXT, VIT, EVA, BEIT, RESNET, EFFICIENTNET, STAGED)


def family_of(network: nn.Module) -> Family:
    """Return the family that a network belongs to.

    Raises:
        BackboneError: If it belongs to none; the message names the supported ones.
    """
    for family in FAMILIES:
        if isinstance(network, family.networks):
            return family
    served = "; ".join(f"{family.name} ({family.example})" for family in FAMILIES)
    raise BackboneError(
        f"the blocks of a {type(network).__name__} are not known, so it cannot be cut",
        remedy=f"Choose a backbone of one of these families: {served};"
        " or train its head alone with `clinit train-head`.",
    )


__all__ = ["FAMILIES", "Family", "Step", "family_of"]
