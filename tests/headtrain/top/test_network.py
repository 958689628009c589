import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from clinit.errors import BackboneError
from clinit.headtrain.protocol.study.parts import Top
from clinit.headtrain.top.families import steps_of
from clinit.headtrain.top.network import (
    Cut,
    add_lora,
    check_cut,
    classifier_of,
    cut_network,
    layers,
    make_plastic,
    merge,
)
from tests.headtrain.top.networks import SMALL, build, images, seeded


@torch.no_grad()
def own_features(network: Any, batch: Tensor) -> Tensor:
    features: Tensor = network.forward_head(network.forward_features(batch), pre_logits=True)
    return features


@pytest.mark.parametrize("key", SMALL)
def test_the_two_halves_give_the_features_of_the_network_wherever_it_is_cut(key: str) -> None:
    network, batch = build(key), images()
    expected = own_features(network, batch)
    assert float(expected.std()) > 0
    blocks = [step for step in steps_of(network) if step.block is not None]
    for top_blocks in range(1, len(blocks) + 1):
        halves = cut_network(network, top_blocks)
        with torch.no_grad():
            assert torch.equal(halves.top(halves.trunk(batch)), expected)
    halves = cut_network(network.requires_grad_(False), 2)
    activations = halves.trunk(batch)
    for block in halves.blocks:
        for parameter in network.get_submodule(block).parameters():
            parameter.data += 0.5 * torch.rand_like(parameter)
    assert torch.equal(halves.trunk(batch), activations)
    assert not torch.allclose(halves.top(activations), expected)
    assert torch.equal(halves.top(activations), own_features(network, batch))


def test_a_downsampling_in_front_of_the_first_plastic_block_belongs_to_the_trunk() -> None:
    behind, inside = (cut_network(build("convnextv2"), blocks) for blocks in (2, 3))
    assert behind.blocks == ("stages.3.blocks.0", "stages.3.blocks.1")
    assert inside.blocks[0] == "stages.2.blocks.0"
    # A stage halves the sides: 32 pixels are 2 x 2 before the last downsampling, 1 x 1 behind.
    assert behind.trunk(images()).shape == (3, 12, 1, 1)
    assert inside.trunk(images()).shape == (3, 8, 2, 2)


@pytest.mark.parametrize("top_blocks", [0, 7])
def test_more_or_fewer_blocks_than_there_are_are_refused(top_blocks: int) -> None:
    with pytest.raises(BackboneError, match=f"{top_blocks} top blocks.*has 6 blocks"):
        cut_network(build("convnext"), top_blocks)


def test_a_network_of_another_family_is_refused() -> None:
    with pytest.raises(BackboneError, match="GhostNet") as caught:
        cut_network(timm.create_model("ghostnet_050"), 2)
    assert "clinit train-head" in caught.value.remedy


def test_a_cut_that_does_not_give_the_features_is_refused() -> None:
    network = build("resnet-basic")
    halves = cut_network(network, 1)
    for wrong in (
        lambda x: halves.top(x) + 0.01,
        lambda x: halves.top(x)[:, :3],
        lambda x: halves.top(x) * float("nan"),
    ):
        with pytest.raises(BackboneError, match=r"in front of layer4\.0"):
            check_cut(Cut(halves.trunk, wrong, halves.blocks), network, images())


@pytest.mark.parametrize("full_rank", [False, True])
@pytest.mark.parametrize("key", ["convnextv2", "convnext", "vit", "resnet-bottleneck", "swin"])
def test_what_is_plastic_changes_and_nothing_else(key: str, full_rank: bool) -> None:
    """Of a few steps with weight decay over every parameter, frozen ones too."""
    network = build(key).train()
    before = copy.deepcopy(network.state_dict())
    names_of_all = [name for name, _ in network.named_parameters()]
    blocks = cut_network(network, 2).blocks
    names = layers(network, blocks)
    if not full_rank:
        add_lora(network, names, Top(rank=2), seeded())
    make_plastic(network, blocks, full_rank=full_rank)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.05, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images()), torch.tensor([0, 1, 2])).backward()
        optimizer.step()
    merge(network)
    after = network.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    (classifier,) = (n for n, m in network.named_modules() if m is classifier_of(network))
    plastic = tuple(f"{name}." for name in (*blocks, classifier))
    inside = {name for name in names_of_all if name.startswith(plastic)}
    head = {f"{classifier}.weight", f"{classifier}.bias"}
    assert changed == (inside if full_rank else {f"{name}.weight" for name in names} | head)
