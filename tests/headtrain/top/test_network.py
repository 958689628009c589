import copy
import math
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
    LowRank,
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


LAYERS = {
    "convnextv2": ("mlp.fc1", "mlp.fc2"),
    "convnext-linear-mlp": ("mlp.fc1", "mlp.fc2"),
    "vit": ("mlp.fc1", "mlp.fc2"),
    "vit-gated": ("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2"),
    "resnet-basic": ("conv1", "conv2"),
    "resnet-bottleneck": ("conv1", "conv3"),
    "mobilenetv2": ("conv_pw", "conv_pwl"),
    "swin": ("mlp.fc1", "mlp.fc2"),
    "nfnet": ("conv1", "conv3"),
}
KEYS = (*LAYERS, "mobilenetv4", "byobnet", "efficientnet")


def with_updates(network: Any, *, zero: bool = False, **options: Any) -> Any:
    """Give the last two blocks updates, whose B is not zero unless asked for."""
    add_lora(network, layers(network, cut_network(network, 2).blocks), Top(**options), seeded())
    for module in updates(network) if not zero else ():
        module.b.data = torch.randn(module.b.shape, generator=seeded(2))
    return network


def updates(network: nn.Module) -> list[LowRank]:
    return [module for module in network.modules() if isinstance(module, LowRank)]


@torch.no_grad()
def logits(network: nn.Module) -> Tensor:
    output: Tensor = network(images())
    return output


@pytest.mark.parametrize("key", KEYS)
def test_an_update_starts_as_the_identity_and_merging_keeps_the_logits(key: str) -> None:
    plain, network = build(key), with_updates(build(key), zero=True)
    assert len(updates(network)) >= 3
    assert all(bool(module.a.any()) for module in updates(network))
    assert torch.equal(logits(network), logits(plain))
    for module in updates(network):
        module.b.data = torch.randn(module.b.shape, generator=seeded(2))
    expected = logits(network)
    assert not torch.allclose(expected, logits(plain), atol=1e-3)
    merge(network)
    torch.testing.assert_close(logits(network), expected, rtol=1e-5, atol=1e-5)
    assert [*map(type, network.modules())] == [*map(type, plain.modules())]
    assert [*network.state_dict()] == [*plain.state_dict()]
    assert [n for n, _ in network.named_parameters()] == [n for n, _ in plain.named_parameters()]


def test_gradients_of_the_factors_follow_the_chain_rule() -> None:
    """With G = dL/dW: dL/dA = alpha / r B^T G, dL/dB = alpha / r G A^T; here of full rank."""
    layer = nn.Linear(5, 4).double()
    add_lora(nn.Sequential(layer), ("0",), Top(rank=4, alpha=3.0), seeded())
    (update,) = updates(layer)
    update.b.data = torch.randn(4, 4, generator=seeded(1)).double()
    x = torch.randn(7, 5, generator=seeded(2)).double()
    layer(x).square().sum().backward()
    with torch.no_grad():
        gradient = 2 * layer(x).T @ x
    torch.testing.assert_close(update.a.grad, 3 / 4 * update.b.detach().T @ gradient)
    torch.testing.assert_close(update.b.grad, 3 / 4 * gradient @ update.a.detach().T)


def test_autocast_does_not_round_the_sum_so_that_merging_gives_what_ran() -> None:
    network = with_updates(build("vit"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = logits(network)
    merge(network)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logits(network), before)


def test_a_has_the_variance_of_loralib() -> None:
    layer, reference = nn.Linear(300, 40), torch.empty(2_000, 300)
    add_lora(nn.Sequential(layer), ("0",), Top(rank=2_000), seeded())
    nn.init.kaiming_uniform_(reference, a=math.sqrt(5), generator=seeded())
    a = updates(layer)[0].a.detach()
    assert float(a.var()) == pytest.approx(float(reference.var()), rel=0.02)
    assert abs(float(a.mean())) < 1e-3
    beyond = float((a.abs() > 1 / math.sqrt(300)).float().mean())
    # P(|normal| > sqrt(3) sigma) = 8.3 %; a uniform draw has no tail.
    assert beyond == pytest.approx(0.083, abs=0.003)


@pytest.mark.parametrize(
    "to", [torch.float64, pytest.param("cuda", marks=pytest.mark.gpu)], ids=str
)
def test_the_same_seed_draws_the_same_factors_everywhere(to: Any) -> None:
    first, other = (updates(with_updates(build("vit").to(each))) for each in (torch.float32, to))
    assert len(first) == 4
    for one, two in zip(first, other, strict=True):
        assert torch.equal(one.a, two.a.cpu().float())
    assert not torch.equal(first[0].a, first[2].a)


@pytest.mark.parametrize("key", LAYERS)
def test_the_linear_layers_of_the_last_two_blocks_are_found(key: str) -> None:
    network = build(key)
    blocks = cut_network(network, 2).blocks
    assert layers(network, blocks) == tuple(f"{b}.{layer}" for b in blocks for layer in LAYERS[key])


def test_blocks_whose_linear_layers_are_not_known_are_refused_for_low_rank() -> None:
    block = timm.models.vision_transformer.ParallelScalingBlock
    network = timm.create_model("vit_tiny_patch16_224", depth=1, block_fn=block)
    with pytest.raises(BackboneError, match=r"blocks\.0 is a ParallelScalingBlock") as caught:
        layers(network, ("blocks.0",))
    assert "--full-rank" in caught.value.remedy
