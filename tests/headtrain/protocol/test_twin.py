"""Whole runs on a device that executes (`tests.twin`), next to the CPU's."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clinit.headtrain.protocol.stream import buffer as ram
from clinit.headtrain.protocol.train import evaluate
from clinit.headtrain.protocol.train.loop import CaptureWarning, StreamedFeed
from clinit.headtrain.protocol.train.step import Updates
from tests.headtrain.protocol.test_experiment import run
from tests.twin import Graph, Machine, twin

__all__ = ["twin"]
SMALL = {"tasks": 2, "iterations": 12, "eval_every": 6, "batch_size": 16, "buffer": 60}
BANK: list[dict[str, Any]] = [
    *({"init": "random"}, {"init": "class-mean"}, {"lam": "auto"}, {"lr": 1e-2}),
    *({"loss": "mse"}, {"loss": "sqen"}),
]
ANCHORS: list[dict[str, Any]] = [{"anchor": "l2", "anchor_strength": 0.02}, {"anchor": "moments"}]
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
        evaluate, "logits_of", lambda bank, rows, which, space=None: real(bank, rows, which)
    )


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


def waits(update: Any) -> Any:
    return lambda self, share=1.0: (update(self, share), float(self.losses.sum()))


def moves(prepare: Any) -> Any:
    def prepared(self: Any, start: int, stop: int) -> None:
        self.features = self.features.clone()
        prepare(self, start, stop)

    return prepared


@pytest.mark.parametrize(
    ("where", "name", "planted"),
    [
        (Graph, "replay", lambda real: lambda self: None),
        (StreamedFeed, "prepare", moves),
        (Updates, "update", waits),
    ],
)
def test_the_device_notices_what_a_gpu_would_suffer_from(
    twin: Machine, monkeypatch: pytest.MonkeyPatch, where: type, name: str, planted: Any
) -> None:
    near = trained("cpu", "linear")
    monkeypatch.setattr(ram, "DEVICE_SHARE", 0.0)
    monkeypatch.setattr(where, name, planted(getattr(where, name)))
    is_told = pytest.warns(CaptureWarning, match="stream is capturing")
    with twin, is_told if where is Updates else nullcontext():
        far = trained("cuda", "linear")
    is_wrong = np.abs(far[0].head.weight - near[0].head.weight).max() > 1e-3
    assert is_wrong == (where is not Updates)
