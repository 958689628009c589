"""Whole runs on a device that executes (`tests.twin`), next to the CPU's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clinit.headtrain.protocol.methods import FormBank
from clinit.headtrain.protocol.stream import buffer as ram
from clinit.headtrain.protocol.train import evaluate, heads as heads_module
from clinit.headtrain.protocol.train.heads import LabelledRows
from tests.headtrain.protocol.test_experiment import run
from tests.headtrain.protocol.train.test_evaluate import close_bank, close_batch
from tests.twin import CUDA, Machine, twin

__all__ = ["twin"]
SMALL = {"tasks": 2, "iterations": 12, "eval_every": 6, "batch_size": 16, "buffer": 60}
BANK: list[dict[str, Any]] = [
    *({"init": "random"}, {"init": "class-mean"}, {"lam": "auto"}, {"lr": 1e-2}),
    *({"loss": "mse"}, {"loss": "sqen"}),
]
ANCHORS: list[dict[str, Any]] = [
    {"anchor": "moments", "anchor_strength": 0.02},
    {"anchor": "moments"},
]
CASES: dict[str, tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]] = {
    "bank": (BANK, {}),
    "linear": ([{}, {"loss": "mse"}], {"schedule": "linear"}),
    "one-cycle": ([{}], {"schedule": "one-cycle"}),
    "drawn": ([{}], {"old_rows": "statistics", "buffer": None}),
    "anchors": (ANCHORS, {}),
    "bf16": ([{}], {"precision": "bf16"}),
    "tf32": ([{}], {"precision": "tf32"}),
    "own loss": ([{"loss": f"{__name__}:own"}, {}], {}),
}


def own(logits: Tensor, labels: Tensor) -> Tensor:
    """Return a loss that PyTorch differentiates."""
    return torch.logsumexp(1.5 * logits, 1) - 1.5 * logits.gather(1, labels[:, None])[:, 0]


@pytest.fixture(autouse=True)
def _in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of the twin cannot change its size in place, as the buffer of logits does."""
    real = evaluate.logits_of
    monkeypatch.setattr(
        evaluate,
        "logits_of",
        lambda bank, rows, which, space=None, *precision: real(bank, rows, which, None, *precision),
    )
    monkeypatch.setattr(heads_module, "cpu_has_bf16", lambda: True)  # else PyTorch emulates it


def trained(device: str, case: str) -> list[Any]:
    heads, changes = CASES[case]
    config = {**SMALL, **changes, "device": device}
    if device == "cpu" and case == "tf32":  # the twin does not round, and CPUs have no TF32
        del config["precision"]
    return run({name: value for name, value in config.items() if value is not None}, heads)


@pytest.mark.parametrize("share", [0.25, 0.0], ids=["resident", "streamed"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_on_the_device_gives_the_heads_of_the_cpu(
    twin: Machine, monkeypatch: pytest.MonkeyPatch, case: str, share: float
) -> None:
    near = trained("cpu", case)
    monkeypatch.setattr(ram, "DEVICE_SHARE", share)
    with twin:
        far = trained("cuda", case)
    for one, other in zip(near, far, strict=True):
        np.testing.assert_allclose(other.head.weight, one.head.weight, atol=1e-5)
        np.testing.assert_allclose(other.steps["loss"], one.steps["loss"], atol=1e-4)
        assert one.classes.equals(other.classes)
    assert twin.counts["replay"] == 9 * twin.counts["capture"] > 0


def test_the_same_run_gives_the_same_bits_twice(twin: Machine) -> None:
    with twin:
        one, two = trained("cuda", "drawn"), trained("cuda", "drawn")
    assert one[0].head.weight.tobytes() == two[0].head.weight.tobytes()
    assert one[0].steps["loss"].equals(two[0].steps["loss"])


@pytest.mark.parametrize("values", [1, 2**28])
def test_an_evaluation_waits_once_for_close_rows_and_twice_for_counts(
    twin: Machine, monkeypatch: pytest.MonkeyPatch, values: int
) -> None:
    monkeypatch.setattr(evaluate, "CUDA_BLOCK_VALUES", values)
    given, plain = close_batch(np.float16), close_bank(torch.device("cpu"))
    expected = evaluate.evaluate(plain, LabelledRows.on(plain.device, *given))
    with twin:
        bank, test = close_bank(CUDA), LabelledRows.on(CUDA, *given)
        before, found = twin.waits, evaluate.evaluate(bank, test)
        assert twin.waits - before == 3, twin.counts
    assert bank.has_tf32 > FormBank.has_tf32
    np.testing.assert_array_equal(found.correct, expected.correct)
