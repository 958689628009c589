from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from clinit.errors import BackboneError
from clinit.headtrain.top.network import Cut, block_names, check_cut, cut_network

CONVNEXT = {"depths": (1, 2, 1, 2), "dims": (4, 8, 8, 12)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 3, "num_heads": 2}
SWIN = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 2,
    "embed_dim": 8,
    "depths": (1, 1, 1, 2),
    "num_heads": (1, 1, 2, 2),
}
RESNET = {"layers": (1, 2, 1, 1), "channels": (4, 4, 8, 8), "stem_width": 4}

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
    "vit-no-class-token": (
        "vit_tiny_patch16_224",
        VIT | {"class_token": False, "global_pool": "avg"},
    ),
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
    "eva": ("eva02_tiny_patch14_224", VIT | {"embed_dim": 16}),
    "eva-mixed-rope": ("vit_small_patch16_rope_mixed_224", VIT | {"embed_dim": 16}),
    "dinov3": ("vit_small_patch16_dinov3", VIT | {"embed_dim": 16}),
    "beit": ("beit_base_patch16_224", VIT),
    "beit-shared-bias": (
        "beit_base_patch16_224",
        VIT | {"use_shared_rel_pos_bias": True, "use_abs_pos_emb": True},
    ),
    "vit-relpos": ("vit_srelpos_small_patch16_224", VIT),
    "vit-relpos-class-token": ("vit_relpos_small_patch16_224", VIT | {"class_token": True}),
    "swin": ("swin_tiny_patch4_window7_224", SWIN),
    "swinv2": ("swinv2_tiny_window8_256", SWIN),
    "davit": (
        "davit_tiny",
        {"depths": (1, 1, 2), "embed_dims": (8, 8, 16), "num_heads": (1, 1, 2)},
    ),
    "regnet": ("regnetx_002", {}),
    "nfnet": ("test_nfnet", {}),
    "byobnet": ("test_byobnet", {}),
    "coatnet": ("test_coatnet", {"img_size": 32}),
    "mambaout": ("test_mambaout", {}),
}


def build(name: str, **arguments: Any) -> nn.Module:
    """A network in which no norm, bias or running statistic is left at one or zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: nn.Module = timm.create_model(name, num_classes=5, **arguments)
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point() and tensor.ndim <= 1:
                tensor.data += 0.2 * torch.rand_like(tensor)
    return network.eval()


def small(key: str) -> nn.Module:
    name, arguments = SMALL[key]
    return build(name, **arguments)


def images(size: int = 32) -> Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


def own_features(network: Any, batch: Tensor) -> Tensor:
    with torch.no_grad():
        features: Tensor = network.forward_head(network.forward_features(batch), pre_logits=True)
    return features


@pytest.mark.parametrize("key", SMALL)
def test_the_two_halves_give_the_features_of_the_network_wherever_it_is_cut(key: str) -> None:
    network, batch = small(key), images()
    expected = own_features(network, batch)
    assert float(expected.std()) > 0
    for top_blocks in range(1, len(block_names(network)) + 1):
        halves = cut_network(network, top_blocks)
        with torch.no_grad():
            assert torch.equal(halves.top(halves.trunk(batch)), expected)
        check_cut(halves, network, batch)


@pytest.mark.parametrize("key", SMALL)
def test_the_top_is_what_the_plastic_blocks_compute_and_the_trunk_what_they_do_not(
    key: str,
) -> None:
    network, batch = small(key), images()
    network.requires_grad_(False)
    halves = cut_network(network, 2)
    activations, features = halves.trunk(batch), halves.top(halves.trunk(batch))
    for block in halves.blocks:
        for parameter in network.get_submodule(block).parameters():
            parameter.data += 0.5 * torch.rand_like(parameter)
    assert torch.equal(halves.trunk(batch), activations)
    assert not torch.allclose(halves.top(activations), features)
    assert torch.equal(halves.top(activations), own_features(network, batch))


def test_a_downsampling_in_front_of_the_first_plastic_block_belongs_to_the_trunk() -> None:
    network: Any = small("convnextv2")
    behind, inside = cut_network(network, 2), cut_network(network, 3)
    assert behind.blocks == ("stages.3.blocks.0", "stages.3.blocks.1")
    assert inside.blocks[0] == "stages.2.blocks.0"
    # A stage halves the sides: 32 pixels are 2 x 2 before the last downsampling, 1 x 1 behind.
    assert behind.trunk(images()).shape == (3, 12, 1, 1)
    assert inside.trunk(images()).shape == (3, 8, 2, 2)


def test_rotary_positions_follow_a_square_grid_of_patches_of_any_size() -> None:
    network: Any = small("dinov3")
    halves = cut_network(network, 2)
    check_cut(halves, network, images(48))
    with torch.no_grad():
        maps = network.forward_features(images(48))
        expected = network.forward_head(maps, pre_logits=True)
        found = halves.top(halves.trunk(images(48)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_rotary_positions_of_images_that_are_not_square_are_refused() -> None:
    network = small("dinov3")
    with pytest.raises(BackboneError, match=r"^8 patches do not form a square grid") as caught:
        check_cut(cut_network(network, 2), network, torch.randn(1, 3, 32, 16))
    assert "dynamic_img_size=False" in caught.value.remedy


@pytest.mark.parametrize("top_blocks", [0, -1, 7])
def test_more_or_fewer_blocks_than_there_are_is_refused(top_blocks: int) -> None:
    with pytest.raises(
        BackboneError,
        match=rf"^{top_blocks} top blocks were asked for; this ConvNeXt has 6 blocks$",
    ) as caught:
        cut_network(small("convnext"), top_blocks)
    assert caught.value.remedy == "Give `--top-blocks` from 1 to 6."


def test_a_network_of_another_family_is_refused_with_the_families_that_are_served() -> None:
    network = timm.create_model("ghostnet_050")
    with pytest.raises(BackboneError, match=r"^the blocks of a GhostNet are not known") as caught:
        cut_network(network, 2)
    for word in (
        "ConvNeXt",
        "vision transformer",
        "resnet18",
        "MobileNet",
        "DINOv3",
        "Swin",
        "clinit train-head",
    ):
        assert word in caught.value.remedy


def test_a_cut_that_does_not_give_the_features_is_refused() -> None:
    network = small("resnet-basic")
    halves = cut_network(network, 1)
    for wrong in (
        Cut(halves.trunk, lambda x: halves.top(x) + 0.01, halves.blocks),
        Cut(halves.trunk, lambda x: halves.top(x)[:, :3], halves.blocks),
        Cut(halves.trunk, lambda x: halves.top(x) * float("nan"), halves.blocks),
    ):
        with pytest.raises(
            BackboneError, match=r"cut in front of layer4\.0, does not give its own features"
        ):
            check_cut(wrong, network, images())
