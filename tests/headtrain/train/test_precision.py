"""Lower precision of the products: what it changes, what it must not, and who is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clinit.errors import DeviceError
from clinit.headtrain.rows import Rows
from clinit.headtrain.study.parts import Training
from clinit.headtrain.train import heads as precision
from clinit.headtrain.train import step as training_module
from clinit.headtrain.train.heads import Bank, check_precision
from clinit.headtrain.train.step import Bf16Products, Products, Updates
from clinit.machine import cpu_has_bf16

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DIM, CLASSES, BATCH = 48, 30, 16


HAS_BF16 = cpu_has_bf16


def bank_in(kind: str, rows: Rows, heads: Sequence[Training], device: torch.device) -> Bank:
    words: Any = kind
    return Bank(rows, [replace(head, precision=words) for head in heads], device)


@pytest.fixture(autouse=True)
def _bf16_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch emulates bfloat16 where the CPU lacks it: slower, with the same values."""
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: True)


def random_rows(seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    return Rows(random.normal(size=(CLASSES, DIM)), random.normal(size=CLASSES))


def bank_of(name: str, heads: int = 2) -> Bank:
    return bank_in(name, random_rows(), [Training(lr=1e-3 * (1 + n)) for n in range(heads)], CPU)


def batch(seed: int = 0, rows: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, DIM, generator=generator).half(),
        torch.randint(CLASSES, (rows,), generator=generator),
    )


def switch() -> str:
    return str(torch.backends.cuda.matmul.fp32_precision)


def test_an_update_in_tf32_switches_it_on_for_its_products_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    plain = Products.logits

    def spy(*args: Tensor, **kwargs: Tensor) -> None:
        seen.append(switch())
        plain(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(training_module, "check_precision", lambda name, device: None)
    monkeypatch.setattr(Products, "logits", spy)
    before = switch()
    with torch.no_grad():
        Updates(bank_of("tf32"), BATCH).step(*batch())
    assert seen == ["tf32", "tf32"]
    assert switch() == before


def test_tf32_on_a_cpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="tf32 is a format of CUDA devices") as caught:
        Updates(bank_of("tf32"), BATCH)
    assert caught.value.remedy == "Use --precision float32, or bf16 which this CPU has."


def test_a_cpu_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_has_bf16", lambda: False)
    with pytest.raises(DeviceError, match="this CPU has no instructions for it") as caught:
        check_precision("bf16", CPU)
    assert caught.value.remedy == "Use --precision float32."
    check_precision("float32", CPU)


@pytest.mark.parametrize("name", ["tf32", "bf16"])
def test_an_old_cuda_device_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old Card")
    with pytest.raises(DeviceError, match=f"{name} needs .* 8.0 or later, Old Card"):
        check_precision(name, CUDA)
    check_precision("float32", CUDA)


def rounded(values: Tensor) -> Tensor:
    return values.bfloat16().double()


def test_bf16_products_round_operands_and_results_and_nothing_else() -> None:
    features, _ = batch()
    weight, bias = torch.randn(CLASSES, DIM), torch.randn(CLASSES)
    gradient = torch.randn(BATCH, CLASSES)
    products = Bf16Products(BATCH, CLASSES, DIM, CPU)
    logits, weight_gradient = torch.empty(BATCH, CLASSES), torch.full((CLASSES, DIM), torch.nan)
    products.read(features.float())
    products.logits(weight, bias, logits)
    products.weight_gradient(gradient, 0.25, weight_gradient)
    # One unit in the last place where the sum is taken in another order.
    near = partial(torch.testing.assert_close, rtol=2**-7, atol=1e-3)
    exact = rounded(features) @ rounded(weight).T
    near(logits.double() - bias.double(), exact)
    exact = 0.25 * rounded(gradient).T @ rounded(features)
    near(weight_gradient.double(), exact)


def test_weights_moments_and_losses_are_float32_whatever_the_products() -> None:
    bank = bank_of("bf16")
    with torch.no_grad():
        training = Updates(bank, BATCH)
        losses = training.step(*batch())
    kinds = {value.dtype for each in training.optimizers for value in each.state}
    assert {losses.dtype, bank.weight.dtype, bank.bias.dtype} | kinds == {torch.float32}
