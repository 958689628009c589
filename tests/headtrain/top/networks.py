"""Small networks of timm, of each family that can be cut."""

from typing import Any

import timm
import torch
from torch import Tensor, nn

CONVNEXT = {"depths": (1, 2, 1, 2), "dims": (4, 8, 8, 12)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 3, "num_heads": 2}
SWIN = {
    **{"img_size": 32, "patch_size": 2, "window_size": 2, "embed_dim": 8},
    **{"depths": (1, 1, 1, 2), "num_heads": (1, 1, 2, 2), "drop_path_rate": 0.0},
}
RESNET = {"layers": (1, 2, 1, 1), "channels": (4, 4, 8, 8), "stem_width": 4}
DAVIT = {"depths": (1, 1, 2), "embed_dims": (8, 8, 16), "num_heads": (1, 1, 2)}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "convnext": ("convnext_atto", CONVNEXT),
    "convnext-linear-mlp": ("convnext_tiny", CONVNEXT),
    "convnextv2": ("convnextv2_femto", CONVNEXT),
    "convnext-norm-before-pool": ("convnext_tiny", CONVNEXT | {"head_norm_first": True}),
    "convnext-hidden-head": ("convnext_tiny", CONVNEXT | {"head_hidden_size": 6}),
    "vit": ("vit_tiny_patch16_224", VIT),
    "vit-average": ("vit_tiny_patch16_224", VIT | {"global_pool": "avg"}),
    "vit-fc-norm": ("vit_tiny_patch16_224", VIT | {"global_pool": "avg", "fc_norm": True}),
    "vit-attention-pool": ("vit_tiny_patch16_224", VIT | {"global_pool": "map"}),
    "vit-registers": ("vit_tiny_patch16_224", VIT | {"reg_tokens": 2, "init_values": 0.1}),
    "vit-norm-pre": ("vit_tiny_patch16_224", VIT | {"pre_norm": True, "drop_rate": 0.5}),
    "deit3": ("deit3_small_patch16_224", VIT),
    "resnet-basic": ("resnet18", RESNET),
    "resnet-bottleneck": ("resnet50", RESNET | {"drop_rate": 0.5}),
    "resnext": ("resnext50_32x4d", RESNET | {"cardinality": 2, "base_width": 64}),
    "seresnet": ("seresnet18", RESNET),
    "efficientnet": ("test_efficientnet", {}),
    "efficientnet-layer-norm": ("test_efficientnet_ln", {}),
    "mobilenetv2": ("mobilenetv2_035", {}),
    "mobilenetv3": ("lcnet_035", {}),
    "mobilenetv4": ("mobilenetv4_conv_small_035", {}),
    "vit-gated": ("aimv2_large_patch14_224", VIT | {"embed_dim": 16}),
    "swin": ("swin_tiny_patch4_window7_224", SWIN),
    "swinv2": ("swinv2_tiny_window8_256", SWIN),
    "davit": ("davit_tiny", DAVIT),
    "regnet": ("regnetx_002", {}),
    "nfnet": ("test_nfnet", {}),
    "byobnet": ("test_byobnet", {}),
    "coatnet": ("test_coatnet", {"img_size": 32}),
    "mambaout": ("test_mambaout", {}),
}


def build(key: str) -> Any:
    """A network in which no norm, bias, gain or running statistic is left at one or zero."""
    name, arguments = SMALL[key]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: Any = timm.create_model(name, num_classes=5, **arguments)
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point() and tensor.numel() == max(tensor.shape, default=1):
                tensor.data += 0.2 * torch.rand_like(tensor)
        nn.init.normal_(network.get_classifier().weight)
    return network.eval()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(size: int = 32) -> Tensor:
    return torch.randn(3, 3, size, size, generator=seeded(1))
