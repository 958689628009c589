import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clinit.headtrain.protocol.study.parts import Top, Training
from clinit.headtrain.top.network import add_lora, cut_network, layers, make_plastic
from clinit.headtrain.top.training import TopMethod, sample_losses, top_optimizer
from tests.headtrain.top.networks import build, seeded


def learning(key: str, *, full_rank: bool = False) -> Any:
    """A network in float64 of which the last two blocks and the classifier learn."""
    network = build(key).double()
    blocks = cut_network(network, 2).blocks
    if not full_rank:
        add_lora(network, layers(network, blocks), Top(rank=2), seeded())
    make_plastic(network, blocks, full_rank=full_rank)
    return network


def between(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


def one_cycle(step: int, steps: int, start: float, peak: float, end: float) -> float:
    """Smith's cycle with cosines: 30 % to the peak, the rest to the end."""
    top = 0.3 * steps - 1
    if step <= top:
        return between(start, peak, step / top)
    return between(peak, end, (step - top) / (steps - 1 - top))


@pytest.mark.parametrize("full_rank", [False, True])
@pytest.mark.parametrize(
    "key",
    [
        *("convnextv2", "convnext", "vit", "vit-fc-norm", "resnet-basic", "resnet-bottleneck"),
        *("mobilenetv2", "mobilenetv3", "swin", "regnet", "efficientnet"),
    ],
)
def test_ten_steps_are_those_of_adamw_written_out(key: str, full_rank: bool) -> None:
    """The head and matrices that the network does not list are decayed; rates fall by layer."""
    ours, theirs = (learning(key, full_rank=full_rank) for _ in range(2))
    for network in (ours, theirs):
        network.get_classifier().bias.data.fill_(3.0)  # of zero, its decay would not be seen
    blocks, bias = cut_network(theirs, 2).blocks, theirs.get_classifier().bias
    listed = theirs.no_weight_decay() if hasattr(theirs, "no_weight_decay") else ()
    optimizer, schedule = top_optimizer(ours, Training(lr=0.01, weight_decay=0.3), Top(), 10)
    batch = torch.randn(2, 3, 32, 32, generator=seeded(3)).double()
    labels = torch.tensor([0, 1])
    parameters = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    first, second = ({name: torch.zeros_like(p) for name, p in parameters.items()} for _ in "mv")
    for step in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ours(batch), labels).backward()
        optimizer.step()
        schedule.step() if step < 9 else None
        loss = nn.functional.cross_entropy(theirs(batch), labels)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        beta = one_cycle(step, 10, 0.95, 0.85, 0.95)
        for (name, p), gradient in zip(parameters.items(), gradients, strict=True):
            depth = 2 - next((i for i, b in enumerate(blocks) if name.startswith(f"{b}.")), 2)
            peak = 0.01 * 0.9**depth
            rate = one_cycle(step, 10, peak / 25, peak, peak / 25e4)
            decayed = name not in listed and (p.ndim > 1 or p is bias)
            first[name] = beta * first[name] + (1 - beta) * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            size = (second[name] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            p.data *= 1 - rate * 0.3 * decayed
            p.data -= rate * first[name] / (1 - beta ** (step + 1)) / size
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9, msg=name)


def test_the_loss_is_the_mean_over_new_and_old_rows(
    make_top: Callable[..., Any], make_images: Callable[..., Any]
) -> None:
    model, batch = make_top(7), make_images(12, classes=7).batch(np.arange(12), num_new=5)
    loss, losses = TopMethod().loss(model, batch)
    logits = model.classifier(model.blocks(batch.activations))
    each = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
    torch.testing.assert_close(losses, each.detach())
    torch.testing.assert_close(loss, each.mean())
    assert not losses.requires_grad


def test_logits_of_mixed_precision_are_widened_and_their_gradient_is_narrow_again() -> None:
    logits = torch.randn(4, 3, generator=seeded(1)).bfloat16().requires_grad_()
    values = sample_losses("ce", logits, torch.tensor([0, 1, 2, 0]))
    assert values.dtype == torch.float32
    values.sum().backward()
    assert logits.grad.dtype == torch.bfloat16
