from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from clinit.headtrain.train.step import BETAS, EPS, AdamW


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


@pytest.mark.slow
def test_a_step_does_not_load_the_compiler_of_torch() -> None:
    code = """
import sys, torch
from clinit.headtrain.train.step import AdamW
AdamW([torch.ones(3)], [torch.ones(3)], lr=0.1, weight_decay=0.0).step()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
