from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Training
from clinit.headtrain.train.heads import Bank
from clinit.headtrain.train.step import BETAS, EPS, AdamW, Updates


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


def test_the_state_is_of_two_moments_and_the_number_of_steps() -> None:
    parameter, gradient = torch.ones(3), torch.full((3,), 2.0)
    optimizer = AdamW([parameter], [gradient], lr=0.1, weight_decay=0.0)
    assert all(not each.any() for each in optimizer.state)
    optimizer.step()
    moments, squares, steps = optimizer.state
    torch.testing.assert_close(moments, (1 - BETAS[0]) * gradient)
    torch.testing.assert_close(squares, (1 - BETAS[1]) * gradient.square())
    assert steps.item() == 1


def test_heads_of_one_setting_share_a_launch() -> None:
    rows = Rows(torch.ones(2, 3).double().numpy(), torch.zeros(2).double().numpy())
    heads = [Training(lr=1e-3), Training(lr=1e-3), Training(lr=1e-2)]
    updates = Updates(Bank(rows, heads, torch.device("cpu")), 4)
    # A CPU takes head after head.
    assert [each.lr for each in updates.optimizers] == [1e-3, 1e-3, 1e-2]


@pytest.mark.slow
def test_a_step_does_not_load_the_compiler_of_torch() -> None:
    code = """
import sys, torch
from clinit.headtrain.train.step import AdamW
AdamW([torch.ones(3)], [torch.ones(3)], lr=0.1, weight_decay=0.0).step()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
