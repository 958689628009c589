import math

import pytest
import torch
from torch import Tensor

from clinit.headtrain.heads.losses import LOSSES

NAMES = ["ce", "mse", "sqen", "bce"]


def transcribed(name: str, logits: Tensor, label: int) -> float:
    """The formulas of the paper, a sample and a class at a time."""
    u = logits.tolist()
    classes = len(u)
    wrong = [u[j] for j in range(classes) if j != label]
    if name == "mse":
        return float(15 * (u[label] - 30) ** 2 + sum(v * v for v in wrong)) / classes
    if name == "bce":
        return sum(math.log1p(math.exp(v)) for v in u) - float(u[label])
    entropy = -math.log(math.exp(u[label]) / sum(map(math.exp, u)))
    return entropy + (sum(v * v for v in wrong) / (classes - 1) if name == "sqen" else 0.0)


@pytest.fixture
def logits() -> Tensor:
    return 3 * torch.randn(20, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(20) % 7


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_is_its_formula(name: str, logits: Tensor, labels: Tensor) -> None:
    expected = [transcribed(name, u, int(y)) for u, y in zip(logits, labels, strict=True)]
    torch.testing.assert_close(
        LOSSES[name].value(logits, labels), torch.tensor(expected, dtype=torch.float64)
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_autograd(name: str, logits: Tensor, labels: Tensor) -> None:
    logits.requires_grad_()
    LOSSES[name].value(logits, labels).sum().backward()
    value, gradient = LOSSES[name].value_and_gradient(logits.detach(), labels)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(value, LOSSES[name].value(logits.detach(), labels))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0, 1e4])
def test_a_value_is_the_same_with_and_without_its_gradient_at_any_size(
    name: str, size: float, logits: Tensor, labels: Tensor
) -> None:
    single = (size * logits).float()
    value, gradient = LOSSES[name].value_and_gradient(single, labels)
    assert gradient.isfinite().all()
    exact = LOSSES[name].value(single.double(), labels)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("new", [slice(4, 7), slice(2, 5), slice(0, 7)])
def test_local_terms_are_value_gradient_and_hessian_in_the_new_logits(
    name: str, new: slice, logits: Tensor, labels: Tensor
) -> None:
    columns = torch.arange(7)
    is_new, place = (columns >= new.start) & (columns < new.stop), torch.full((7,), -1)
    place[~is_new] = torch.arange(int((~is_new).sum()))
    fixed = LOSSES[name].fixed_part(logits[:, ~is_new], place[labels], 7)
    inside = torch.full((7,), -1)
    inside[is_new] = torch.arange(int(is_new.sum()))
    local = LOSSES[name].local_terms(logits[:, is_new], inside[labels], fixed, 7)

    value, gradient = LOSSES[name].value_and_gradient(logits, labels)
    torch.testing.assert_close(local.value, value)
    torch.testing.assert_close(local.gradient, gradient[:, is_new])
    for row in range(len(labels)):
        hessian = torch.autograd.functional.hessian(
            lambda u, row=row: LOSSES[name].value(u[None], labels[row : row + 1]).sum(), logits[row]
        )
        expected = local.diagonal[row].diag() - torch.outer(local.outer[row], local.outer[row])
        torch.testing.assert_close(expected, hessian[is_new][:, is_new])
