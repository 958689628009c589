import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from clinit.headtrain.top.lora import add_lora, layers, merge
from clinit.headtrain.top.network import Shares, classifier_of, cut_network, make_plastic, shares

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "convnextv2": ("convnextv2_femto", {"depths": (1, 1, 1, 2), "dims": (4, 8, 8, 12)}),
    "convnext": ("convnext_tiny", {"depths": (1, 1, 2, 1), "dims": (4, 8, 8, 12)}),
    "vit": (
        "vit_tiny_patch16_224",
        {"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 3, "num_heads": 2},
    ),
    "resnet-basic": ("resnet18", {"layers": (1, 1, 1, 2), "channels": (4, 4, 8, 8)}),
    "mobilenetv2": ("mobilenetv2_035", {}),
}


def build(key: str) -> nn.Module:
    name, arguments = SMALL[key]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: nn.Module = timm.create_model(name, num_classes=5, **arguments)
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point() and tensor.ndim <= 1:
                tensor.data += 0.2 * torch.rand_like(tensor)
    return network.train()


def low_rank(network: nn.Module) -> tuple[str, ...]:
    """Add updates to the last two blocks, set what learns, return the layers' names."""
    blocks = cut_network(network, 2).blocks
    names = layers(network, blocks)
    add_lora(network, names, rank=2, generator=torch.Generator().manual_seed(0))
    make_plastic(network, blocks, full_rank=False)
    return names


def train(network: nn.Module, steps: int = 3) -> None:
    """A few steps with weight decay over every parameter, frozen ones too."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.05, weight_decay=0.5)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), torch.tensor([0, 1, 2, 3])).backward()
        optimizer.step()


def changed(network: nn.Module, before: dict[str, Tensor]) -> set[str]:
    after = network.state_dict()
    assert after.keys() == before.keys()
    return {name for name in before if not torch.equal(after[name], before[name])}


@pytest.mark.parametrize("key", SMALL)
def test_a_low_rank_run_changes_the_linear_layers_and_the_classifier_and_nothing_else(
    key: str,
) -> None:
    network = build(key)
    before = copy.deepcopy(network.state_dict())
    names = low_rank(network)
    train(network)
    merge(network)
    (classifier,) = (n for n, m in network.named_modules() if m is classifier_of(network))
    assert changed(network, before) == {
        *(f"{name}.weight" for name in names),
        f"{classifier}.weight",
        f"{classifier}.bias",
    }


@pytest.mark.parametrize("key", SMALL)
def test_a_full_rank_run_changes_all_of_the_plastic_blocks_and_nothing_below(key: str) -> None:
    network = build(key)
    before = copy.deepcopy(network.state_dict())
    blocks = cut_network(network, 2).blocks
    make_plastic(network, blocks, full_rank=True)
    learning = {name for name, p in network.named_parameters() if p.requires_grad}
    inside = {
        name
        for name, _ in network.named_parameters()
        if name.startswith(tuple(f"{b}." for b in blocks))
    }
    classifier = {id(p) for p in classifier_of(network).parameters()}
    assert learning - inside == {n for n, p in network.named_parameters() if id(p) in classifier}
    assert inside <= learning
    train(network)
    assert changed(network, before) == learning


def test_batch_norms_keep_their_statistics_and_dropout_is_off() -> None:
    network = timm.create_model(
        "resnet18", layers=(1, 1, 1, 1), channels=(4, 4, 8, 8), num_classes=5, drop_rate=0.5
    )
    make_plastic(network.train(), cut_network(network, 2).blocks, full_rank=True)
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(network(images), network(images))
    assert int(network.get_buffer("bn1.num_batches_tracked")) == 0


@pytest.mark.parametrize("key", SMALL)
def test_the_shares_count_what_really_changes(key: str) -> None:
    network = build(key)
    blocks = cut_network(network, 2).blocks
    before = copy.deepcopy(network.state_dict())
    parameters = {name for name, _ in network.named_parameters()}
    total = sum(before[name].numel() for name in parameters)
    low_rank(network)
    found = shares(network, blocks)
    train(network)
    merge(network)
    assert found.plastic == sum(before[name].numel() for name in changed(network, before))
    assert found.total == total

    make_plastic(network, blocks, full_rank=True)
    full = shares(network, blocks)
    assert full.trained == full.plastic == full.block == found.block
    assert full.total == total


def test_the_factors_count_as_trained_with_their_own_size() -> None:
    network = build("vit")
    low_rank(network)
    rank, hidden, dim, classes = 2, 48, 12, 5
    factors = 2 * (rank * (dim + hidden) + rank * (hidden + dim))
    head = classes * dim + classes
    found = shares(network, cut_network(network, 2).blocks)
    assert found.trained == factors + head
    assert found.plastic == 2 * 2 * dim * hidden + head


def test_the_last_two_blocks_of_femto_with_a_head_of_1365_classes_are_54_6_per_cent() -> None:
    """The paper's 55 %: all parameters of two blocks, norms included, and of the head.

    The weights that a low-rank run can change are 53.7 %; it trains 16.6 % as many numbers.
    """
    network = timm.create_model("convnextv2_femto", num_classes=1365)
    blocks = cut_network(network, 2).blocks
    assert blocks == ("stages.3.blocks.0", "stages.3.blocks.1")
    block = (
        (49 * 384 + 384)  # depthwise 7 x 7
        + 2 * 384  # norm
        + (1536 * 384 + 1536)  # fc1
        + 2 * 1536  # GRN
        + (384 * 1536 + 384)  # fc2
    )
    head = 1365 * 384 + 1365
    make_plastic(network, blocks, full_rank=True)
    full = shares(network, blocks)
    assert full == Shares(2 * block + head, 2 * block + head, 2 * block + head, 5_373_765)
    assert round(100 * full.block / full.total, 1) == 54.6

    add_lora(network, layers(network, blocks), generator=torch.Generator())
    make_plastic(network, blocks, full_rank=False)
    low = shares(network, blocks)
    assert low.trained == 4 * 48 * (384 + 1536) + head == 894_165
    assert low.plastic == 4 * 384 * 1536 + head
    assert round(100 * low.plastic / low.total, 1) == 53.7
    assert low.block == full.block
    assert low.line() == (
        "894,165 parameters are trained; 2,884,821 of 5,373,765 (53.7%) can change;"
        " top blocks and head hold 2,934,741 (54.6%)"
    )
