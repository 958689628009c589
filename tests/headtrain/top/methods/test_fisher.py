from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

from clinit.headtrain.top import ewc as fisher
from clinit.headtrain.top.ewc import chunk_size, diagonal_fisher
from clinit.headtrain.train.losses import LOSSES

NAMES = ["ce", "mse", "sqen"]
WAYS: list[Literal["vmap", "loop"]] = ["vmap", "loop"]
ROWS = 30
Make = Callable[..., Any]


def naive(model: Any, images: Any, rows: np.ndarray, name: str, classes: int) -> dict[str, Tensor]:
    """One backward pass a sample, gradients squared and averaged."""
    totals = {key: torch.zeros_like(values) for key, values in model.trainable().items()}
    for row in rows.tolist():
        model.zero_grad()
        logits = model.classifier(model.blocks(images.activations[row : row + 1]))
        LOSSES[name].value(logits[:, :classes], images.labels[row : row + 1]).sum().backward()
        for key, values in model.trainable().items():
            totals[key] += values.grad**2 / len(rows)
    return {
        key: values[:classes] if key.startswith("classifier") else values
        for key, values in totals.items()
    }


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("size", [1, 7, ROWS])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_that_of_a_loop_over_samples_whatever_the_batch_size(
    make_top: Make, make_images: Make, name: str, size: int, by: Literal["vmap", "loop"]
) -> None:
    model, images = make_top(), make_images(ROWS)
    rows = np.arange(ROWS)
    found = diagonal_fisher(model, images.batches(rows, size), classes=6, loss_name=name, by=by)
    expected = naive(model, images, rows, name, classes=6)
    assert found.keys() == expected.keys()
    for key, values in found.items():
        torch.testing.assert_close(values, expected[key], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_the_square_of_the_mean_gradient_is_something_else_and_depends_on_the_batch(
    make_top: Make, make_images: Make, name: str
) -> None:
    def square_of_means(size: int) -> float:
        squares = []
        for batch in images.batches(np.arange(240), size):
            model.zero_grad()
            logits = model.classifier(model.blocks(batch.activations))
            LOSSES[name].value(logits, batch.labels).mean().backward()
            squares.append(model.classifier.weight.grad.square().sum().item())
        return float(np.mean(squares))

    model, images = make_top(), make_images(240)
    exact = diagonal_fisher(model, images.batches(np.arange(240), 60), classes=6, loss_name=name)
    one, many, all_of_them = (square_of_means(size) for size in (1, 8, 120))
    assert one == pytest.approx(exact["classifier.weight"].sum().item(), rel=1e-4)
    assert many < 0.6 * one
    assert all_of_them < 0.35 * one


@pytest.mark.parametrize("by", WAYS)
def test_a_head_that_has_grown_is_measured_on_the_classes_that_the_samples_know(
    make_top: Make, make_images: Make, by: Literal["vmap", "loop"]
) -> None:
    small, images, rows = make_top(classes=4), make_images(classes=4), np.arange(ROWS)
    before = diagonal_fisher(small, images.batches(rows, 8), classes=4, by=by)
    small.grow(3)
    after = diagonal_fisher(small, images.batches(rows, 8), classes=4, by=by)
    assert after["classifier.weight"].shape == (4, 4)
    for key, values in before.items():
        torch.testing.assert_close(after[key], values)
    torch.testing.assert_close(after, naive(small, images, rows, "ce", 4), rtol=1e-4, atol=1e-7)


def test_the_gradients_of_the_model_stay_as_they_are(make_top: Make, make_images: Make) -> None:
    model, images = make_top(), make_images()
    for by in WAYS:
        found = diagonal_fisher(model, images.batches(np.arange(ROWS), 8), classes=6, by=by)
        assert all(values.grad is None for values in model.parameters())
        assert not any(values.requires_grad for values in found.values())


def test_frozen_parameters_are_not_measured(make_top: Make, make_images: Make) -> None:
    model, images, rows = make_top(), make_images(), np.arange(ROWS)
    model.blocks[1].requires_grad_(False)
    for by in WAYS:
        found = diagonal_fisher(model, images.batches(rows, 8), classes=6, by=by)
        assert not any(name.startswith("blocks.1") for name in found)
        torch.testing.assert_close(found, naive(model, images, rows, "ce", 6), rtol=1e-4, atol=1e-7)


def test_a_classifier_alone_needs_no_blocks(make_top: Make, make_images: Make) -> None:
    model, images, rows = make_top(), make_images(), np.arange(ROWS)
    model.blocks.requires_grad_(False)
    for by in WAYS:
        found = diagonal_fisher(model, images.batches(rows, 8), classes=6, by=by)
        assert set(found) == {"classifier.weight", "classifier.bias"}
        torch.testing.assert_close(found, naive(model, images, rows, "ce", 6), rtol=1e-4, atol=1e-7)


class Blocks(nn.Module):
    """The last block of a network of timm, and what follows it up to the features."""

    def __init__(self, network: Any, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self._network = [network]  # a list hides it from `parameters`

    def forward(self, activations: Tensor) -> Tensor:
        (network,) = self._network
        read = self.block(activations)
        if hasattr(network, "fc_norm"):
            read = network.norm(read)
        features: Tensor = network.forward_head(read, pre_logits=True)
        return features


def timm_blocks(kind: str) -> tuple[Blocks, tuple[int, ...], int]:
    """Return random blocks, the shape of their activations and the width of their features."""
    network: Any
    shape: tuple[int, ...]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if kind == "vit":
            network = timm.create_model(
                "vit_tiny_patch16_224", num_classes=3, depth=1, embed_dim=24, num_heads=3
            )
            block, shape, dim = network.blocks[-1], (5, 24), 24
        elif kind == "resnet":
            network = timm.create_model("resnet10t", num_classes=3, channels=(4, 8, 8, 12))
            block, shape, dim = network.layer4[-1], (8, 6, 6), 12
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                    module.running_mean.normal_()
        else:
            name = {"convnextv2": "convnextv2_atto", "convnext": "convnext_atto"}[kind]
            network = timm.create_model(
                name, num_classes=3, depths=(1, 1, 1, 1), dims=(4, 8, 8, 12)
            )
            block, shape, dim = network.stages[-1].blocks[-1], (12, 3, 3), 12
        for parameter in network.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        return Blocks(network.eval(), block), shape, dim


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("kind", ["vit", "convnextv2", "convnext", "resnet"])
def test_attention_response_norm_layer_scale_and_batch_norm_are_followed(
    make_top: Make, make_images: Make, kind: str, by: Literal["vmap", "loop"]
) -> None:
    blocks, shape, dim = timm_blocks(kind)
    model = make_top(blocks=blocks, dim=dim)
    images, rows = make_images(6, shape=shape), np.arange(6)
    found = diagonal_fisher(model, images.batches(rows, 4), classes=6, by=by)
    expected = naive(model, images, rows, "ce", 6)
    for key, values in found.items():
        scale = expected[key].max().item()
        torch.testing.assert_close(values, expected[key], rtol=1e-3, atol=1e-5 * scale)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("kind", ["vit", "convnextv2"])
def test_mixed_precision_of_the_training_is_left_out(
    make_top: Make, make_images: Make, kind: str, by: Literal["vmap", "loop"]
) -> None:
    blocks, shape, dim = timm_blocks(kind)
    model = make_top(blocks=blocks, dim=dim)
    images, rows = make_images(6, shape=shape), np.arange(6)
    expected = diagonal_fisher(model, images.batches(rows, 4), classes=6, by=by)
    model.mixed = True
    found = diagonal_fisher(model, images.batches(rows, 4), classes=6, by=by)
    assert model.mixed
    assert not torch.equal(model.features(images.activations), blocks(images.activations)), (
        "the features are of mixed precision"
    )
    for key, values in found.items():
        assert torch.equal(values, expected[key])


class Scaled(nn.Module):
    """A parametrisation with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, weight: Tensor) -> Tensor:
        return self.scale * weight


def test_parametrised_weights_are_followed(make_top: Make, make_images: Make) -> None:
    model, images, rows = make_top(), make_images(), np.arange(ROWS)
    nn.utils.parametrize.register_parametrization(model.blocks[1], "weight", Scaled())
    expected = naive(model, images, rows, "ce", 6)
    assert any(name.endswith("0.scale") for name in expected)
    for by in WAYS:
        found = diagonal_fisher(model, images.batches(rows, 8), classes=6, by=by)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same(make_top: Make, make_images: Make) -> None:
    model, images, rows = make_top(), make_images(), np.arange(ROWS)
    expected = diagonal_fisher(model, images.batches(rows, 8), classes=6)
    model.to("cuda")
    images.activations, images.labels = images.activations.cuda(), images.labels.cuda()
    found = diagonal_fisher(model, images.batches(rows, 8), classes=6)
    for key, values in found.items():
        torch.testing.assert_close(values.cpu(), expected[key], rtol=1e-3, atol=1e-6)


def test_large_blocks_are_read_in_small_chunks(
    make_top: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_top()
    assert chunk_size(model) == 64
    values = sum(p.numel() for p in model.blocks.parameters())
    monkeypatch.setattr(fisher, "CHUNK_VALUES", 3 * values + 1)
    assert chunk_size(model) == 3
    monkeypatch.setattr(fisher, "CHUNK_VALUES", 1)
    assert chunk_size(model) == 1


def test_no_sample_is_refused(make_top: Make, make_images: Make) -> None:
    with pytest.raises(ValueError, match="needs at least one sample, got none"):
        diagonal_fisher(make_top(), make_images().batches(np.arange(0), 8), classes=6)


def test_a_label_outside_the_classes_is_refused(make_top: Make, make_images: Make) -> None:
    images = make_images()
    images.labels[3] = 5
    with pytest.raises(ValueError, match="a sample has label 5, expected labels below 4"):
        diagonal_fisher(make_top(), images.batches(np.arange(ROWS), ROWS), classes=4)
