import copy
import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from clinit.errors import BackboneError
from clinit.headtrain.top.lora import LowRank, add_lora, layers, merge, updated_weights
from clinit.headtrain.top.network import cut_network

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "convnextv2": ("convnextv2_femto", {"depths": (1, 1, 1, 2), "dims": (4, 8, 8, 12)}),
    "convnext-linear-mlp": ("convnext_tiny", {"depths": (1, 1, 1, 2), "dims": (4, 8, 8, 12)}),
    "vit": (
        "vit_tiny_patch16_224",
        {"img_size": 32, "patch_size": 8, "embed_dim": 12, "depth": 3, "num_heads": 2},
    ),
    "resnet-basic": ("resnet18", {"layers": (1, 1, 1, 2), "channels": (4, 4, 8, 8)}),
    "resnet-bottleneck": ("resnet50", {"layers": (1, 1, 1, 2), "channels": (4, 4, 8, 8)}),
    "mobilenetv2": ("mobilenetv2_035", {}),
    "mobilenetv4": ("mobilenetv4_conv_small_035", {}),
    "dinov3": (
        "vit_small_patch16_dinov3",
        {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2},
    ),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {
            "img_size": 32,
            "patch_size": 2,
            "window_size": 2,
            "embed_dim": 8,
            "depths": (1, 1, 1, 2),
            "num_heads": (1, 1, 2, 2),
            "drop_path_rate": 0.0,
        },
    ),
    "nfnet": ("test_nfnet", {}),
    "byobnet": ("test_byobnet", {}),
}
LAYERS = {
    "convnextv2": ("mlp.fc1", "mlp.fc2"),
    "convnext-linear-mlp": ("mlp.fc1", "mlp.fc2"),
    "vit": ("mlp.fc1", "mlp.fc2"),
    "resnet-basic": ("conv1", "conv2"),
    "resnet-bottleneck": ("conv1", "conv3"),
    "mobilenetv2": ("conv_pw", "conv_pwl"),
    "dinov3": ("mlp.fc1", "mlp.fc2"),
    "swin": ("mlp.fc1", "mlp.fc2"),
    "nfnet": ("conv1", "conv3"),
}


def build(key: str) -> nn.Module:
    name, arguments = SMALL[key]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: nn.Module = timm.create_model(name, num_classes=5, **arguments)
        for tensor in (*network.parameters(), *network.buffers()):
            # One number a channel: norms, biases, running statistics, gains, some of them zero.
            if tensor.is_floating_point() and tensor.numel() == max(tensor.shape, default=1):
                tensor.data += 0.2 * torch.rand_like(tensor)
        classifier: Any = network.get_classifier()  # type: ignore[operator]
        nn.init.normal_(classifier.weight)
    return network.eval()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=seeded(1))


def with_updates(key: str, **options: Any) -> nn.Module:
    """A network with updates whose B is not zero."""
    network = build(key)
    add_lora(
        network, layers(network, cut_network(network, 2).blocks), generator=seeded(), **options
    )
    for module in updates(network):
        module.b.data = torch.randn(module.b.shape, generator=seeded(2))
    return network


def updates(network: nn.Module) -> list[LowRank]:
    return [module for module in network.modules() if isinstance(module, LowRank)]


@torch.no_grad()
def logits(network: nn.Module, *, training: bool = False) -> Tensor:
    # Batch norms are kept in evaluation mode: in training mode they would learn from the batch.
    network.train(training)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    output: Tensor = network(images())
    return output


@pytest.mark.parametrize("key", SMALL)
@pytest.mark.parametrize("a_init", ["gaussian", "kaiming"])
def test_an_update_starts_as_the_identity(key: str, a_init: str) -> None:
    network = build(key)
    before = logits(network)
    add_lora(
        network, layers(network, cut_network(network, 2).blocks), a_init=a_init, generator=seeded()
    )
    assert len(updates(network)) >= 3
    assert all(bool(module.a.any()) for module in updates(network))
    assert torch.equal(logits(network), before)


@pytest.mark.parametrize("key", SMALL)
@pytest.mark.parametrize("training", [False, True])
def test_the_merged_network_gives_the_logits_of_the_unmerged_one(key: str, training: bool) -> None:
    network = with_updates(key, rank=4, alpha=2.0)
    expected = logits(network, training=training)
    assert not torch.allclose(expected, logits(build(key), training=training), atol=1e-3)
    merge(network)
    torch.testing.assert_close(logits(network, training=training), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        logits(network, training=not training), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("key", SMALL)
def test_merging_leaves_nothing_of_the_update_behind(key: str) -> None:
    network, plain = with_updates(key), build(key)
    merge(network)
    assert [(name, value.shape) for name, value in network.state_dict().items()] == [
        (name, value.shape) for name, value in plain.state_dict().items()
    ]
    assert [type(module) for module in network.modules()] == [type(m) for m in plain.modules()]
    assert [name for name, _ in network.named_parameters()] == [
        name for name, _ in plain.named_parameters()
    ]
    assert updated_weights(network) == []
    plain.load_state_dict(network.state_dict())
    assert torch.equal(logits(plain), logits(network))


def test_a_network_in_channels_last_stays_so() -> None:
    network: Any = build("resnet-basic").to(memory_format=torch.channels_last)
    conv = network.layer4[1].conv1
    strides = conv.weight.stride()
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    add_lora(network, ("layer4.1.conv1",), rank=2, generator=seeded())
    assert conv.weight.stride() == strides
    merge(network)
    assert conv.weight.stride() == strides


@pytest.mark.parametrize("merged_first", ["network", "its copy"])
def test_a_copy_of_the_network_survives_the_merge_of_the_other(merged_first: str) -> None:
    network = with_updates("vit")
    twin, expected = copy.deepcopy(network), logits(network)
    first, second = (network, twin) if merged_first == "network" else (twin, network)
    merge(first)
    torch.testing.assert_close(logits(second), expected)
    merge(second)
    torch.testing.assert_close(logits(second), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_round_the_sum_so_that_merging_gives_what_ran(dtype: torch.dtype) -> None:
    network: Any = with_updates("vit")
    fc1 = network.blocks[2].mlp.fc1
    expected = fc1.weight.detach()
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(fc1.weight, expected)
        before = logits(network)
    merge(network)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(logits(network), before)


@pytest.mark.parametrize("a_init", ["gaussian", "kaiming"])
def test_a_has_the_variance_of_loralib(a_init: str) -> None:
    layer, reference = nn.Linear(300, 40), torch.empty(2_000, 300)
    add_lora(nn.Sequential(layer), ("0",), rank=2_000, a_init=a_init, generator=seeded())
    (update,) = updates(layer)
    nn.init.kaiming_uniform_(reference, a=math.sqrt(5), generator=seeded())
    a = update.a.detach()
    assert float(a.var()) == pytest.approx(1 / (3 * 300), rel=0.01)
    assert float(reference.var()) == pytest.approx(1 / (3 * 300), rel=0.01)
    assert abs(float(a.mean())) < 1e-3
    beyond = float((a.abs() > 1 / math.sqrt(300)).float().mean())
    # P(|normal| > sqrt(3) sigma) = 8.3 %; a uniform draw has no tail.
    assert beyond == (0 if a_init == "kaiming" else pytest.approx(0.083, abs=0.003))


def test_the_same_seed_draws_the_same_factors_in_any_precision_and_another_seed_others() -> None:
    def factors(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        network = build("convnextv2").to(dtype)
        add_lora(network, layers(network, cut_network(network, 2).blocks), generator=seeded(seed))
        return [module.a.detach().float() for module in updates(network)]

    first, again, other, double = factors(3), factors(3), factors(4), factors(3, torch.float64)
    assert len(first) == 4
    for a, b, c, d in zip(first, again, other, double, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, d)
        assert not torch.equal(a, c)
    assert not torch.equal(first[0], first[2])


@pytest.mark.gpu
def test_the_same_seed_draws_the_same_factors_on_a_gpu() -> None:
    on_cpu, on_gpu = build("vit"), build("vit").to("cuda")
    for network in (on_cpu, on_gpu):
        add_lora(network, layers(network, cut_network(network, 2).blocks), generator=seeded())
    for a, b in zip(updates(on_cpu), updates(on_gpu), strict=True):
        assert b.a.is_cuda
        assert torch.equal(a.a, b.a.cpu())


@pytest.mark.parametrize("key", LAYERS)
def test_the_linear_layers_of_the_last_two_blocks_are_found(key: str) -> None:
    network = build(key)
    blocks = cut_network(network, 2).blocks
    assert layers(network, blocks) == tuple(f"{b}.{layer}" for b in blocks for layer in LAYERS[key])


def test_blocks_whose_linear_layers_are_not_known_are_refused_for_low_rank() -> None:
    network = timm.create_model(
        "vit_tiny_patch16_224",
        embed_dim=12,
        depth=1,
        num_heads=2,
        block_fn=timm.models.vision_transformer.ParallelScalingBlock,
    )
    with pytest.raises(
        BackboneError,
        match=r"^blocks\.0 is a ParallelScalingBlock, whose linear layers are not known$",
    ) as caught:
        layers(network, ("blocks.0",))
    assert "--full-rank" in caught.value.remedy


def test_a_second_update_before_the_merge_is_refused() -> None:
    network = with_updates("vit")
    before = logits(network)
    with pytest.raises(ValueError, match=r"^blocks\.1\.mlp\.fc1 is parametrised already: merge"):
        add_lora(network, ("blocks.0.mlp.fc1", "blocks.1.mlp.fc1"), generator=seeded())
    assert torch.equal(logits(network), before)
    assert len(updates(network)) == 4


def test_arguments_without_sense_are_refused() -> None:
    network = build("vit")
    with pytest.raises(ValueError, match="rank is 0, expected at least 1"):
        add_lora(network, ("blocks.0.mlp.fc1",), rank=0, generator=seeded())
    with pytest.raises(ValueError, match=r"a_init is 'zero', expected one of \('gaussian', 'kaim"):
        add_lora(network, ("blocks.0.mlp.fc1",), a_init="zero", generator=seeded())


@pytest.mark.gpu
def test_a_generator_of_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a generator on the CPU"):
        add_lora(build("vit"), ("blocks.0.mlp.fc1",), generator=torch.Generator("cuda"))
