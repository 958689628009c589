"""Updates of a bank against loops of PyTorch: their precision, and anchors against autograd."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clinit.errors import DeviceError
from clinit.headtrain.heads.linear import Rows
from clinit.headtrain.heads.losses import LOSSES, loss_named
from clinit.headtrain.heads.statistics.class_statistics import ClassStatistics
from clinit.headtrain.protocol.study.parts import Training
from clinit.headtrain.protocol.train import heads as heads_module, step as step_module
from clinit.headtrain.protocol.train.heads import Bank, check_precision
from clinit.headtrain.protocol.train.past import Anchor, OldClasses, class_weights
from clinit.headtrain.protocol.train.step import BETAS, EPS, AdamW, Bf16Products, Products, Updates

DIM, OLD, CLASSES, BATCH, STEPS = 12, 5, 11, 24, 40
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
THREE = [
    Training(lr=1e-2, weight_decay=0.05),
    Training(lr=3e-3, weight_decay=0.05),
    Training(lr=1e-2, weight_decay=0.5),
]
Trace = list[tuple[Tensor, Tensor, Tensor]]


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_steps_are_those_of_the_class_of_torch_bit_by_bit(weight_decay: float) -> None:
    random = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=random) for shape in ((2, 5, 3), (2, 5))]
    ours, theirs = ([each.clone() for each in start] for _ in range(2))
    gradients = [torch.empty_like(each) for each in start]
    optimizer = AdamW(ours, gradients, lr=0.01, weight_decay=weight_decay)
    reference = torch.optim.AdamW(
        [each.requires_grad_() for each in theirs],
        lr=0.01, betas=BETAS, eps=EPS, weight_decay=weight_decay, fused=True,
    )  # fmt: skip
    for step in range(20):
        share = 1.0 if step < 10 else 0.25
        for gradient, parameter in zip(gradients, theirs, strict=True):
            gradient.normal_(generator=random)
            parameter.grad = gradient.clone()
        reference.param_groups[0]["lr"] = share * 0.01
        optimizer.step(share)
        reference.step()
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other)
    assert not torch.equal(ours[0], start[0])


def random_rows(seed: int, classes: int = CLASSES) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(random.normal(size=(classes, DIM)), random.normal(size=classes))


def make_bank(heads: Sequence[Training], seeds: Sequence[int]) -> Bank:
    bank = Bank(random_rows(0), heads, CPU)
    for index, seed in enumerate(seeds):
        bank.write(index, 0, random_rows(seed))
    return bank


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [
        (torch.randn(BATCH, DIM).half(), torch.randint(CLASSES, (BATCH,))) for _ in range(STEPS)
    ]


def naive_run(config: Training, start: Rows) -> Trace:
    """A plain PyTorch loop: loss a sample before each step, weight and bias after it."""
    linear = nn.Linear(DIM, CLASSES)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(start.weight))
        linear.bias.copy_(torch.from_numpy(start.bias))
    decay = config.weight_decay
    optimizer = torch.optim.AdamW(linear.parameters(), lr=config.rate, weight_decay=decay)
    trace = []
    for features, labels in batches():
        losses = nn.functional.cross_entropy(linear(features.float()), labels, reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        after = (each.detach().clone() for each in (losses, linear.weight, linear.bias))
        trace.append((*after,))
    return trace  # type: ignore[return-value]


@torch.no_grad()
def bank_run(bank: Bank) -> Trace:
    updates = Updates(bank, BATCH)
    return [
        (updates.step(*batch).T.clone(), bank.weight.clone(), bank.bias.clone())
        for batch in batches()
    ]


def test_a_bank_takes_the_steps_of_single_heads_trained_by_torch() -> None:
    among = bank_run(make_bank(THREE, seeds=[1, 2, 3]))
    for head, config in enumerate(THREE):
        alone = bank_run(make_bank([config], seeds=[head + 1]))
        naive = naive_run(config, random_rows(head + 1))
        for many, one, expected in zip(among, alone, naive, strict=True):
            for found in ([each[head] for each in many], [each[0] for each in one]):
                torch.testing.assert_close(found, list(expected), atol=1e-5, rtol=1e-5)


def test_appended_rows_leave_the_others_as_they_are() -> None:
    bank, new = make_bank(THREE, seeds=[1, 2, 3]), random_rows(9, classes=2)
    before = [bank.rows(index) for index in range(3)]
    bank.grow(new)
    for index in range(3):
        after = bank.rows(index)
        np.testing.assert_array_equal(after.weight[:CLASSES], before[index].weight)
        np.testing.assert_array_equal(after.bias[:CLASSES], before[index].bias)
        np.testing.assert_allclose(after.weight[CLASSES:], new.weight, 1e-6)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_an_update_switches_tf32_on_for_its_products_alone_and_gives_float32(
    precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = make_bank([replace(each, precision=precision) for each in THREE[:2]], seeds=[1, 2])
    seen, plain, switch = [], Products.logits, torch.backends.cuda.matmul

    def spy(*args: Any, **kwargs: Any) -> None:
        seen.append(switch.fp32_precision)
        plain(*args, **kwargs)

    monkeypatch.setattr(step_module, "check_precision", lambda name, device: None)
    monkeypatch.setattr(Products, "logits", spy)
    before = switch.fp32_precision
    with torch.no_grad():
        losses = Updates(bank, BATCH).step(*batches()[0])
    assert seen == (["tf32"] * 2 if precision == "tf32" else [])
    assert switch.fp32_precision == before
    assert {losses.dtype, bank.weight.dtype, bank.bias.dtype} == {torch.float32}


@pytest.mark.parametrize(
    ("precision", "device", "fact"),
    [
        ("tf32", CPU, "tf32 needs a CUDA device, and training runs on cpu"),
        ("bf16", CPU, "bf16 needs a CPU with bfloat16"),
        ("tf32", CUDA, "tf32 needs a CUDA device of compute capability 8.0"),
        ("bf16", CUDA, "bf16 needs a CUDA device of compute capability 8.0"),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused(
    precision: str, device: torch.device, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(heads_module, "cpu_has_bf16", lambda: False)
    with pytest.raises(DeviceError, match=fact) as caught:
        check_precision(precision, device)
    assert "--precision float32" in caught.value.remedy
    check_precision("float32", device)


def rounded(values: Tensor) -> Tensor:
    return values.bfloat16().double()


def test_bf16_products_round_operands_and_results_and_nothing_else() -> None:
    features = batches()[0][0]
    weight, bias = torch.randn(CLASSES, DIM), torch.randn(CLASSES)
    gradient, products = torch.randn(BATCH, CLASSES), Bf16Products(BATCH, CLASSES, DIM, CPU)
    logits, weight_gradient = torch.empty(BATCH, CLASSES), torch.full((CLASSES, DIM), torch.nan)
    products.read(features.float())
    products.logits(weight, bias, logits)
    products.weight_gradient(gradient, 0.25, weight_gradient)
    # One unit in the last place where the sum is taken in another order.
    near = partial(torch.allclose, rtol=2**-7, atol=1e-3)
    assert near(logits.double() - bias.double(), rounded(features) @ rounded(weight).T)
    assert near(weight_gradient.double(), 0.25 * rounded(gradient).T @ rounded(features))


LABELS = np.repeat(np.arange(OLD), [9, 3, 1, 6, 4])
FEATURES = 2 + np.random.default_rng(0).normal(size=(len(LABELS), DIM)).astype(np.float32)
KNOWN = OldClasses.of(ClassStatistics.of(FEATURES, LABELS, num_classes=OLD))
ANCHORS = [Anchor(0.3, KNOWN), Anchor(4.0, KNOWN)]


def penalty(anchor: Anchor, weight: Tensor, bias: Tensor, start: tuple[Tensor, Tensor]) -> Tensor:
    """As the module defines it."""
    change = torch.cat([weight - start[0], (bias - start[1])[:, None]], dim=1)
    z = np.column_stack([FEATURES, np.ones(len(FEATURES))]).astype(np.float64)
    values, vectors = np.linalg.eigh((z * 1 / (OLD * np.bincount(LABELS)[LABELS])[:, None]).T @ z)
    known = values.copy()
    known[:-1] = values[:-1].mean()  # of 13 eigenvectors one is kept
    directions = torch.from_numpy(vectors * np.sqrt(known))
    return anchor.strength / 2 * (change @ directions).square().sum()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("anchor", ANCHORS)
@torch.no_grad()
def test_the_gradient_is_that_of_autograd(anchor: Anchor, loss: str) -> None:
    bank = make_bank([Training(loss=loss, lr=1e-2)], seeds=[0])  # type: ignore[arg-type]
    start = bank.weight[0].double(), bank.bias[0].double()
    updates, random = Updates(bank, BATCH, [anchor]), torch.Generator().manual_seed(1)
    for each in (bank.weight, bank.bias):
        each += 0.1 * torch.randn(each.shape, generator=random)
    weight, bias = (each[0].double().requires_grad_() for each in (bank.weight, bank.bias))
    features = torch.randn(BATCH, DIM, generator=random)
    labels = torch.randint(CLASSES, (BATCH,), generator=random)
    with torch.enable_grad():
        logits = features.double() @ weight.T + bias
        values = loss_named(loss).value(logits, labels)
        value = values.mean() + penalty(anchor, weight, bias, start)
        expected = torch.autograd.grad(value, (weight, bias))
    losses = updates.step(features, labels)
    torch.testing.assert_close(losses[:, 0].double(), values.detach(), rtol=1e-4, atol=1e-4)
    found = updates.weight_gradient.double(), updates.bias_gradient.double()
    scale = max(float(each.abs().max()) for each in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * scale)


@torch.no_grad()
def trained(bank: Bank, anchors: list[Any] | None) -> Bank:
    updates = Updates(bank, BATCH, anchors)
    for batch in batches():
        updates.step(*batch)
    return bank


def test_a_bank_gives_the_bits_of_single_heads_and_an_unheld_head_those_without_anchors() -> None:
    heads = [
        Training(lr=1e-2),
        Training(lr=1e-2, loss="mse"),
        Training(lr=1e-3),
        Training(lr=1e-2, weight_decay=0.5),
    ]
    anchors = [None, *ANCHORS, ANCHORS[0]]
    among, plain = (trained(make_bank(heads, seeds=range(4)), each) for each in (anchors, None))
    assert torch.equal(among.weight[0], plain.weight[0])
    for index, (training, anchor) in enumerate(zip(heads, anchors, strict=True)):
        alone = trained(make_bank([training], seeds=[index]), [anchor])
        assert torch.equal(among.weight[index], alone.weight[0])
        assert torch.equal(among.bias[index], alone.bias[0])
        assert index == 0 or not torch.equal(among.weight[index], plain.weight[index])


def test_each_class_weighs_the_same_and_absent_ones_are_stood_for_by_others_of_their_kind() -> None:
    weights = class_weights(np.array([0, 0, 0, 2, 3, 3]), 3, 5)
    np.testing.assert_allclose(weights, [0.1, 0.1, 0.1, 0.3, 0.2, 0.2])
    assert weights.sum() == pytest.approx(1)
    every = np.array([0, 1, 1, 2])
    np.testing.assert_allclose(class_weights(every, 2, 3), [1 / 3, 1 / 6, 1 / 6, 1 / 3])
