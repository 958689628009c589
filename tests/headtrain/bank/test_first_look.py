from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clinit.headtrain.rows import Rows
from clinit.headtrain.study import Training
from clinit.headtrain.train.first_look import first_look
from clinit.headtrain.train.heads import Bank

DIM, CLASSES = 48, 30


def bank_in(kind: Any, rows: Rows, heads: Sequence[Training], device: torch.device) -> Bank:
    return Bank(rows, [replace(head, precision=kind) for head in heads], device)


def random_rows() -> Rows:
    random = np.random.default_rng(0)
    return Rows(random.normal(size=(CLASSES, DIM)), random.normal(size=CLASSES))


def looked(name: str, rows: int = 300) -> tuple[Tensor, Tensor, Tensor]:
    """Leads and margins of a first look, and the leads in float64."""
    bank = bank_in(name, random_rows(), [Training(lr=1e-3), Training(lr=1.0)], torch.device("cpu"))
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(rows, DIM, generator=generator).half()
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    everything = [(slice(0, rows), slice(0, CLASSES))]
    found = first_look(bank)(features.float(), labels, slice(0, 2), everything)
    lead, margin = found.overall, found.doubt
    assert lead.equal(found.in_task)
    assert margin.equal(found.doubt_in_task)
    head = random_rows()
    logits = features.double() @ torch.from_numpy(head.weight).float().double().T
    logits += torch.from_numpy(head.bias).float().double()
    own = logits.gather(1, labels[:, None]).clone()
    rivals = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    return lead.double(), margin.double(), (own - rivals).expand(-1, 2)


def test_what_a_rounded_look_may_be_off_by_bounds_what_it_is_off_by() -> None:
    lead, margin, exact = looked("bf16")
    error = (lead - exact).abs()
    assert (error <= margin).all()
    assert error.max() > 0.02, "the look was not rounded: the test shows nothing"
    assert (lead.abs() > margin).float().mean() > 0.5, "nothing would be settled at first sight"


def test_a_full_look_is_off_by_nothing() -> None:
    lead, margin, exact = looked("float32")
    assert (margin == 0).all()
    torch.testing.assert_close(lead, exact, atol=1e-5, rtol=1e-5)
