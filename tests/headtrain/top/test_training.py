import math
from typing import Any

import pytest
import timm
import torch
from torch import nn

from clinit.headtrain.top.lora import add_lora, layers, merge
from clinit.headtrain.top.network import cut_network, make_plastic
from clinit.headtrain.top.training import top_optimizer

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 4, "num_heads": 2}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "convnextv2": ("convnextv2_femto", {"depths": (1, 1, 2, 2), "dims": (4, 8, 8, 12)}),
    "convnext": ("convnext_tiny", {"depths": (1, 1, 2, 2), "dims": (4, 8, 8, 12)}),
    "vit": ("vit_tiny_patch16_224", VIT),
    "vit-fc-norm": ("vit_tiny_patch16_224", VIT | {"global_pool": "avg", "fc_norm": True}),
    "resnet-basic": ("resnet18", {"layers": (1, 1, 1, 2), "channels": (4, 4, 8, 8)}),
    "resnet-bottleneck": ("resnet50", {"layers": (1, 1, 1, 2), "channels": (4, 4, 8, 8)}),
    "mobilenetv2": ("mobilenetv2_035", {}),
    "mobilenetv3": ("lcnet_035", {}),
    "dinov3": ("vit_small_patch16_dinov3", VIT | {"embed_dim": 16}),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {
            "img_size": 32,
            "patch_size": 2,
            "window_size": 2,
            "embed_dim": 8,
            "depths": (1, 1, 1, 2),
            "num_heads": (1, 1, 2, 2),
        },
    ),
    "regnet": ("regnetx_002", {}),
    "efficientnet": ("test_efficientnet", {}),
}


def build(key: str, top_blocks: int = 2, *, full_rank: bool = False) -> nn.Module:
    """A network of which the last blocks and the classifier learn."""
    name, arguments = SMALL[key]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: nn.Module = timm.create_model(name, num_classes=5, **arguments)
    blocks = cut_network(network, top_blocks).blocks
    if not full_rank:
        names = layers(network, blocks)
        add_lora(network, names, rank=2, generator=torch.Generator().manual_seed(0))
    make_plastic(network, blocks, full_rank=full_rank)
    return network


def groups_by_name(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    return {n: group_of[id(p)] for n, p in network.named_parameters() if id(p) in group_of}


def one_cycle(step: int, peak: float, steps: int) -> float:
    """Smith's cycle with cosines, as torch documents it: 30 % up, the rest down."""
    first, last, top, end = peak / 25, peak / 25 / 1e4, 0.3 * steps - 1, steps - 1
    if step <= top:
        return peak + (first - peak) * (1 + math.cos(math.pi * step / top)) / 2
    return last + (peak - last) * (1 + math.cos(math.pi * (step - top) / (end - top))) / 2


def test_each_group_peaks_at_its_own_rate_and_ends_near_zero() -> None:
    network = build("convnextv2")
    optimizer, schedule = top_optimizer(network, iterations=600)
    rates = []
    for _ in range(600):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    peaks = [max(column) for column in zip(*rates, strict=True)]
    assert sorted({round(peak / 1.5e-3, 4) for peak in peaks}) == [0.81, 0.9, 1.0]
    assert [last / peak for last, peak in zip(rates[-1], peaks, strict=True)] == pytest.approx(
        [1 / 250_000] * len(peaks)
    )


@pytest.mark.parametrize("full_rank", [False, True])
@pytest.mark.parametrize("key", SMALL)
def test_ten_steps_are_those_of_adamw_with_groups_written_by_hand(
    key: str, full_rank: bool
) -> None:
    """A group per parameter: the head and matrices that the network does not list are decayed."""
    ours, theirs = build(key, full_rank=full_rank), build(key, full_rank=full_rank)
    for network in (ours, theirs):
        bias = network.get_classifier().bias  # type: ignore[operator]
        with torch.no_grad():
            bias.fill_(3.0)  # decay of a bias of zero would not be seen
    blocks, head = cut_network(theirs, 2).blocks, theirs.get_classifier()  # type: ignore[operator]
    listed = theirs.no_weight_decay() if hasattr(theirs, "no_weight_decay") else ()  # type: ignore[operator]
    groups, rates = [], []
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            depth = 2 - next((i for i, b in enumerate(blocks) if name.startswith(f"{b}.")), 2)
            rates.append(0.01 * 0.9**depth)
            decayed = name not in listed and (parameter.ndim > 1 or parameter is head.bias)
            groups.append({"params": [parameter], "weight_decay": 0.3 if decayed else 0.0})
    theirs_too = torch.optim.AdamW(groups, lr=1.0, fused=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(theirs_too, rates, total_steps=10)
    batch, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])
    optimizer, schedule = top_optimizer(ours, lr=0.01, weight_decay=0.3, iterations=10)
    for _ in range(10):
        pairs: list[Any] = [(ours, optimizer, schedule), (theirs, theirs_too, cycle)]
        for network, each, rate in pairs:
            each.zero_grad()
            nn.functional.cross_entropy(network(batch), labels).backward()
            each.step()
            rate.step()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6), name


def test_parameters_that_the_network_lists_are_not_decayed() -> None:
    network = build("vit")
    network.get_parameter("pos_embed").requires_grad_(True)
    optimizer, _ = top_optimizer(network, iterations=10)
    groups = groups_by_name(network, optimizer)
    assert groups["pos_embed"]["weight_decay"] == 0
    assert groups["pos_embed"]["lr_scale"] == pytest.approx(0.9**5)


def test_the_state_of_optimizer_and_schedule_continues_a_run() -> None:
    batch, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 1])

    def steps(parts: Any, network: nn.Module, count: int) -> None:
        optimizer, schedule = parts
        for _ in range(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(batch), labels).backward()
            optimizer.step()
            schedule.step()

    straight, halted, resumed = (build("vit") for _ in range(3))
    steps(top_optimizer(straight, iterations=8), straight, 8)
    first = top_optimizer(halted, iterations=8)
    steps(first, halted, 5)
    second = top_optimizer(resumed, iterations=8)
    resumed.load_state_dict(halted.state_dict())
    second[0].load_state_dict(first[0].state_dict())
    second[1].load_state_dict(first[1].state_dict())
    steps(second, resumed, 3)
    merge(straight)
    merge(resumed)
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="a Linear has no group_matcher: its layers are unknown"):
        top_optimizer(nn.Linear(2, 3), iterations=10)


def test_a_network_in_which_nothing_learns_is_refused() -> None:
    network = build("vit").requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter has a gradient: call make_plastic first"):
        top_optimizer(network, iterations=10)
